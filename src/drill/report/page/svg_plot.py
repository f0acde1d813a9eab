"""Plots as SVG, drawn by hand: lines over a logarithmic axis, and bars.

A drawing is plain text with its own title and description; the page's style sheet gives it fonts
and colours. Everything drawn lies inside the view box: a line that leaves is cut at the edge.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from drill.report.tables import number_format as numbers
from drill.report.tables.markup import escape
from drill.report.tables.number_format import Tick, linear_ticks, log_ticks

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 58, 58, 14, 48  # room for labels around the plot itself
COLOURS, DASHES = 6, 5  # classes c0 .. c5 and d0 .. d4 of the style sheet

LARGEST = 1e12  # what lies beyond is no measurement, and its ticks would not fit
# The ends of lines are what matters: values above CUT times the lowest are cut off, yet never more
# than one point in seven, and never a whole line.
CUT = 1.7
KEPT = 6 / 7
LABELLED_LINES = 8  # more ends than these have no room for their values
LABEL_GAP, LABEL_WIDTH = 13.0, 50.0

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
    name: str
    look: Look
    points: Sequence[Point]  # in the order of x; what is not finite and above 0 is a gap
    ring: Point | None = None  # marks a place


@dataclass(frozen=True)
class Bars:
    name: str
    look: Look
    values: Sequence[float]  # one per label; NaN is none


def line_plot(
    lines: Sequence[Line],
    *,
    identifier: str,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    whole_x: bool = False,
) -> str | None:
    """Lines over a linear x and a logarithmic y; None where no line has a point."""
    seen = [[point for point in line.points if _drawable(point)] for line in lines]
    if not any(seen):
        return None
    xs = [x for points in seen for x, _ in points]
    lows = [min(y for _, y in points) for points in seen if points]
    ys = sorted(y for points in seen for _, y in points)
    kept = ys[math.ceil(KEPT * len(ys)) - 1]
    top = min(ys[-1], max(CUT * ys[0], 1.1 * max(lows), kept))
    padding = max(0.01, 0.04 * math.log(top / ys[0]))
    low, high = ys[0] * math.exp(-2 * padding), top * math.exp(padding)
    ends_x = _apart(min(0.0, *xs), max(0.0, *xs))
    across = _scale(*ends_x, LEFT, WIDTH - RIGHT)
    logarithm = _scale(math.log(low), math.log(high), HEIGHT - BOTTOM, TOP)

    def place(point: Point) -> Point | None:
        return (across(point[0]), logarithm(math.log(point[1]))) if _drawable(point) else None

    parts = [
        *_axis_y(log_ticks(low, high), lambda value: logarithm(math.log(value))),
        *_axis_x(linear_ticks(*ends_x, whole=whole_x), across),
        *_words(x_label, y_label),
    ]
    ends: list[tuple[float, float, str]] = []
    for line in lines:
        pieces = _pieces([place(point) for point in line.points])
        if not pieces:
            continue
        ring = place(line.ring) if line.ring else None
        parts.append(_line(line, pieces, ring))
        value = [y for _, y in line.points if _drawable((0.0, y))][-1]
        ends.append((*pieces[-1][-1], numbers.perplexity(value)))
    if len(ends) <= LABELLED_LINES:
        parts += _end_labels(ends)
    return _svg(identifier, title, description, parts)


def bar_plot(
    labels: Sequence[str],
    bars: Sequence[Bars],
    *,
    identifier: str,
    title: str,
    description: str,
    y_label: str,
) -> str | None:
    """A group of bars for every label, standing on zero; None where no bar has a height."""
    values = [value for each in bars for value in each.values if abs(value) < LARGEST]
    if not values:
        return None
    low, high = _apart(min(0.0, *values), max(0.0, *values))
    down = _scale(low - 0.04 * (high - low) * (low < 0), high, HEIGHT - BOTTOM, TOP)
    room = (WIDTH - LEFT - RIGHT) / len(labels)
    width = 0.78 * room / len(bars)
    parts = _axis_y(linear_ticks(low, high), down)
    for place, each in enumerate(bars):
        rects = []
        for n, (label, value) in enumerate(zip(labels, each.values, strict=True)):
            if abs(value) < LARGEST:  # NaN is not
                x = LEFT + room * n + 0.11 * room + width * place
                y, foot = sorted((down(value), down(0.0)))
                size = f'width="{_n(max(0.5, 0.94 * width))}" height="{_n(foot - y)}"'
                said = f"<title>{escape(f'{each.name}, {label}: {value:.4g}')}</title>"
                rects.append(f'<rect x="{_n(x)}" y="{_n(y)}" {size}>{said}</rect>')
        parts.append(f'<g class="bars {each.look.classes}">{"".join(rects)}</g>')
    zero = _n(down(0.0))
    parts.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{zero}" y2="{zero}"/>')
    for n, label in enumerate(labels):
        parts.append(_label(LEFT + room * (n + 0.5), label))
    return _svg(identifier, title, description, [*parts, *_words("", y_label)])


# -- scales and ticks -----------------------------------------------------------------------------


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * ((value - low) / (high - low))


def _apart(low: float, high: float) -> tuple[float, float]:
    """The same range, widened where both ends are one."""
    room = (
        max(0.5, 1e-9 * abs(high)) if high - low <= 1e-9 * max(abs(low), abs(high), 1e-3) else 0.0
    )
    return low - room, high + room


def _drawable(point: Point) -> bool:
    x, y = point
    return abs(x) < LARGEST and 1 / LARGEST < y < LARGEST  # NaN is neither


# -- parts of a drawing ---------------------------------------------------------------------------


def _pieces(points: Iterable[Point | None]) -> list[list[Point]]:
    """Connected points below the upper edge; a line that crosses the edge is cut there."""
    pieces: list[list[Point]] = [[]]
    for before, here in pairwise([None, *points]):
        if here is None:
            pieces.append([])
            continue
        if before is not None and (before[1] < TOP) != (here[1] < TOP):
            share = (TOP - before[1]) / (here[1] - before[1])
            pieces[-1].append((before[0] + share * (here[0] - before[0]), float(TOP)))
        if here[1] >= TOP:
            pieces[-1].append(here)
        else:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _line(line: Line, pieces: list[list[Point]], ring: Point | None) -> str:
    corners = ["L".join(f"{_n(x)} {_n(y)}" for x, y in piece) for piece in pieces if piece[1:]]
    parts = [f"<title>{escape(line.name)}</title>"]
    if corners:
        parts.append(f'<path d="{"".join(f"M{each}" for each in corners)}"/>')
    parts += [_circle(piece[0], 2.5, "lone") for piece in pieces if not piece[1:]]
    parts.append(_circle(pieces[-1][-1], 3.0, "dot"))
    if ring is not None and ring[1] >= TOP:
        parts.append(_circle(ring, 4.5, "ring"))
    return f'<g class="line {line.look.classes}">{"".join(parts)}</g>'


def _circle(at: Point, radius: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{_n(at[0])}" cy="{_n(at[1])}" r="{radius}"/>'


def _end_labels(ends: list[tuple[float, float, str]]) -> list[str]:
    """The values at the ends of lines, moved apart where they would cover one another."""
    columns: list[list[tuple[float, float, str]]] = []
    for end in sorted(ends):
        if columns and end[0] - columns[-1][-1][0] < LABEL_WIDTH:
            columns[-1].append(end)
        else:
            columns.append([end])
    parts = []
    for column in columns:
        column.sort(key=lambda end: end[1])
        above = -math.inf
        for rank, (x, y, text) in enumerate(column, start=1):
            lowest = HEIGHT - BOTTOM + 4.0 - LABEL_GAP * (len(column) - rank)  # room for the rest
            above = min(max(y + 4.0, above + LABEL_GAP), lowest)
            parts.append(
                f'<text class="end" x="{_n(x + 8.0)}" y="{_n(above)}">{escape(text)}</text>'
            )
    return parts


def _axis_y(ticks: Iterable[Tick], place: Callable[[float], float]) -> list[str]:
    parts = []
    for value, text in ticks:
        y, below = _n(place(value)), _n(place(value) + 4.0)  # half a letter lower
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick last" x="{LEFT - 8}" y="{below}">{text}</text>')
    return parts


def _axis_x(ticks: Iterable[Tick], place: Callable[[float], float]) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>']
    for value, text in ticks:
        x = _n(place(value))
        parts.append(f'<line class="zero" x1="{x}" x2="{x}" y1="{floor}" y2="{floor + 4}"/>')
        parts.append(f'<text class="tick middle" x="{x}" y="{floor + 17}">{text}</text>')
    return parts


def _label(x: float, text: str) -> str:
    """A label under the axis, in two lines where it is long."""
    words, y = text.split(" "), HEIGHT - BOTTOM + 17
    half = len(words) if len(text) <= 8 else (len(words) + 1) // 2
    lines = [" ".join(words[:half]), " ".join(words[half:])]
    spans = (
        f'<tspan x="{_n(x)}" y="{y + 14 * n}">{escape(line)}</tspan>'
        for n, line in enumerate(lines)
        if line
    )
    return f'<text class="tick middle">{"".join(spans)}</text>'


def _words(x_label: str, y_label: str) -> list[str]:
    middle, y = _n((LEFT + WIDTH - RIGHT) / 2), _n((TOP + HEIGHT - BOTTOM) / 2)
    turned = f'class="axis middle" x="12" y="{y}" transform="rotate(-90 12 {y})"'
    below = f'<text class="axis middle" x="{middle}" y="{HEIGHT - 8}">{escape(x_label)}</text>'
    return [*([below] if x_label else []), f"<text {turned}>{escape(y_label)}</text>"]


def _svg(identifier: str, title: str, description: str, parts: Iterable[str]) -> str:
    named = f'role="img" aria-labelledby="{identifier}-title {identifier}-description"'
    return "\n".join(
        [
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" {named}>',
            f'<title id="{identifier}-title">{escape(title)}</title>',
            f'<desc id="{identifier}-description">{escape(description)}</desc>',
            *parts,
            "</svg>",
        ]
    )


def _n(value: float) -> str:
    """A coordinate: a tenth of a pixel is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")
