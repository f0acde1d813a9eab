"""What is plotted of runs and bands, and the legend beside it."""

import math
from collections.abc import Iterable, Mapping, Sequence

from drill.report.analysis.frequency_bands import Band, BandChange
from drill.report.page.svg_plot import COLOURS, DASHES, Bars, Line, Look, bar_plot, line_plot
from drill.report.results.runs import RunSummary
from drill.report.tables.markup import escape
from drill.report.tables.result_tables import grouped

UNITS = ((2 * 86_400.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))


def looks(runs: Sequence[RunSummary], others: Iterable[str] = ()) -> dict[str, Look]:
    """A colour for each recipe, a dash for each of its seeds; then those of other names.

    No two look alike while there are colours and dashes left.
    """
    groups = [[run.name for run in group] for group in grouped(runs).values()]
    groups += [[name] for name in dict.fromkeys(others) if name not in {run.name for run in runs}]
    found: dict[str, Look] = {}
    used = [0] * COLOURS
    for number, group in enumerate(groups):
        for name in group:
            colour = number % COLOURS
            if used[colour] >= DASHES:
                colour = used.index(min(used))
            found[name] = Look(colour, used[colour])
            used[colour] += 1
    return found


def curves_figure(
    runs: Sequence[RunSummary], look: Mapping[str, Look], identifier: str, text: str
) -> str | None:
    """Validation perplexity by epoch; a ring marks where averaging begins."""
    lines = []
    for run in runs:
        begins = next((point for point in run.curve if point.averaged), None)
        ring = None if begins is None else (float(begins.epoch), begins.valid)
        points = [(float(point.epoch), point.valid) for point in run.curve]
        lines.append(Line(run.name, look[run.name], points, ring))
    plot = line_plot(
        lines,
        identifier=identifier,
        title="Validation perplexity by epoch",
        description=f"{_said(runs)} Logarithmic axis; the table below has the figures.",
        x_label="epoch",
        y_label="validation perplexity",
        whole_x=True,
    )
    return _figure(plot, _legend([run.name for run in runs if run.curve], look), text)


def time_figure(
    runs: Sequence[RunSummary], look: Mapping[str, Look], identifier: str, text: str
) -> str | None:
    """The lowest validation perplexity so far by the time it took."""
    known = [point.elapsed for run in runs for point in run.curve if point.elapsed is not None]
    size, unit = next(
        ((size, unit) for least, size, unit in UNITS if max(known, default=0.0) >= least),
        (1.0, "seconds"),
    )
    lines = [
        Line(run.name, look[run.name], [(x / size, y) for x, y in best_so_far(run)]) for run in runs
    ]
    plot = line_plot(
        lines,
        identifier=identifier,
        title="Lowest validation perplexity by time",
        description=f"{_said(runs)} Logarithmic axis; the table below has the times.",
        x_label=f"{unit} of training",
        y_label="lowest validation perplexity so far",
    )
    return _figure(plot, _legend([run.name for run in runs if run.curve], look), text)


def best_so_far(run: RunSummary) -> list[tuple[float, float]]:
    """(seconds, lowest validation perplexity up to then) of every epoch whose time is known."""
    lowest, points = math.inf, []
    for point in run.curve:
        lowest = min(lowest, point.valid) if math.isfinite(point.valid) else lowest
        if point.elapsed is not None:
            points.append((point.elapsed, lowest))
    return points


def bands_figure(
    bands: Mapping[str, Sequence[Band]], look: Mapping[str, Look], identifier: str, text: str
) -> str | None:
    """Mean loss by how often a word occurs in the training text."""
    first: Sequence[Band] = next(iter(bands.values()), [])
    shown = [n for n in range(len(first)) if any(each[n].tokens for each in bands.values())]
    plot = bar_plot(
        [first[n].label for n in shown],
        [
            Bars(name, look[name], [each[n].mean_loss for n in shown])
            for name, each in bands.items()
        ],
        identifier=identifier,
        title="Mean loss by training count",
        description=f"Bars for {', '.join(bands)}; the table below has the figures.",
        y_label="nats per token",
    )
    return _figure(plot, _legend(bands, look, bars=True), text)


def changes_figure(
    changes: Mapping[str, Sequence[BandChange]],
    look: Mapping[str, Look],
    identifier: str,
    text: str,
) -> str | None:
    """The change of loss against the model compared with, over tokens."""
    first: Sequence[BandChange] = next(iter(changes.values()), [])
    shown = [n for n, change in enumerate(first) if change.tokens]
    plot = bar_plot(
        [first[n].label for n in shown],
        [
            Bars(name, look[name], [each[n].by_tokens for n in shown])
            for name, each in changes.items()
        ],
        identifier=identifier,
        title="Loss against the model compared with, by training count",
        description=f"Bars for {', '.join(changes)}; the table below has the figures.",
        y_label="% change of loss, over tokens",
    )
    return _figure(plot, _legend(changes, look, bars=True), text)


def _figure(plot: str | None, legend: str, text: str) -> str | None:
    if plot is None:
        return None
    caption = f"<figcaption>{escape(text)}</figcaption>"
    return f'<figure><div class="frame">{plot}</div>\n{legend}\n{caption}</figure>'


def _legend(names: Iterable[str], look: Mapping[str, Look], bars: bool = False) -> str:
    items = []
    for name in names:
        kind = "bars" if bars else "line"
        shape = '<rect x="9" y="0" width="12" height="12"/>' if bars else '<path d="M1 6L29 6"/>'
        swatch = f'<svg class="{kind} {look[name].classes}" viewBox="0 0 30 12" aria-hidden="true">'
        items.append(f"<li>{swatch}{shape}</svg><bdi>{escape(name)}</bdi></li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _said(runs: Sequence[RunSummary]) -> str:
    """The figures in a sentence, for whom the drawing is not to be seen."""
    said = [
        f"{run.name} reaches {run.valid:.2f} in {run.epochs} epoch{'' if run.epochs == 1 else 's'}"
        for run in runs
        if run.valid is not None
    ]
    return f"{'; '.join(said)}." if said else "No run has a perplexity yet."
