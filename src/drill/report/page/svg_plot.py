"""Line and bar plots as SVG text.

A plot is drawn for one ``Frame``, wide or narrow; the style sheet shows the one that fits the
screen, and has fonts and colours. Nothing leaves the view box: lines are cut at its upper edge.
Values of points and bars are texts that the style sheet shows on hover.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from drill.report.tables import number_format as numbers
from drill.report.tables.markup import escape
from drill.report.tables.number_format import Tick, linear_ticks, log_ticks

COLOURS, DASHES = 6, 5  # classes c0 .. c5 and d0 .. d4 of the style sheet
LARGEST = 1e12  # larger values are not drawn
LOG_X = 8  # x is logarithmic where the longest line is this many times the shortest
# The ends of lines matter most: values above CUT times the lowest are cut off, but at most one
# point in seven, and never a whole line.
CUT = 1.7
SHOWN = 6 / 7
LABELLED_LINES = 8  # with more lines, their last values have no space
LABEL_GAP, LABEL_WIDTH = 15.0, 56.0
HOVER_GAP = 8.0  # pixels between points that show their value

Point = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """The size of a drawing and its margins, in pixels."""

    name: str
    width: int
    height: int
    left: int
    ticks: int  # at most, along x
    right: int = 58
    top: int = 26
    bottom: int = 50

    @property
    def floor(self) -> int:
        return self.height - self.bottom

    @property
    def end(self) -> int:
        return self.width - self.right


WIDE = Frame("wide", 960, 420, left=64, ticks=9)
NARROW = Frame("narrow", 360, 320, left=54, ticks=5)
FRAMES = (WIDE, NARROW)


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
    ring: a point to mark.
    band: (x, low, high), drawn as an area behind the line.
    """

    name: str
    look: Look
    points: Sequence[Point]
    ring: Point | None = None
    band: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True)
class Bars:
    name: str
    look: Look
    values: Sequence[float]  # one per label; NaN: none


@dataclass(frozen=True)
class Words:
    """The texts of a plot; title and description are read aloud by screen readers."""

    title: str
    description: str
    x_label: str
    y_label: str


def line_plot(
    lines: Sequence[Line], words: Words, frame: Frame = WIDE, *, whole_x: bool = False
) -> str | None:
    """Lines over a logarithmic y axis; None where no line has a point.

    x is logarithmic where lines have very different lengths. ``whole_x``: ticks at integers only.
    """
    known = [[point for point in line.points if _drawable(point)] for line in lines]
    if not any(known):
        return None
    ends_x = [points[-1][0] for points in known if points]
    log_x = min(ends_x) > 1 / LARGEST and max(ends_x) >= LOG_X * min(ends_x)
    xs = [x for points in known for x, _ in points if x > 1 / LARGEST or not log_x]
    lows = [min(y for _, y in points) for points in known if points]
    ys = sorted(y for points in known for _, y in points)
    least = min([ys[0], *(low for line in lines for x, low, _ in line.band if _drawable((x, low)))])
    top = min(ys[-1], max(CUT * ys[0], 1.1 * max(lows), ys[math.ceil(SHOWN * len(ys)) - 1]))
    padding = max(0.01, 0.04 * math.log(top / least))
    low, high = least * math.exp(-2 * padding), top * math.exp(padding)
    down = _scale(math.log(low), math.log(high), frame.floor, frame.top)
    if log_x:
        start, end = min(xs), max(xs)
        ticks_x = log_ticks(start, end)
        ticks_x = ticks_x[:: math.ceil(len(ticks_x) / frame.ticks)]
        scale = _scale(math.log(start), math.log(end), frame.left, frame.end)
    else:
        start, end = _apart(min(0.0, *xs), max(0.0, *xs))
        ticks_x = linear_ticks(start, end, frame.ticks, whole=whole_x)
        scale = _scale(start, end, frame.left, frame.end)

    def across(x: float) -> float:
        return scale(math.log(x) if log_x else x)

    def place(point: Point) -> Point | None:
        if not _drawable(point) or (log_x and point[0] <= 1 / LARGEST):
            return None
        return across(point[0]), down(math.log(point[1]))

    parts = [
        *_axis_y(frame, log_ticks(low, high), lambda value: down(math.log(value))),
        *_axis_x(frame, ticks_x, across),
        *(_band(frame, line, place) for line in lines),
    ]
    ends: list[tuple[float, float, str]] = []
    for line in lines:
        placed = [place(point) for point in line.points]
        pieces = _pieces(frame, placed)
        if not pieces:
            continue
        ring = place(line.ring) if line.ring else None
        shapes = [*_line(frame, pieces, ring), *_hover_points(frame, line, placed, words.x_label)]
        parts.append(_tag("g", f"line {line.look.classes}", "".join(shapes)))
        value = [y for point, (_, y) in zip(placed, line.points, strict=True) if point][-1]
        ends.append((*pieces[-1][-1], numbers.perplexity(value)))
    if len(ends) <= LABELLED_LINES:
        parts += _end_labels(frame, ends)
    return _svg(frame, words, parts)


