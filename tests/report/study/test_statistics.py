"""Student's t against tables, and paired differences against worked examples."""

import pytest

from drill.report.study.statistics import p_value, paired_difference, standard_error, t_quantile

# Two-sided 5% and 1% points, as printed in tables of the t distribution.
TABLE = {1: (12.706, 63.657), 2: (4.303, 9.925), 4: (2.776, 4.604), 10: (2.228, 3.169)}
TABLE |= {3: (3.182, 5.841), 30: (2.042, 2.750), 120: (1.980, 2.617), 1000: (1.962, 2.581)}


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_and_p_values_are_those_of_tables(freedom):
    five, one = TABLE[freedom]
    assert t_quantile(0.975, freedom) == pytest.approx(five, abs=6e-4)
    assert t_quantile(0.995, freedom) == pytest.approx(one, abs=6e-4)
    assert p_value(five, freedom) == pytest.approx(0.05, abs=2e-4)
    assert p_value(-one, freedom) == pytest.approx(0.01, abs=1e-4)


def test_paired_differences():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.4641 with 2 degrees."""
    found = paired_difference([11.0, 12.0, 13.0], [10.0, 10.0, 10.0])
    assert (found.n, found.mean) == (3, 2.0)
    assert found.half == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert found.p == pytest.approx(0.0741799, rel=1e-5)


def test_one_pair_has_no_interval_and_equal_differences_no_width():
    assert paired_difference([1.0], [3.0]) == (1, -2.0, None, None)
    assert paired_difference([1.0, 2.0], [1.0, 2.0]) == (2, 0.0, 0.0, 1.0)
    assert paired_difference([2.0, 3.0], [1.0, 2.0]) == (2, 1.0, 0.0, 0.0)


def test_the_standard_error():
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx((5 / 3) ** 0.5 / 2)
    assert standard_error([1.0]) is None
