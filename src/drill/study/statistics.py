"""Means over seeds and paired differences: Student's t without further packages."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

TERMS, PRECISION = 300, 1e-15  # of the continued fraction
CONFIDENCE = 0.95


class Difference(NamedTuple):
    """Of pairs with the same seed. ``half`` is that of the confidence interval; it and the p-value
    are None where there is one pair."""

    n: int
    mean: float
    half: float | None
    p: float | None


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None of one value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Ours less theirs with a two-sided paired t-test.

    Args:
        ours: a value for each seed.
        theirs: of the same seeds, in the same order.

    Returns:
        The mean difference, its confidence interval and the p-value.
    """
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    middle, error = mean(differences), standard_error(differences)
    if error is None:
        return Difference(len(differences), middle, None, None)
    freedom = len(differences) - 1
    if error == 0.0:
        return Difference(len(differences), middle, 0.0, float(middle == 0.0))
    half = t_quantile((1 + CONFIDENCE) / 2, freedom) * error
    return Difference(len(differences), middle, half, p_value(middle / error, freedom))


def p_value(t: float, freedom: int) -> float:
    """Two-sided: how probable a t at least this far from 0 is by chance."""
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(probability: float, freedom: int) -> float:
    """The t below which a share ``probability`` > 0.5 lies."""
    low, high = 0.0, 1.0
    while 1 - p_value(high, freedom) / 2 < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - p_value(middle, freedom) / 2 < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised I_x(a, b), by its continued fraction (Lentz)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1.0 + term / c, 1.0 / (1.0 + term * d)
            result *= c * d
        if abs(c * d - 1.0) < PRECISION:
            break
    return front * result