def bar_plot(
    labels: Sequence[str], bars: Sequence[Bars], words: Words, frame: Frame = WIDE
) -> str | None:
    """A group of bars per label, from zero; None where no bar has a value."""
    values = [value for each in bars for value in each.values if abs(value) < LARGEST]
    if not values:
        return None
    turned = frame.name == NARROW.name  # labels
    frame = replace(frame, right=12, bottom=80 if turned else frame.bottom)
    low, high = _apart(min(0.0, *values), max(0.0, *values))
    down = _scale(low - 0.04 * (high - low) * (low < 0), high, frame.floor, frame.top)
    space = (frame.end - frame.left) / len(labels)
    width = 0.78 * space / len(bars)
    parts = _axis_y(frame, linear_ticks(low, high), down)
    for place, each in enumerate(bars):
        found = []
        for n, (label, value) in enumerate(zip(labels, each.values, strict=True)):
            if abs(value) < LARGEST:  # False for NaN
                y, foot = sorted((down(value), down(0.0)))
                x = frame.left + space * (n + 0.11) + width * place
                rect = _tag("rect", x=x, y=y, width=max(0.5, 0.94 * width), height=foot - y)
                found.append(_hover(frame, rect, f"{each.name}, {label}: {value:.4g}"))
        parts.append(_tag("g", f"bars {each.look.classes}", "".join(found)))
    parts.append(_tag("line", "zero", x1=frame.left, x2=frame.end, y1=down(0.0), y2=down(0.0)))
    for n, label in enumerate(labels):
        x = frame.left + space * (n + 0.5)
        if turned:
            short = label.replace(" and more", "+").replace(" to ", "-")
            parts.append(_text("tick last", x, frame.floor + 12, short, turned=-40))
        else:
            parts.append(_text("tick middle", x, frame.floor + 17, label))
    return _svg(frame, words, parts)


# -- scales ---------------------------------------------------------------------------------------


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * ((value - low) / (high - low))


def _apart(low: float, high: float) -> tuple[float, float]:
    """The same range, wider where both ends are equal."""
    room = (
        max(0.5, 1e-9 * abs(high)) if high - low <= 1e-9 * max(abs(low), abs(high), 1e-3) else 0.0
    )
    return low - room, high + room


def _drawable(point: Point) -> bool:
    x, y = point
    return abs(x) < LARGEST and 1 / LARGEST < y < LARGEST  # False for NaN


# -- parts of a drawing ---------------------------------------------------------------------------


def _pieces(frame: Frame, points: Iterable[Point | None]) -> list[list[Point]]:
    """Connected points below the upper edge; a line that crosses the edge is cut there."""
    top = float(frame.top)
    pieces: list[list[Point]] = [[]]
    for before, here in pairwise([None, *points]):
        if here is None:
            pieces.append([])
            continue
        if before is not None and (before[1] < top) != (here[1] < top):
            pieces[-1].append(_crossing(before, here, top))
        if here[1] >= top:
            pieces[-1].append(here)
        else:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _crossing(before: Point, here: Point, top: float) -> Point:
    share = (top - before[1]) / (here[1] - before[1])
    return before[0] + share * (here[0] - before[0]), top


def _line(frame: Frame, pieces: list[list[Point]], ring: Point | None) -> Iterator[str]:
    if corners := [_corners(piece) for piece in pieces if piece[1:]]:
        yield _tag("path", d="".join(corners))
    for piece in pieces:
        if not piece[1:]:
            yield _circle(piece[0], 2.5, "lone")
    yield _circle(pieces[-1][-1], 3.0, "dot")
    if ring is not None and ring[1] >= frame.top:
        yield _circle(ring, 4.5, "ring")


