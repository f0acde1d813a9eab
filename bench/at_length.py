"""Language models at length beside the paper: its perplexities, and its curve on the way."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curves import interpolated, published
from pages import main
from recipe_times import as_its_recipe_says

from drill.report import Row, read
from drill.report.results.paper import CURVES, FINETUNED, PAPER

AT_LENGTH = 100  # epochs: shorter runs tell of the beginning only, which bench/curves.py shows
EPOCHS = (20, 40, 60, 80, 100, 150, 200, 300, 400, 500, 600)


def table(rows: Sequence[Row]) -> Iterable[str]:
    """What each run ended with, what it was finetuned and adapted to, and how it came there.

    Ours divide by all tokens as the paper's do, under dynamic evaluation by those predicted, as the
    paper's there.
    """
    runs = [row for row in rows if at_length(row)]
    if not runs:
        raise SystemExit(
            f"no row is a run of {' or '.join(CURVES)} over {AT_LENGTH} epochs; train one and add "
            "it with `drill record RUN --ledger LEDGER`"
        )
    yield "| run | epochs | minutes | validation / test | paper |"
    yield "|---|---:|---:|---:|---:|"
    for run in runs:
        yield from ends(run)
        for tuned in rows:
            if starts_from(tuned, run):
                yield from ends(tuned)
    for recipe in dict.fromkeys(str(run.recipe) for run in runs):
        yield ""
        yield from curves([run for run in runs if run.recipe == recipe], CURVES[recipe])


def curves(runs: Sequence[Row], theirs: Mapping[int, float]) -> Iterable[str]:
    """Runs of one recipe at the same epochs, and how far each is from the published curve."""
    titles = (f"{run.name}, seed {run.seed}" for run in runs)
    yield f"| epoch | published | {' | '.join(titles)} |"
    yield f"|---:|---:|{'---:|' * len(runs)}"
    for epoch in EPOCHS:
        expected, found = interpolated(theirs, epoch), [published(run).get(epoch) for run in runs]
        gaps = ("" if x is None else f"{x:.2f} ({x / expected - 1:+.1%})" for x in found)
        yield f"| {epoch} | {expected:.2f} | {' | '.join(gaps)} |"


def at_length(row: Row) -> bool:
    known = row.recipe in CURVES and row.epochs >= AT_LENGTH
    return known and (not row.settings or as_its_recipe_says(row))


def as_long_as_theirs(run: Row) -> bool:
    """Whether it reaches the end of the published curve; a run that does not has another end."""
    return run.epochs >= max(CURVES[str(run.recipe)])


def starts_from(tuned: Row, run: Row) -> bool:
    return tuned.recipe == f"{run.recipe}{FINETUNED}" and tuned.settings.get("start") == run.name


def found_by(run: Row, kind: str, split: str) -> list[dict[str, Any]]:
    """What `drill evaluate` found with a cache or with dynamic evaluation, oldest first."""
    return [each for each in run.evaluations if (each["kind"], each["split"]) == (kind, split)]


def ends(run: Row) -> Iterable[str]:
    """A line for the run, and one for what `drill evaluate` added to it."""
    ours, minutes = (run.valid_published, run.test_published), (run.seconds or 0.0) / 60
    theirs = paper(run.recipe) if run.recipe not in CURVES or as_long_as_theirs(run) else ""
    yield f"| {run.name} | {run.epochs} | {minutes:.1f} | {pair(*ours)} | {theirs} |"
    for kind in ("cache", "dynamic"):
        found = [found_by(run, kind, split)[-1:] for split in ("valid", "test")]
        if any(found):
            valid, test = (each[0]["perplexity"] if each else None for each in found)
            seconds = sum(one["seconds"] for each in found for one in each)
            cells = [f"{seconds / 60:.1f}", pair(valid, test), paper(f"{run.recipe}+{kind}")]
            yield f"| the same, `drill evaluate --{kind}` | | {' | '.join(cells)} |"


def pair(valid: float | None, test: float | None) -> str:
    return " / ".join("-" if each is None else f"{each:.2f}" for each in (valid, test))


def paper(name: str | None) -> str:
    found = PAPER.get(name or "")
    return f"{found.valid} / {found.test}" if found else ""


if __name__ == "__main__":
    main(__doc__, "at_length", table, read)
