"""The figures of a page: data, colours, legend and caption. plots.js draws them."""

import csv
import io
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from drill.language_modeling.evaluation.calibration import Calibration
from drill.language_modeling.evaluation.frequency_bands import Band, BandChange, CountRange
from drill.report.analysis.label_vectors import NormBand
from drill.report.results.ledger import Row
from drill.report.results.runs import RunSummary
from drill.report.tables.markup import escape, visible
from drill.report.tables.result_tables import grouped

COLOURS, DASHES = 6, 5  # classes c0 .. c5 and d0 .. d4 of plots.css
UNITS = ((2 * 86_400.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))
BAND_NOTE = "A line is the mean over seeds, its area is from the lowest to the highest seed."

SAMPLES = {
    kind: f'<svg class="{name}" viewBox="0 0 30 12" aria-hidden="true">{shape}</svg>'
    for kind, name, shape in (
        ("lines", "line", '<path d="M1 6L29 6"/>'),
        ("bars", "bars", '<rect x="9" width="12" height="12"/>'),
    )
}

Point = tuple[float, float]


@dataclass(frozen=True)
class Look:
    colour: int
    dash: int

    @property
    def classes(self) -> str:
        return f"c{self.colour % COLOURS} d{self.dash % DASHES}"


@dataclass(frozen=True)
class Line:
    """Args:
    points: in the order of x; a value that is not finite and positive is a gap.
    averaged_from: x of the first point of averaged weights, marked by a ring.
    band: (lowest, highest) of each point, drawn as an area behind the line.
    """

    name: str
    look: Look
    points: Sequence[Point]
    averaged_from: float | None = None
    band: Sequence[Point] = ()


