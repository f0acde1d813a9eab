"""How figures are written: the same way in every table, plot and page."""

import math

from drill.training import progress

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
    """``0:42``, ``2:30:05``."""
    return NOTHING if seconds is None else progress.duration(seconds)
