"""The figures of a page: what is plotted, in which colours, with which legend."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drill.report.analysis.frequency_bands import Band, BandChange
from drill.report.page.svg_plot import (
    COLOURS,
    DASHES,
    FRAMES,
    Bars,
    Line,
    Look,
    Point,
    Words,
    bar_plot,
    line_plot,
)
from drill.report.results.ledger import Row
from drill.report.results.runs import RunSummary
from drill.report.tables.result_tables import grouped

UNITS = ((2 * 86_400.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))
BAND_NOTE = "A line is the mean over seeds, its area is from the lowest to the highest seed."


@dataclass(frozen=True)
class Figure:
    plots: str  # SVG, the same plot for wide and narrow screens
    legend: Sequence[tuple[str, str]]  # (name, classes)
    caption: str
    kind: str = "line"  # or "bars"


@dataclass(frozen=True)
class Curve:
    """Perplexities of a run by epoch, and the lowest on the validation text by seconds."""

    epochs: Sequence[Point]
    seconds: Sequence[Point]
    averaged_from: Point | None = None  # the first epoch of averaged weights
    training: Sequence[Point] = ()  # training perplexity by epoch

    @classmethod
    def of_run(cls, run: RunSummary) -> "Curve":
        averaged = [(float(each.epoch), each.valid) for each in run.curve if each.averaged]
        return cls(
            [(each.epoch, each.valid) for each in run.points if each.valid is not None],
            best_so_far(
                (each.elapsed, each.valid) for each in run.points if each.valid is not None
            ),
            averaged[0] if averaged else None,
            [(each.epoch, each.train) for each in run.points if each.train is not None],
        )

    @classmethod
    def of_row(cls, row: Row) -> "Curve":
        return cls(
            [(each[0] or 0.0, math.nan if each[1] is None else each[1]) for each in row.curve],
            best_so_far((each[3], each[1]) for each in row.validations if len(each) > 3),
        )


def best_so_far(values: Iterable[tuple[float | None, float | None]]) -> list[Point]:
    """(x, lowest y up to there) where x is known."""
    lowest, points = math.inf, []
    for x, y in values:
        lowest = min(lowest, y) if y is not None and math.isfinite(y) else lowest
        if x is not None:
            points.append((x, lowest))
    return points


# -- colours --------------------------------------------------------------------------------------


def looks(groups: Iterable[Sequence[str]]) -> dict[str, Look]:
    """A colour for each group of names and a dash for each name in it.

    No two names look alike while there are unused colours and dashes.
    """
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


def run_looks(runs: Sequence[RunSummary], others: Iterable[str] = ()) -> dict[str, Look]:
    """A colour per recipe, a dash per seed; then other names."""
    groups = [[run.name for run in group] for group in grouped(runs).values()]
    names = {run.name for run in runs}
    return looks([*groups, *([name] for name in dict.fromkeys(others) if name not in names)])


# -- curves ---------------------------------------------------------------------------------------

Curves = Mapping[str, Sequence[Curve]]
"""Of each name: one run, or the seeds of a recipe."""


def epochs_figure(curves: Curves, look: Mapping[str, Look]) -> Figure | None:
    """Validation perplexity by epoch; a ring marks where averaging begins."""
    lines = [
        _line(name, look[name], [each.epochs for each in group], group[0].averaged_from)
        for name, group in curves.items()
        if group
    ]
    notes = [BAND_NOTE] if any(line.band for line in lines) else []
    notes.append("Values above the upper edge are cut off.")
    if any(line.ring for line in lines):
        notes.append("A ring marks the first epoch of averaged weights.")
    axes = ("epoch", "validation perplexity")
    return _line_figure("Validation perplexity by epoch", axes, lines, notes, whole_x=True)


def training_figure(curves: Curves, look: Mapping[str, Look]) -> Figure | None:
    """Training perplexity by epoch, between two rows of training loss."""
    lines = [
        _line(name, look[name], [each.training for each in group])
        for name, group in curves.items()
        if any(each.training for each in group)
    ]
    notes = ["Training perplexity since the point before, with dropout."]
    axes = ("epoch", "training perplexity")
    return _line_figure("Training perplexity by epoch", axes, lines, notes, whole_x=True)


def time_figure(curves: Curves, look: Mapping[str, Look], devices: Iterable[str]) -> Figure | None:
    """The lowest validation perplexity so far by time of training."""
    ends = [each.seconds[-1][0] for g in curves.values() for each in g if each.seconds]
    longest = max(ends, default=0.0)
    size, unit = next(
        ((size, unit) for least, size, unit in UNITS if longest >= least), (1.0, "seconds")
    )
    lines = [
        _line(name, look[name], [[(x / size, y) for x, y in each.seconds] for each in group])
        for name, group in curves.items()
        if group
    ]
    notes = [BAND_NOTE] if any(line.band for line in lines) else []
    if devices := list(dict.fromkeys(devices)):
        notes.append(f"Measured on {', '.join(devices)}.")
    axes = (f"{unit} of training", "lowest validation perplexity so far")
    return _line_figure("Lowest validation perplexity by time", axes, lines, notes)


def _line_figure(
    title: str,
    axes: tuple[str, str],
    lines: Sequence[Line],
    notes: Sequence[str],
    whole_x: bool = False,
) -> Figure | None:
    lows = [
        f"{line.name} reaches {min(known):.2f}"
        for line in lines
        if (known := [y for _, y in line.points if math.isfinite(y)])
    ]
    words = Words(title, f"{'; '.join(lows)}. The table has the figures.", *axes)
    plots = [line_plot(lines, words, frame, whole_x=whole_x) for frame in FRAMES]
    legend = [(line.name, line.look.classes) for line in lines if line.points]
    return _figure(plots, legend, " ".join(notes), "line")


def _figure(
    plots: Iterable[str | None], legend: Sequence[tuple[str, str]], caption: str, kind: str
) -> Figure | None:
    drawn = "\n".join(filter(None, plots))
    return Figure(drawn, legend, caption, kind) if drawn else None


def mean_and_range(curves: Sequence[Sequence[Point]]) -> list[tuple[float, float, float, float]]:
    """(x, mean, lowest, highest) of curves, interpolated at every x that lies on all of them."""
    known = [[point for point in curve if math.isfinite(point[1])] for curve in curves]
    known = [curve for curve in known if curve]
    if not known:
        return []
    start, end = max(curve[0][0] for curve in known), min(curve[-1][0] for curve in known)
    found = []
    for x in sorted({x for curve in known for x, _ in curve if start <= x <= end}):
        ys = [_at(curve, x) for curve in known]
        found.append((x, sum(ys) / len(ys), min(ys), max(ys)))
    return found


def _at(curve: Sequence[Point], x: float) -> float:
    """The value of a curve at an x between its ends."""
    n = bisect_left(curve, x, key=lambda point: point[0])
    (right, y) = curve[n]
    if right == x:
        return y
    left, before = curve[n - 1]
    return before + (y - before) * (x - left) / (right - left)


def _line(
    name: str, look: Look, curves: Sequence[Sequence[Point]], ring: Point | None = None
) -> Line:
    if len(curves) == 1:
        return Line(name, look, curves[0], ring)
    found = mean_and_range(curves)
    return Line(
        name,
        look,
        [(x, mean) for x, mean, _, _ in found],
        band=[(x, low, high) for x, _, low, high in found],
    )


# -- bars -----------------------------------------------------------------------------------------


def bands_figure(bands: Mapping[str, Sequence[Band]], look: Mapping[str, Look]) -> Figure | None:
    """Mean loss by how often a word occurs in the training text."""
    losses = {name: [each.mean_loss for each in group] for name, group in bands.items()}
    caption = "How often a word occurs in the training text, and what it costs to predict it."
    return _bar_figure(
        "Mean loss by training count", "nats per token", bands, losses, look, caption
    )


def changes_figure(
    changes: Mapping[str, Sequence[BandChange]], look: Mapping[str, Look], base: str
) -> Figure | None:
    """The change of loss against ``base``, over tokens."""
    values = {name: [each.by_tokens for each in group] for name, group in changes.items()}
    title, axis = f"Loss against {base} by training count", "% change of loss, over tokens"
    caption = f"Change of loss against {base}; below zero is better."
    return _bar_figure(title, axis, changes, values, look, caption)


def _bar_figure(
    title: str,
    axis: str,
    bands: Mapping[str, Sequence[Band | BandChange]],
    values: Mapping[str, Sequence[float]],
    look: Mapping[str, Look],
    caption: str,
) -> Figure | None:
    first = next(iter(bands.values()))
    shown = [n for n, band in enumerate(first) if band.tokens]
    labels = [first[n].label for n in shown]
    bars = [Bars(name, look[name], [each[n] for n in shown]) for name, each in values.items()]
    words = Words(title, f"Bars for {', '.join(bands)}; the table has the figures.", "", axis)
    legend = [(each.name, each.look.classes) for each in bars]
    return _figure([bar_plot(labels, bars, words, f) for f in FRAMES], legend, caption, "bars")
