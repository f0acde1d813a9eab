"""Which jobs of a study are done: read from its ledger, and from run folders for the weights."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from statistics import mean

from drill.errors import SettingsError
from drill.report.results.evaluations import WORD_ACCURACY, Evaluation, last_pair
from drill.report.results.ledger import FailedJob, Row, read_failures, read_ledger
from drill.report.results.run_files import known
from drill.report.study.plan import ANALYSE, BLEU, Job, Plan, identity
from drill.training.run.folder import RunFolder
from drill.training.settings import read_settings, resolve_settings

DONE, PARTIAL, FAILED, MISSING = "done", "partial", "failed", "missing"
AGAIN = "done, to run again"
"""The result is recorded, but a later stage needs the weights and they are missing."""


class States:
    """The state of every job, by the ledger as it was when this was created.

    Args:
        plan: of the study.
        ledger: the file with its results; it need not exist.
        runs: the folder with the run folders; None: only the ledger counts.
    """

    def __init__(self, plan: Plan, ledger: Path, runs: Path | None) -> None:
        self.plan = plan
        self.runs = runs
        self._results: dict[tuple[str, int | None, str | None], list[Row]] = {}
        for row in read_ledger(ledger) if ledger.exists() else ():
            self._results.setdefault((row.name, row.seed, _identity(row)), []).append(row)
        failures = read_failures(ledger) if ledger.exists() else ()
        self._failures = {(f.name, f.seed, f.identity, f.stage): f for f in failures}

    def results(self, job: Job) -> list[Row]:
        """Rows of the run that a job trains or evaluates, oldest first; partial ones too."""
        return self._results.get((job.run, job.seed, identity(job.settings)), [])

    def result(self, job: Job) -> Row | None:
        """The last finished row with the results of the job."""
        texts = 1 if job.stage == ANALYSE else 2
        for row in reversed(self.results(job)):
            if row.test is not None and (job.trains or len(stage_results(row, job.stage)) == texts):
                return row
        return None

    def failure(self, job: Job) -> FailedJob | None:
        return self._failures.get((job.run, job.seed, identity(job.settings), job.stage))

    def state(self, job: Job) -> str:
        if self.result(job) is not None:
            return DONE
        begun = [row.recorded for row in self.results(job) if job.trains]
        failure = self.failure(job)
        if failure is not None and failure.recorded >= max(begun, default=""):
            return FAILED
        return PARTIAL if begun else MISSING

    def has_weights(self, job: Job) -> bool:
        """Whether the run folder of a training job exists and is finished."""
        if self.runs is None:
            return False
        folder = RunFolder(self.runs / job.run)
        finished = folder.best.exists() and folder.test_row() is not None
        return finished and is_run_of(job, folder)

    def to_run(self, retry: bool = False) -> list[Job]:
        """Jobs to run, in the order of the plan.

        A finished job is run again if a later stage needs its weights and they are missing. Jobs
        that need the result of a failed one are not run.
        """
        wanted: set[Job] = set()
        for job in self.plan.jobs():
            chain = [job]
            while (source := chain[-1].source) is not None and not self.has_weights(source):
                chain.append(source)
            states = [self.state(link) for link in chain]
            if states[0] != DONE and (retry or FAILED not in states):
                wanted |= set(chain)
        return [job for job in self.plan.jobs() if job in wanted]

    def status_line(self, left: Collection[Job] = ()) -> str:
        """``4 of 6 jobs done, 1 failed``; those of ``left`` are to run, so they are not done."""
        states = ["" if job in left else self.state(job) for job in self.plan.jobs()]
        failed = f", {states.count(FAILED)} failed" if FAILED in states else ""
        return f"{states.count(DONE)} of {len(states)} jobs done{failed}"

    def minutes(self, job: Job) -> float | None:
        """An estimate: the mean of finished jobs of the row and stage, else training.max_minutes,
        else the mean of all rows; None: unknown."""
        own = self._own_minutes(job)
        times = [time for other, time in self._times.items() if other.stage == job.stage]
        return mean(times) / 60 if own is None and times else own

    def minutes_left(self, jobs: Sequence[Job], parallel: int = 1) -> str:
        """``12.5``; ``12.5?`` where some are estimated by other rows, ``12.5+`` where the time of
        some is unknown, ``?`` where that of all is."""
        times = known(map(self.minutes, jobs))
        if not times:
            return "?" if jobs else ""
        guessed = len(times) > len(known(map(self._own_minutes, jobs)))
        marks = f"{'?' if guessed else ''}{'+' if len(times) < len(jobs) else ''}"
        return f"{sum(times) / parallel:.1f}{marks}"

    def _own_minutes(self, job: Job) -> float | None:
        """The estimate without other rows."""
        same = [each for each in self._times if (each.row, each.stage) == (job.row, job.stage)]
        if same:
            return mean(self._times[each] for each in same) / 60
        limit: float | None = job.settings.training["max_minutes"] if job.trains else None
        return limit

    @cached_property
    def _times(self) -> dict[Job, float]:
        """Seconds of finished jobs."""
        times = {job: self._seconds(job) for job in self.plan.jobs()}
        return {job: seconds for job, seconds in times.items() if seconds is not None}

    def _seconds(self, job: Job) -> float | None:
        if (row := self.result(job)) is None:
            return None
        if job.trains:
            return max(row.seconds or 0.0, row.extra.get("study", {}).get("seconds", 0.0))
        return sum(evaluation.get("seconds", 0.0) for evaluation in stage_results(row, job.stage))


def is_run_of(job: Job, folder: RunFolder) -> bool:
    """Whether a folder has a run with the job's settings."""
    return folder.recipe.exists() and identity(read_settings(folder.recipe)) == identity(
        job.settings
    )


def evaluation_kind(stage: str) -> str:
    """The kind of evaluation that a stage makes, as in a run's evaluations.jsonl."""
    return WORD_ACCURACY if stage == BLEU else stage


def stage_results(row: Row, stage: str) -> list[Evaluation]:
    """The results of an evaluation stage: validation and test, of ``analyse`` test alone."""
    pair = last_pair(row.evaluations, evaluation_kind(stage))
    return [evaluation for evaluation in pair or () if evaluation is not None]


def _identity(row: Row) -> str | None:
    """None for rows without settings, or with settings unknown to this version."""
    try:
        return identity(resolve_settings(row.settings)) if row.settings else None
    except SettingsError:
        return None
