"""The figures of a page: data, colours, legend and caption. plots.js draws them."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

import numpy as np

from drill.language_modeling.evaluation.calibration import Calibration
from drill.language_modeling.evaluation.frequency_bands import CountRange
from drill.report.results.ledger import Row
from drill.report.tables.result_tables import Result

COLOURS, DASHES = 6, 5  # classes c0 .. c5 and d0 .. d4 of plots.css
UNITS = ((2 * 86_400.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))
SEED_RANGE_NOTE = "A line is the mean over seeds, its area is from the lowest to the highest seed."

SAMPLE = '<svg class="{}" viewBox="0 0 30 12" aria-hidden="true">{}</svg>'
SAMPLES = {
    "lines": SAMPLE.format("line", '<path d="M1 6L29 6"/>'),
    "bars": SAMPLE.format("bars", '<rect x="9" width="12" height="12"/>'),
}

Point = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """What plots.js draws."""

    title: str  # read aloud by screen readers
    legend: Sequence[tuple[str, str]]  # (name, classes) in the order of the names in ``rows``
    columns: Sequence[str]  # name, x, y, and for lines ``lowest``, ``highest``
    rows: Sequence[Sequence[str]]
    caption: str
    kind: str = "lines"  # or "bars"
    whole: bool = False  # ticks of x at integers only, unless the view is narrower than 2
    linear: bool = False  # starts with linear axes, and no value is cut off

    @property
    def data(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def html(self) -> str:
        """The element that plots.js draws into; its data is a link to a CSV file."""
        legend = "".join(
            f'<li class="{look}">{SAMPLES[self.kind]}<bdi>{escape(name)}</bdi></li>\n'
            for name, look in self.legend
        )
        name = re.sub("[^a-z0-9]+", "-", self.title.lower().partition(".")[0])
        link = f"data:text/csv;charset=utf-8,{quote(self.data, ',', errors='replace')}"
        return (
            f'<figure class="{self.kind}" data-title="{escape(self.title)}"'
            f"{' data-whole' if self.whole else ''}{' data-linear' if self.linear else ''}>\n"
            f'<ul class="legend">\n{legend}</ul>\n'
            f"<figcaption>{escape(self.caption)} "
            f'<a download="{name}.csv" href="{link}">Data as CSV</a></figcaption>\n'
            "</figure>"
        )


@dataclass(frozen=True)
class Curve:
    """Perplexities of a run by epoch, and the lowest on the validation text by seconds."""

    epochs: Sequence[Point]
    seconds: Sequence[Point]
    device: str | None = None
    training: Sequence[Point] = ()  # training perplexity by epoch

    @classmethod
    def of(cls, result: Result) -> "Curve":
        if isinstance(result, Row):
            curve = [(x or 0.0, math.nan if y is None else y) for x, y, *_ in result.curve]
            timed = ((point[3], point[1]) for point in result.validations if len(point) > 3)
            return cls(curve, best_so_far(timed), result.device)
        return cls(
            [(point.epochs_done, point.valid) for point in result.validations],
            best_so_far((point.elapsed, point.valid) for point in result.validations),
            result.device,
            [(p.epochs_done, p.perplexity) for p in result.training if p.perplexity is not None],
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


def css_classes(names: Iterable[str]) -> dict[str, str]:
    """A colour and a dash for each name; the first ``COLOURS`` have lines without dashes."""
    return {
        name: f"c{n % COLOURS} d{n // COLOURS % DASHES}"
        for n, name in enumerate(dict.fromkeys(names))
    }


# -- curves ---------------------------------------------------------------------------------------

Curves = Mapping[str, Sequence[Curve]]  # of each name: one run, or the seeds of a recipe


def epochs_figure(curves: Curves, look: Mapping[str, str]) -> Figure | None:
    """Validation perplexity by epoch."""
    return _line_figure(
        "Validation perplexity by epoch",
        ("epoch", "validation perplexity"),
        {name: [curve.epochs for curve in group] for name, group in curves.items()},
        look,
        ["Values above the upper edge are cut off."],
        whole=True,
    )


def training_figure(curves: Curves, look: Mapping[str, str]) -> Figure | None:
    return _line_figure(
        "Training perplexity by epoch",
        ("epoch", "training perplexity"),
        {name: [curve.training for curve in group] for name, group in curves.items()},
        look,
        ["Training perplexity since the point before, with dropout."],
        whole=True,
    )


def time_figure(curves: Curves, look: Mapping[str, str]) -> Figure | None:
    """The lowest validation perplexity so far by time of training.

    A seed that ends before the others keeps its lowest.
    """
    ends = {
        name: max((curve.seconds[-1][0] for curve in group if curve.seconds), default=0.0)
        for name, group in curves.items()
    }
    longest = max(ends.values(), default=0.0)
    size, unit = next(
        ((size, unit) for least, size, unit in UNITS if longest >= least), (1.0, "seconds")
    )
    lines = {
        name: [[(x / size, y) for x, y in _until(ends[name], curve.seconds)] for curve in group]
        for name, group in curves.items()
    }
    devices = dict.fromkeys(curve.device for group in curves.values() for curve in group)
    measured = ", ".join(filter(None, devices))
    return _line_figure(
        "Lowest validation perplexity by time",
        (f"{unit} of training", "lowest validation perplexity so far"),
        lines,
        look,
        [f"Measured on {measured}."] if measured else [],
    )


def _until(end: float, points: Sequence[Point]) -> Sequence[Point]:
    """``points``, and the last value again at ``end`` if they end before."""
    if not points or points[-1][0] >= end:
        return points
    return [*points, (end, points[-1][1])]


def _line_figure(
    title: str,
    axes: tuple[str, str],
    curves: Mapping[str, Sequence[Sequence[Point]]],
    look: Mapping[str, str],
    notes: Sequence[str],
    whole: bool = False,
) -> Figure | None:
    """A line for each name: its curve, or the mean of its curves with their range.

    None: no line has a point.
    """
    lines: dict[str, Sequence[Sequence[float]]] = {
        name: group[0] if len(group) == 1 else mean_and_range(group)
        for name, group in curves.items()
    }
    lows = {
        name: min(known)
        for name, line in lines.items()
        if (known := [y for _, y, *_ in line if math.isfinite(y) and y > 0.0])
    }
    if not lows:
        return None
    with_range = any(len(point) > 2 for line in lines.values() for point in line)
    columns = ["run", *axes, *(["lowest", "highest"] if with_range else [])]
    rows = []
    for name, line in lines.items():
        for x, y, *ends in line:
            row = [name, _number(x), _number(y)]
            if with_range:
                row += map(_number, ends) if ends else ["", ""]
            rows.append(row)
    caption = [*([SEED_RANGE_NOTE] if with_range else []), *notes]
    return Figure(
        f"{title}. {'; '.join(f'{name} reaches {low:.2f}' for name, low in lows.items())}",
        [(name, look[name]) for name, line in lines.items() if line],
        columns,
        rows,
        " ".join(caption),
        whole=whole,
    )


def _number(value: float) -> str:
    return f"{value:.6g}"


def mean_and_range(curves: Sequence[Sequence[Point]]) -> list[tuple[float, float, float, float]]:
    """(x, mean, lowest, highest) of curves, interpolated at every x that lies on all of them."""
    known = [[point for point in curve if math.isfinite(point[1])] for curve in curves]
    known = [curve for curve in known if curve]
    if not known:
        return []
    start, end = max(curve[0][0] for curve in known), min(curve[-1][0] for curve in known)
    shared = sorted({x for curve in known for x, _ in curve if start <= x <= end})
    values = [np.interp(shared, [x for x, _ in c], [y for _, y in c]) for c in known]
    ys = np.array(values)  # (curves, x)
    return list(zip(shared, ys.mean(0), ys.min(0), ys.max(0), strict=True))


def reliability_figure(calibration: Mapping[str, Calibration], look: Mapping[str, str]) -> Figure:
    """Accuracy by confidence, and the diagonal of a calibrated model."""
    diagonal = "calibrated model"
    legend = [*((name, look[name]) for name in calibration), (diagonal, "soft d2")]
    rows = [
        [name, _number(bin.confidence), _number(bin.accuracy)]
        for name, measured in calibration.items()
        for bin in measured.bins
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


def bar_figure(
    measure: str,
    axis: str,
    bands: Mapping[str, Sequence[CountRange]],
    key: str,
    look: Mapping[str, str],
    caption: str = "",
) -> Figure | None:
    """A bar for the attribute ``key`` of every band of training counts."""
    rows = [
        [name, band.label, _number(value)]
        for name, group in bands.items()
        for band in group
        if math.isfinite(value := getattr(band, key))
    ]
    title, legend = f"{measure} by training count", [(name, look[name]) for name in bands]
    columns, caption = ["run", "training count", axis], caption or f"{title}."
    return Figure(title, legend, columns, rows, caption, kind="bars") if rows else None