def _band(frame: Frame, line: Line, place: Callable[[Point], Point | None]) -> str:
    """The area between two curves; above the upper edge it follows the edge."""
    lows = [place((x, low)) for x, low, _ in line.band]
    highs = [place((x, high)) for x, _, high in line.band]
    both = [pair for pair in zip(lows, highs, strict=True) if all(pair)]
    around = [*(low for low, _ in both), *(high for _, high in reversed(both))]
    inside = [(each[0], max(each[1], frame.top)) for each in around if each]
    return _tag("path", f"band {line.look.classes}", d=_corners(inside)) if inside else ""


def _corners(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _hover_points(
    frame: Frame, line: Line, placed: Sequence[Point | None], x_label: str
) -> Iterator[str]:
    """A spot for every point, or for as many as there is space for: it shows the value."""
    last = -math.inf
    for point, (x, y) in zip(placed, line.points, strict=True):
        if point is not None and point[1] >= frame.top and point[0] - last >= HOVER_GAP:
            last = point[0]
            text = f"{line.name}, {x_label} {x:,.4g}: {numbers.perplexity(y)}"
            yield _hover(frame, _circle(point, 6.0, "spot"), text)


def _hover(frame: Frame, shape: str, text: str) -> str:
    return _tag("g", "hover", shape + _text("value", frame.width - 4, 15, text))


def _end_labels(frame: Frame, ends: list[tuple[float, float, str]]) -> Iterator[str]:
    """The last values of lines, moved apart where they would overlap."""
    columns: list[list[tuple[float, float, str]]] = []
    for end in sorted(ends):
        if columns and end[0] - columns[-1][-1][0] < LABEL_WIDTH:
            columns[-1].append(end)
        else:
            columns.append([end])
    for column in columns:
        column.sort(key=lambda end: end[1])
        above = -math.inf
        for rank, (x, y, text) in enumerate(column, start=1):
            lowest = frame.floor + 4.0 - LABEL_GAP * (len(column) - rank)  # space for the rest
            above = min(max(y + 4.0, above + LABEL_GAP), lowest)
            yield _text("end", x + 8.0, above, text)


def _axis_y(frame: Frame, ticks: Iterable[Tick], place: Callable[[float], float]) -> list[str]:
    parts = []
    for value, text in ticks:
        y = place(value)
        parts.append(_tag("line", "grid", x1=frame.left, x2=frame.end, y1=y, y2=y))
        parts.append(_text("tick last", frame.left - 8, y + 4.0, text))  # half a letter lower
    return parts


def _axis_x(frame: Frame, ticks: Iterable[Tick], place: Callable[[float], float]) -> list[str]:
    y = frame.floor
    parts = [_tag("line", "zero", x1=frame.left, x2=frame.end, y1=y, y2=y)]
    for value, text in ticks:
        x = place(value)
        parts.append(_tag("line", "zero", x1=x, x2=x, y1=y, y2=y + 4))
        parts.append(_text("tick middle", x, y + 18, text))
    return parts


def _svg(frame: Frame, words: Words, parts: Iterable[str]) -> str:
    x, y = (frame.left + frame.end) / 2, (frame.top + frame.floor) / 2
    content = [
        "",
        *parts,
        _text("axis middle", x, frame.height - 10, words.x_label) if words.x_label else "",
        _text("axis middle", 13, y, words.y_label, turned=-90),
        "",
    ]
    return _tag(
        "svg",
        f"plot {frame.name}",
        "\n".join(content),
        viewBox=f"0 0 {frame.width} {frame.height}",
        role="img",
        # a <title> would hide the values on hover
        aria_label=escape(f"{words.title}. {words.description}"),
    )


def _circle(at: Point, radius: float, kind: str) -> str:
    return _tag("circle", kind, cx=at[0], cy=at[1], r=radius)


def _text(kind: str, x: float, y: float, text: str, turned: int | None = None) -> str:
    rotation = {} if turned is None else {"transform": f"rotate({turned} {_n(x)} {_n(y)})"}
    return _tag("text", kind, escape(text), x=x, y=y, **rotation)


def _tag(name: str, kind: str = "", content: str = "", **attributes: float | str) -> str:
    """An element of SVG; ``content`` and the values of attributes are escaped."""
    given = {"class": kind} if kind else {}
    given |= {
        key.replace("_", "-"): value if isinstance(value, str) else _n(value)
        for key, value in attributes.items()
    }
    start = " ".join([name, *(f'{key}="{value}"' for key, value in given.items())])
    return f"<{start}>{content}</{name}>" if content else f"<{start}/>"


def _n(value: float) -> str:
    """A coordinate in tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
