"""Tables of a study: what is done, and what came out."""

from drill.study.plan import STAGES, Job
from drill.study.states import AGAIN, DONE, States


def status_table(states: States) -> str:
    """A line per row and seed, a column per stage, the estimated minutes of what is left."""
    plan = states.plan
    stages = [each for each in STAGES if any(each in row.stages for row in plan.rows)]
    left = states.to_run()
    lines = [["row", "seed", *stages, "minutes left"]]
    for row in plan.rows:
        for seed in row.seeds:
            jobs = {stage: Job(row, seed, stage) for stage in row.stages}
            own = [job for job in jobs.values() if job in left]
            cells = [_state(states, jobs[stage], left) if stage in jobs else "" for stage in stages]
            lines.append([row.name, str(seed), *cells, _minutes(states, own)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    rest = f"; {len(left)} to run, about {_minutes(states, left)} min" if left else ""
    table.append(f"{states.counted()}{rest}")
    return "\n".join(table)


def _state(states: States, job: Job, left: list[Job]) -> str:
    state = states.state(job)
    return AGAIN if state == DONE and job in left else state


def _minutes(states: States, jobs: list[Job]) -> str:
    """``12.5``; with a + where the time of some is unknown."""
    if not jobs:
        return ""
    found = [states.minutes(job) for job in jobs]
    known = [minutes for minutes in found if minutes is not None]
    return f"{sum(known):.1f}{'+' if len(known) < len(found) else ''}"
