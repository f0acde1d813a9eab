"""Plots: right positions, nothing outside, whatever the values."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drill.report.page.svg_plot import FRAMES, WIDE, Bars, Line, Look, Words, bar_plot, line_plot
from drill.report.tables.number_format import linear_ticks, log_ticks
from tests.report.drawing import areas, checked, paths, texts

WORDS = Words("A title", "What it shows.", "epoch", "perplexity")
ACROSS = WIDE.end - WIDE.left


def line(*points, name="a", ring=None, band=()):
    return Line(name, Look(0, 0), points, ring, band)


def drawn(*lines):
    return checked(line_plot(lines, WORDS))


def circles(root, kind):
    return [each for each in root.iter("circle") if each.get("class") == kind]


def test_a_line_runs_from_corner_to_corner():
    root = drawn(line((0, 400), (2, 200), (4, 150)))
    ((first, second, third),) = paths(root)
    assert (first[0], third[0]) == (WIDE.left, WIDE.end)
    assert second[0] == pytest.approx((first[0] + third[0]) / 2, abs=0.1)
    assert WIDE.top < first[1] < second[1] < third[1] < WIDE.floor
    # equal ratios are equal heights
    ratio = (second[1] - first[1]) / (third[1] - second[1])
    assert ratio == pytest.approx(math.log(2) / math.log(4 / 3), rel=0.02)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "A title. What it shows."


def test_invalid_values_are_gaps():
    root = drawn(line((1, 90), (2, 80), (3, math.nan), (4, 70), (5, math.inf), (6, 60), (7, 50)))
    assert [len(piece) for piece in paths(root)] == [2, 2]
    assert len(circles(root, "lone")) == 1  # epoch 4
    assert paths(drawn(line((1, 90)))) == []
    for points in ([], [(1, math.nan)], [(1, -5.0)], [(1, 0.0)], [(math.nan, 5.0)]):
        assert line_plot([line(*points)], WORDS) is None
    assert line_plot([], WORDS) is None


LONG = [(float(n), 60.0 + 1 / n) for n in range(3, 20)]


def test_high_starts_are_cut_where_the_line_leaves():
    ((start, *_, end),) = paths(drawn(line((1, 3000), (2, 500), *LONG)))
    assert (start[1], end[0]) == (WIDE.top, WIDE.end)
    assert WIDE.left + ACROSS * 2 / 19 < start[0] < WIDE.left + ACROSS * 3 / 19
    ((start, *_),) = paths(drawn(line((1, 3000), (2, 500), (3, 100), (4, 60))))
    assert start[1] > WIDE.top  # few points are all shown
    pieces = paths(drawn(line((1, 60), (2, 900), *LONG)))
    assert [len(piece) for piece in pieces] == [2, 1 + len(LONG)]
    assert pieces[0][1][1] == pieces[1][0][1] == WIDE.top
    bad = drawn(line((1, 60), (2, 58)), line((1, 900), (2, 800), name="bad"))
    assert len(paths(bad)) == 2  # but never a whole line


def test_x_is_logarithmic_where_lengths_differ_much():
    short, long = line((0, 90), (1, 80), (10, 70)), line((1, 80), (100, 60))
    (one, _), (_, two) = paths(drawn(short, long))
    assert (one[0], two[0]) == (WIDE.left, WIDE.end)
    end = max(x for x, _ in paths(drawn(short, long))[0])
    assert end == pytest.approx(WIDE.left + ACROSS / 2, abs=0.1)
    assert texts(drawn(short, long), "tick")[-4:] == ["3", "10", "30", "100"]


def test_a_band_is_an_area_from_low_to_high():
    band = [(1, 80, 100), (2, 60, 64)]
    root = drawn(line((1, 90), (2, 62), band=band))
    ((low, low_end, high_end, *_, high),) = areas(root)
    ((start, end),) = paths(root)
    assert low[0] == high[0] == start[0]
    assert low[1] > start[1] > high[1] >= WIDE.top
    assert low_end[1] > end[1] > high_end[1]
    high = [(x, y - 1, y + 4000) for x, y in LONG]
    ((*_, last),) = areas(drawn(line(*LONG, band=high)))
    assert last[1] == WIDE.top


def test_last_values_do_not_overlap():
    lines = [line((1, 90), (2, 57 + n / 100), name=str(n)) for n in range(5)]
    root = drawn(*lines)
    assert texts(root, "end") == [f"{57 + n / 100:.2f}" for n in (4, 3, 2, 1, 0)]
    heights = sorted(float(each.get("y")) for each in root.iter() if each.get("class") == "end")
    assert all(high - low >= 12 for low, high in pairwise(heights))
    root = drawn(line((1, 90), (2, 57.01)), line((1, 90), (9, 57.0)))  # ends at different x
    dots = [float(each.get("cy")) for each in circles(root, "dot")]
    ends = [float(each.get("y")) for each in root.iter() if each.get("class") == "end"]
    assert ends == pytest.approx([y + 4 for y in dots], abs=0.1)
    assert texts(drawn(*(line((1, 90), (2, 57)) for _ in range(30))), "end") == []


def test_points_have_their_values():
    root = drawn(line((1, 90), (2, 57.25), name="</text><script>&\"'"))
    assert texts(root, "value") == [
        f"</text><script>&\"', epoch {x}: {y}" for x, y in ((1, "90.00"), (2, "57.25"))
    ]
    many = drawn(line(*((float(n), 60 + 1 / n) for n in range(1, 2000))))
    assert 50 < len(texts(many, "value")) < 120


def test_a_ring_marks_a_point():
    (ring,) = circles(drawn(line((0, 90), (2, 70), (4, 60), ring=(2, 70))), "ring")
    assert float(ring.get("cx")) == pytest.approx((WIDE.left + WIDE.end) / 2, abs=0.1)
    assert circles(drawn(line((1, 3000), *LONG, ring=(1, 3000))), "ring") == []


VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, 1e-300, 1e300, 5e-324, 57.0, 57.0000001]),
    st.floats(50, 400),
)


@given(st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=6), max_size=4))
@settings(max_examples=80)
def test_whatever_the_values_all_is_inside(lines):
    for frame in FRAMES:
        svg = line_plot(
            [
                line(*points, ring=(points or [None])[0], band=[(x, y, 2 * y) for x, y in points])
                for points in lines
            ],
            WORDS,
            frame,
        )
        if svg is not None:
            checked(svg)


# -- ticks ----------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e11), st.floats(1.0001, 1e6))
@settings(max_examples=80)
def test_ticks_are_few_rising_and_inside(low, ratio):
    high = low * ratio
    for ticks in (log_ticks(low, high), linear_ticks(low, high)):
        values = [value for value, _ in ticks]
        assert values == sorted(set(values))
        assert all(low * 0.999999 <= value <= high * 1.000001 for value in values)
        assert 2 <= len(values) <= 10
        assert len({label for _, label in ticks}) == len(ticks)


# -- bars -----------------------------------------------------------------------------------------


def bars(*values, name="a"):
    return Bars(name, Look(0, 0), values)


def rects(labels, *shown):
    root = checked(bar_plot(labels, shown, WORDS))
    keys = ("x", "y", "width", "height")
    return [{key: float(each.get(key)) for key in keys} for each in root.iter("rect")]


def test_bars_start_at_zero_and_are_as_high_as_their_values():
    found = rects(["rare", "often"], bars(8.0, 2.0), bars(4.0, 1.0))
    assert len(found) == 4
    assert len({round(each["y"] + each["height"], 1) for each in found}) == 1
    heights = [each["height"] for each in found]  # by model, then by band
    assert heights == pytest.approx([heights[0] / n for n in (1, 4, 2, 8)], abs=0.2)
    assert sorted(each["x"] for each in found)[::2] == [found[0]["x"], found[1]["x"]]
    up, down = rects(["a", "b"], bars(5.0, -5.0))
    assert down["y"] == pytest.approx(up["y"] + up["height"], abs=0.1)
    assert down["height"] == pytest.approx(up["height"], abs=0.2)


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), min_size=1, max_size=30)
    )
)
@settings(max_examples=40)
def test_whatever_the_bars_all_is_inside(rows):
    labels = ["1,000 to 2,499"] * len(rows[0])
    for frame in FRAMES:
        svg = bar_plot(labels, [bars(*row) for row in rows], WORDS, frame)
        if svg is not None:
            checked(svg)
