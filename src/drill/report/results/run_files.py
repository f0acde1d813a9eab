"""Where a run was started, and numbers of its files, which may be NaN."""

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any


def read_starts(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The environment of the first start of a run, and of every resumption."""
    first = {key: value for key, value in environment.items() if key != "resumed"}
    return [first, *environment.get("resumed", ())]


def joined_text(environment: Mapping[str, Any], key: str) -> str | None:
    """A text over all starts: ``abc1234, then def5678`` where it changed; None: unknown."""
    values = [start.get(key) for start in read_starts(environment)]
    if not any(values):
        return None
    return ", then ".join(text or "unknown" for text, _ in groupby(values))


def as_number(value: Any) -> float | None:
    """Training writes NaN and infinities as strings, since JSON has none."""
    return None if value is None else float(value)


def as_finite(value: Any) -> float | None:
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None


def known(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]
