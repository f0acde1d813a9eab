import math

import pytest

from drill.report.tables import number_format


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (57.049, "57.05"), (999.99, "999.99"), (2977.09, "2,977"), (1.25e6, "1.2e+06"),
        (math.inf, "inf"), (math.nan, "nan"), (None, ""),
    ],
)  # fmt: skip
def test_perplexities(value, text):
    assert number_format.perplexity(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.31, "+0.3"), (-1.24, "-1.2"), (0.04, "0.0"), (-0.04, "0.0"), (math.inf, "+inf"),
        (None, ""),
    ],
)  # fmt: skip
def test_changes_carry_their_sign(value, text):
    assert number_format.change(value) == text
    assert number_format.change(math.nan) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (185.0, "3 min 05 s"),
        (3599.4, "59 min 59 s"), (3599.6, "1 h 00 min"), (86_399.0, "1 d 00 h"),
        (1e9, "11,574 d 02 h"), (math.nan, ""), (-1.0, ""), (None, ""),
    ],
)  # fmt: skip
def test_durations_have_their_two_largest_units(seconds, text):
    assert number_format.duration(seconds) == text
