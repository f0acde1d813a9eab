"""Means over seeds and paired differences: Student's t without further packages."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """The mean difference of ``n`` pairs with the same seed. ``half`` is half the width of the
    confidence interval; it and the p-value are None where there is one pair."""

    n: int
    mean: float
    half: float | None
    p: float | None


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None of one value."""
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
    """Two-sided: how probable a t at least this far from 0 is by chance.

    The closed form for a whole number of degrees of freedom: Abramowitz and Stegun, 26.7.3 and 4.
    """
    angle, odd = math.atan(abs(t) / math.sqrt(freedom)), freedom % 2
    term, total = math.cos(angle) ** odd, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    inside = math.sin(angle) * total
    return 1.0 - (2 / math.pi * (angle + inside) if odd else inside)


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
