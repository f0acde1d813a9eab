"""Reads the files of a run folder; a damaged file adds a sentence to ``faults``, it raises nothing.

``as_number`` and its like check single values of JSON.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from drill.files import read_regular

NumberedRow = tuple[int, dict[str, Any]]


def read_settings(path: Path, faults: list[str]) -> dict[str, Any]:
    return _table(path, faults, lambda raw: tomllib.loads(raw.decode()), "settings are unknown")


def read_environment(path: Path, faults: list[str]) -> dict[str, Any]:
    return _table(path, faults, json.loads, "device, commit and seed are unknown")


def _table(
    path: Path, faults: list[str], parse: Callable[[bytes], Any], effect: str
) -> dict[str, Any]:
    raw = _bytes(path, faults, effect)
    if raw is None:
        return {}
    found = _parsed(parse, raw)
    if found is None:
        kind = "TOML" if path.suffix == ".toml" else "a JSON object"
        faults.append(f"{path}: is not {kind}; {effect}")
    return found or {}


def _parsed(parse: Callable[[bytes], Any], raw: bytes) -> dict[str, Any] | None:
    try:
        found = parse(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_rows(path: Path, faults: list[str]) -> list[NumberedRow]:
    """(line number, row) of a .jsonl file. A last line without its end is still being written."""
    rows = []
    lines = (_bytes(path, faults, "no epoch has ended yet") or b"").split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        if (row := _parsed(json.loads, line)) is None:
            faults.append(f"{path}: line {number} is not a JSON object; it is left out")
        else:
            rows.append((number, row))
    return rows


def _bytes(path: Path, faults: list[str], effect: str) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        faults.append(f"{path}: is missing; {effect}")
    except OSError as error:
        faults.append(f"{path}: cannot be read ({error.strerror}); {effect}")
    return None


def read_starts(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The environment of the first start of a run, and of every resumption."""
    first = {key: value for key, value in environment.items() if key != "resumed"}
    resumed = environment.get("resumed")
    later = resumed if isinstance(resumed, list) else []
    return [first, *(each for each in later if isinstance(each, Mapping))]


def joined_text(environment: Mapping[str, Any], key: str) -> str | None:
    """A text over all starts: ``abc1234, then def5678`` where it changed; None: unknown."""
    values = [as_text(each.get(key)) for each in read_starts(environment)]
    if not any(values):
        return None
    return ", then ".join(text or "unknown" for text, _ in groupby(values))


# -- values ---------------------------------------------------------------------------------------


def as_number(value: Any) -> float | None:
    """A float; training writes NaN and infinities as strings, since JSON has none."""
    if type(value) is str and value not in ("nan", "inf", "-inf"):
        return None
    try:
        return float(value) if type(value) in (int, float, str) else None
    except OverflowError:
        return math.inf


def as_finite(value: Any) -> float | None:
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None


def as_whole(value: Any) -> int | None:
    return value if type(value) is int else None


def as_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
