"""The first epochs of the ledger's runs beside the published curves: a table of figures."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from pages import main
from recipe_times import as_its_recipe_says

from drill.report import Row, read
from drill.report.results.paper import CURVES

EPOCHS = (1, 2, 3, 5, 10, 20)
MEAN_OF = range(16, 21)


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Our perplexities divide by all tokens, as the published ones do.

    Means over runs; in brackets their gap to the published curve, and the gaps of the seeds.
    """
    found = {name: runs for name in CURVES if (runs := comparable(rows, name))}
    if not found:
        raise SystemExit(
            f"no row is a run of {' or '.join(CURVES)} over {MEAN_OF[-1]} epochs; train one and "
            "add it with `drill record RUN --ledger LEDGER`"
        )
    precisions = sorted({row.precision for runs in found.values() for row in runs}, reverse=True)
    titles = []
    for runs in found.values():
        titles.append(f"{runs[0].layer}, published")
        for precision in precisions:
            titles.append(f"{precision}, {_seeds(_of(runs, precision))}")
    yield f"| epoch | {' | '.join(titles)} |"
    yield f"|---:|{'---:|' * len(titles)}"
    for epochs in [*([epoch] for epoch in EPOCHS), list(MEAN_OF)]:
        cells = []
        for name, runs in found.items():
            theirs = mean(interpolated(CURVES[name], epoch) for epoch in epochs)
            cells.append(f"{theirs:.1f}")
            for precision in precisions:
                ours = [
                    mean(published(run)[epoch] for epoch in epochs) for run in _of(runs, precision)
                ]
                cells.append(_against(ours, theirs))
        label = str(epochs[0]) if len(epochs) == 1 else f"mean of {epochs[0]} to {epochs[-1]}"
        yield f"| {label} | {' | '.join(cells)} |"


def comparable(rows: Sequence[Row], name: str) -> list[Row]:
    """Runs of a recipe, changed in length and precision alone, that have all epochs of the table.

    Rows of old do not hold what was changed; those that were kept are of the recipe as it is.
    """
    needed = {*EPOCHS, *MEAN_OF}
    return [
        row
        for row in rows
        if row.recipe == name
        and (not row.settings or as_its_recipe_says(row))
        and needed <= published(row).keys()
    ]


def _of(runs: Sequence[Row], precision: str | None) -> list[Row]:
    return [run for run in runs if run.precision == precision]


def _seeds(runs: Sequence[Row]) -> str:
    return f"{len(runs)} runs of {seeds(runs)}" if len(runs) != 1 else "1 run"


def seeds(runs: Sequence[Row]) -> str:
    """How many different ones: runs of one seed begin alike, whatever kernels they have."""
    count = len({run.seed for run in runs})
    return f"{count} seed{'s' if count != 1 else ''}"


def _against(ours: Sequence[float], theirs: float) -> str:
    if not ours:
        return ""
    gaps = sorted(x / theirs - 1 for x in ours)
    between = f"; {gaps[0]:+.1%} to {gaps[-1]:+.1%}" if len(ours) > 1 else ""
    return f"{mean(ours):.1f} ({mean(ours) / theirs - 1:+.1%}{between})"


def published(run: Row) -> dict[int, float]:
    return {int(epoch): valid for epoch, _, valid in run.curve if epoch and valid is not None}


def interpolated(curve: Mapping[int, float], epoch: int) -> float:
    """Not every epoch is printed: a straight line joins those that are."""
    before = max(each for each in curve if each <= epoch)
    after = min(each for each in curve if each >= epoch)
    share = (epoch - before) / max(1, after - before)
    return curve[before] + share * (curve[after] - curve[before])


if __name__ == "__main__":
    main(__doc__, "curves", table, read)