@dataclass(frozen=True)
class Figure:
    """Args:
    title: read aloud by screen readers.
    legend: (name, classes) in the order of the names in ``rows``.
    columns: of ``rows``: name, x, y, and for lines ``lowest``, ``highest``, ``averaged``.
    kind: ``lines`` or ``bars``.
    whole: ticks of x at integers only, unless the view is narrower than 2.
    linear: starts with linear axes, and no value is cut off.
    """

    title: str
    legend: Sequence[tuple[str, str]]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    kind: str = "lines"
    whole: bool = False
    linear: bool = False

    @property
    def data(self) -> str:
        """The rows as CSV."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return visible(text.getvalue())

    def html(self) -> str:
        """The element that plots.js draws into; its data is a link to a CSV file."""
        legend = [
            f'<li class="{look}">{SAMPLES[self.kind]}<bdi>{escape(name)}</bdi></li>'
            for name, look in self.legend
        ]
        name = re.sub("[^a-z0-9]+", "-", self.title.lower().partition(".")[0])
        return "\n".join(
            [
                f'<figure class="{self.kind}" data-title="{escape(self.title)}"'
                f"{' data-whole' if self.whole else ''}{' data-linear' if self.linear else ''}>",
                '<ul class="legend">',
                *legend,
                "</ul>",
                f"<figcaption>{escape(self.caption)} "
                f'<a download="{name}.csv" href="data:text/csv;charset=utf-8,'
                f'{quote(self.data, safe=",")}">Data as CSV</a></figcaption>',
                "</figure>",
            ]
        )


@dataclass(frozen=True)
class Curve:
    """Perplexities of a run by epoch, and the lowest on the validation text by seconds."""

    epochs: Sequence[Point]
    seconds: Sequence[Point]
    averaged_from: float | None = None  # the first epoch of averaged weights
    training: Sequence[Point] = ()  # training perplexity by epoch

    @classmethod
    def of_run(cls, run: RunSummary) -> "Curve":
        averaged = [float(each.epoch) for each in run.curve if each.averaged]
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
    if any(line.averaged_from is not None for line in lines):
        notes.append("A ring marks the first epoch of averaged weights.")
    axes = ("epoch", "validation perplexity")
    return _line_figure("Validation perplexity by epoch", axes, lines, notes, whole=True)


def training_figure(curves: Curves, look: Mapping[str, Look]) -> Figure | None:
    """Training perplexity by epoch, between two rows of training loss."""
    lines = [
        _line(name, look[name], [each.training for each in group])
        for name, group in curves.items()
        if any(each.training for each in group)
    ]
    notes = ["Training perplexity since the point before, with dropout."]
    axes = ("epoch", "training perplexity")
    return _line_figure("Training perplexity by epoch", axes, lines, notes, whole=True)


def time_figure(curves: Curves, look: Mapping[str, Look], devices: Iterable[str]) -> Figure | None:
    """The lowest validation perplexity so far by time of training.

    A seed that ends before the others keeps its lowest.
    """
    ends = {
        name: max((each.seconds[-1][0] for each in group if each.seconds), default=0.0)
        for name, group in curves.items()
    }
    longest = max(ends.values(), default=0.0)
    size, unit = next(
        ((size, unit) for least, size, unit in UNITS if longest >= least), (1.0, "seconds")
    )
    lines = [
        _line(
            name,
            look[name],
            [[(x / size, y) for x, y in _until(ends[name], each.seconds)] for each in group],
        )
        for name, group in curves.items()
        if group
    ]
    notes = [BAND_NOTE] if any(line.band for line in lines) else []
    if devices := list(dict.fromkeys(devices)):
        notes.append(f"Measured on {', '.join(devices)}.")
    axes = (f"{unit} of training", "lowest validation perplexity so far")
    return _line_figure("Lowest validation perplexity by time", axes, lines, notes)


def _until(end: float, points: Sequence[Point]) -> Sequence[Point]:
    """``points``, and the last value again at ``end`` if they end before."""
    if not points or points[-1][0] >= end:
        return points
    return [*points, (end, points[-1][1])]


def _line_figure(
    title: str,
    axes: tuple[str, str],
    lines: Sequence[Line],
    notes: Sequence[str],
    whole: bool = False,
) -> Figure | None:
    """None where no line has a point."""
    lows = {
        line.name: min(known)
        for line in lines
        if (known := [y for _, y in line.points if math.isfinite(y) and y > 0.0])
    }
    if not lows:
        return None
    title = f"{title}. {'; '.join(f'{name} reaches {low:.2f}' for name, low in lows.items())}"
    banded = any(line.band for line in lines)
    ringed = any(line.averaged_from is not None for line in lines)
    columns = ["run", *axes]
    columns += ["lowest", "highest"] if banded else []
    columns += ["averaged"] if ringed else []
    rows = []
    for line in lines:
        start = math.inf if line.averaged_from is None else line.averaged_from
        for n, (x, y) in enumerate(line.points):
            row = [line.name, _number(x), _number(y)]
            if banded:
                row += map(_number, line.band[n]) if line.band else ["", ""]
            if ringed:
                row.append("1" if x >= start else "")
            rows.append(row)
    legend = [(line.name, line.look.classes) for line in lines if line.points]
    return Figure(title, legend, columns, rows, " ".join(notes), whole=whole)


def _number(value: float) -> str:
    return f"{value:.6g}"


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
    name: str, look: Look, curves: Sequence[Sequence[Point]], averaged_from: float | None = None
) -> Line:
    if len(curves) == 1:
        return Line(name, look, curves[0], averaged_from)
    found = mean_and_range(curves)
    return Line(
        name,
        look,
        [(x, mean) for x, mean, _, _ in found],
        band=[(low, high) for _, _, low, high in found],
    )


def reliability_figure(calibration: Mapping[str, Calibration], look: Mapping[str, Look]) -> Figure:
    """Accuracy by confidence, and the diagonal of a calibrated model."""
    diagonal = "calibrated model"
    legend = [*((name, look[name].classes) for name in calibration), (diagonal, "soft d2")]
    rows = [
        [name, _number(bin.confidence), _number(bin.accuracy)]
        for name, each in calibration.items()
        for bin in each.bins
    ]
    rows += [[diagonal, end, end] for end in ("0", "1")]
    errors = ", ".join(f"{name} {100 * each.ece:.2f}%" for name, each in calibration.items())
    title = f"Reliability. Expected calibration error: {errors}"
    caption = (
        "How often the likeliest token is right, by the probability it gets; below the diagonal a "
        f"model is overconfident. Expected calibration error: {errors}."
    )
    columns = ["run", "confidence", "accuracy"]
    return Figure(title, legend, columns, rows, caption, linear=True)


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


def norm_figures(
    norms: Mapping[str, Sequence[NormBand]], look: Mapping[str, Look]
) -> Iterator[Figure | None]:
    """Mean norms of E and of g_out(E) by how often a label occurs in the training text."""
    for key, name in (("embedding", "E"), ("output", "g_out(E)")):
        values = {run: [getattr(each, key) for each in group] for run, group in norms.items()}
        title, axis = f"Norm of {name} by training count", f"mean norm in {name}"
        yield _bar_figure(title, axis, norms, values, look, f"{title}.")


def _bar_figure(
    title: str,
    axis: str,
    bands: Mapping[str, Sequence[CountRange]],
    values: Mapping[str, Sequence[float]],
    look: Mapping[str, Look],
    caption: str,
) -> Figure | None:
    rows = [
        [name, band.label, _number(value)]
        for name, each in values.items()
        for band, value in zip(bands[name], each, strict=True)
        if math.isfinite(value)
    ]
    legend = [(name, look[name].classes) for name in values]
    columns = ["run", "training count", axis]
    return Figure(title, legend, columns, rows, caption, kind="bars") if rows else None
