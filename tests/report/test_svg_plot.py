"""Plots: right places, nothing outside, whatever the values."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drill.report.page.svg_plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Bars,
    Line,
    Look,
    bar_plot,
    line_plot,
)
from drill.report.tables.number_format import linear_ticks, log_ticks
from tests.report.drawing import checked, paths, texts

WORDS = {
    "identifier": "here",
    "title": "A title",
    "description": "What it shows.",
    "x_label": "epoch",
    "y_label": "perplexity",
}
BAR_WORDS = {key: value for key, value in WORDS.items() if key != "x_label"}


def line(*points, name="a", ring=None):
    return Line(name, Look(0, 0), points, ring)


def drawn(*lines):
    return checked(line_plot(lines, **WORDS))


def test_a_line_runs_from_corner_to_corner():
    ((first, second, third),) = paths(drawn(line((0, 400), (2, 200), (4, 150))))
    assert first[0] == LEFT
    assert third[0] == WIDTH - RIGHT
    assert second[0] == pytest.approx((first[0] + third[0]) / 2, abs=0.1)
    assert TOP < first[1] < second[1] < third[1] < HEIGHT - BOTTOM
    # equal ratios are equal heights
    ratio = (second[1] - first[1]) / (third[1] - second[1])
    assert ratio == pytest.approx(math.log(2) / math.log(4 / 3), rel=0.02)


def test_the_drawing_has_a_name_and_a_description():
    root = drawn(line((1, 2), (2, 1)))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"] == "here-title here-description"
    found = {each.attrib["id"]: each.text for each in root.iter() if "id" in each.attrib}
    assert found == {"here-title": "A title", "here-description": "What it shows."}


def test_values_that_are_no_numbers_are_gaps():
    root = drawn(line((1, 90), (2, 80), (3, math.nan), (4, 70), (5, math.inf), (6, 60), (7, 50)))
    assert [len(piece) for piece in paths(root)] == [2, 2]
    lone = [each for each in root.iter("circle") if each.get("class") == "lone"]
    assert len(lone) == 1  # epoch 4 stands by itself


def test_one_epoch_is_a_dot():
    root = drawn(line((1, 90)))
    assert paths(root) == []
    assert len(list(root.iter("circle"))) >= 1


@pytest.mark.parametrize(
    "points", [[], [(1, math.nan)], [(1, -5.0)], [(1, 0.0)], [(math.nan, 5.0)]]
)
def test_without_a_value_there_is_no_drawing(points):
    assert line_plot([line(*points)], **WORDS) is None
    assert line_plot([], **WORDS) is None


LONG = [(float(n), 60.0 + 1 / n) for n in range(3, 20)]


def test_high_beginnings_are_cut_off_where_the_line_leaves():
    ((start, *_, end),) = paths(drawn(line((1, 3000), (2, 500), *LONG)))
    assert start[1] == TOP
    between = [LEFT + (WIDTH - LEFT - RIGHT) * n / 19 for n in (2, 3)]
    assert between[0] < start[0] < between[1]
    assert end[0] == WIDTH - RIGHT


def test_of_a_few_points_none_is_cut_off():
    ((start, *_),) = paths(drawn(line((1, 3000), (2, 500), (3, 100), (4, 60))))
    assert start[1] > TOP
    assert start[0] == pytest.approx(LEFT + (WIDTH - LEFT - RIGHT) / 4, abs=0.1)


def test_a_line_that_leaves_and_comes_back_has_two_pieces():
    pieces = paths(drawn(line((1, 60), (2, 900), *LONG)))
    assert [len(piece) for piece in pieces] == [2, 1 + len(LONG)]
    assert pieces[0][1][1] == pieces[1][0][1] == TOP


def test_a_run_whose_best_is_bad_is_still_on_the_plot():
    root = drawn(line((1, 60), (2, 58)), line((1, 900), (2, 800), name="bad"))
    assert len(paths(root)) == 2


def test_ends_carry_their_values_apart_from_one_another():
    lines = [line((1, 90), (2, 57 + n / 100), name=str(n)) for n in range(5)]
    root = drawn(*lines)
    assert texts(root, "end") == [f"{57 + n / 100:.2f}" for n in (4, 3, 2, 1, 0)]
    heights = sorted(float(each.get("y")) for each in root.iter() if each.get("class") == "end")
    assert all(high - low >= 12 for low, high in pairwise(heights))


def test_values_of_lines_that_end_elsewhere_need_no_room():
    near, far = line((1, 90), (2, 57.01), name="near"), line((1, 90), (9, 57.0), name="far")
    root = drawn(near, far)
    dots = [float(each.get("cy")) for each in root.iter("circle") if each.get("class") == "dot"]
    said = [float(each.get("y")) for each in root.iter() if each.get("class") == "end"]
    assert said == pytest.approx([y + 4 for y in dots], abs=0.1)


def test_many_lines_carry_no_values():
    assert texts(drawn(*(line((1, 90), (2, 57)) for _ in range(30))), "end") == []


def test_a_ring_marks_a_point():
    root = drawn(line((0, 90), (2, 70), (4, 60), ring=(2, 70)))
    (ring,) = [each for each in root.iter("circle") if each.get("class") == "ring"]
    assert float(ring.get("cx")) == pytest.approx((LEFT + WIDTH - RIGHT) / 2, abs=0.1)
    off = drawn(line((1, 3000), *LONG, ring=(1, 3000)))
    assert not [each for each in off.iter("circle") if each.get("class") == "ring"]


def test_names_are_escaped():
    root = drawn(line((1, 2), (2, 1), name="</title><script>&\"'"))
    assert any(each.text == "</title><script>&\"'" for each in root.iter("title"))


VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, 1e-300, 1e300, 5e-324, 57.0, 57.0000001]),
    st.floats(50, 400),
)


@given(st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=6), max_size=4))
@settings(max_examples=200)
def test_whatever_the_values_all_is_inside(lines):
    svg = line_plot([line(*points, ring=(points or [None])[0]) for points in lines], **WORDS)
    if svg is not None:
        checked(svg)


# -- ticks ----------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e11), st.floats(1.0001, 1e6))
@settings(max_examples=200)
def test_ticks_are_few_rising_and_inside(low, ratio):
    high = low * ratio
    for ticks in (log_ticks(low, high), linear_ticks(low, high)):
        values = [value for value, _ in ticks]
        assert values == sorted(set(values))
        assert all(low * 0.999999 <= value <= high * 1.000001 for value in values)
        assert 2 <= len(values) <= 10
        assert len({label for _, label in ticks}) == len(ticks)


def test_ticks_are_round():
    assert [label for _, label in log_ticks(56, 170)] == ["60", "80", "100", "120", "140", "160"]
    assert [label for _, label in log_ticks(50, 3100)] == ["100", "300", "1,000", "3,000"]
    assert [label for _, label in log_ticks(0.9, 40)] == ["1", "3", "10", "30"]
    assert [label for _, label in linear_ticks(0, 600)] == [
        "0",
        "100",
        "200",
        "300",
        "400",
        "500",
        "600",
    ]
    assert [label for _, label in linear_ticks(0, 1)] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert [value for value, _ in linear_ticks(1, 3, whole=True)] == [1, 2, 3]


# -- bars -----------------------------------------------------------------------------------------


def bars(*values, name="a"):
    return Bars(name, Look(0, 0), values)


def test_bars_stand_on_zero_and_are_as_high_as_they_say():
    root = checked(bar_plot(["rare", "often"], [bars(8.0, 2.0), bars(4.0, 1.0)], **BAR_WORDS))
    rects = [
        {key: float(each.get(key)) for key in ("x", "y", "width", "height")}
        for each in root.iter("rect")
    ]
    assert len(rects) == 4
    floor = {round(each["y"] + each["height"], 1) for each in rects}
    assert len(floor) == 1
    heights = [each["height"] for each in rects]  # by model, then by band
    assert heights == pytest.approx(
        [heights[0], heights[0] / 4, heights[0] / 2, heights[0] / 8], abs=0.2
    )
    assert sorted(each["x"] for each in rects)[::2] == [rects[0]["x"], rects[1]["x"]]


def test_bars_below_zero_hang_from_it():
    root = checked(bar_plot(["a", "b"], [bars(5.0, -5.0)], **BAR_WORDS))
    up, down = root.iter("rect")
    zero = float(up.get("y")) + float(up.get("height"))
    assert float(down.get("y")) == pytest.approx(zero, abs=0.1)
    assert float(down.get("height")) == pytest.approx(float(up.get("height")), abs=0.2)


def test_bars_that_are_no_numbers_are_left_out():
    root = checked(bar_plot(["a", "b", "c"], [bars(math.nan, 1.0, math.inf)], **BAR_WORDS))
    assert len(list(root.iter("rect"))) == 1
    assert bar_plot(["a"], [bars(math.nan)], **BAR_WORDS) is None
    assert bar_plot([], [], **BAR_WORDS) is None


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), min_size=1, max_size=30)
    )
)
@settings(max_examples=100)
def test_whatever_the_bars_all_is_inside(rows):
    labels = ["1,000 to 2,499"] * len(rows[0])
    svg = bar_plot(labels, [bars(*row) for row in rows], **BAR_WORDS)
    if svg is not None:
        checked(svg)
