"""How figures are written: the same way in every table, plot and page."""

import math

NOTHING = ""  # an unknown figure


def perplexity(value: float | None) -> str:
    """``57.05``, ``2,977``, ``1.2e+06``; a perplexity above 1,000 needs no decimals."""
    if value is None:
        return NOTHING
    if not math.isfinite(value) or abs(value) >= 1e6:
        return f"{value:.1e}" if math.isfinite(value) else str(value)
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def fixed(value: float | None, decimals: int) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def change(value: float | None, decimals: int = 1) -> str:
    """With its sign: ``+0.3``, ``-1.2``; what rounds to nothing is ``0.0``."""
    if value is None or math.isnan(value):
        return NOTHING
    text = f"{value:+.{decimals}f}"
    return text if any(digit in "123456789i" for digit in text) else text[1:]


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    """The two largest units: ``42 s``, ``3 min 05 s``, ``2 h 30 min``, ``4 d 01 h``."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if round(seconds) < 3600:
        size, small, large, ratio = 1, "s", "min", 60
    elif round(seconds / 60) < 24 * 60:
        size, small, large, ratio = 60, "min", "h", 60
    else:
        size, small, large, ratio = 3600, "h", "d", 24
    larger, rest = divmod(round(seconds / size), ratio)
    return f"{larger:,} {large} {rest:02d} {small}"
