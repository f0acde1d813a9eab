"""Reads the files of a run folder; a damaged file adds a sentence to ``faults`` and raises nothing.

``as_number`` and its like check single values of JSON.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from drill.files import read_regular

NumberedRow = tuple[int, dict[str, Any]]


def read_settings(path: Path, faults: list[str]) -> dict[str, Any]:
    raw = _bytes(path, faults, "the settings of the run are unknown")
    if raw is None:
        return {}
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        faults.append(f"{path}: byte {error.start} is not UTF-8; the settings are unknown")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        faults.append(f"{path}: is not TOML ({_one_line(error)}); the settings are unknown")
    return {}


def read_environment(path: Path, faults: list[str]) -> dict[str, Any]:
    raw = _bytes(path, faults, "device, commit and seed are unknown")
    if raw is None:
        return {}
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        faults.append(f"{path}: is not JSON; device, commit and seed are unknown")
        return {}
    if isinstance(found, dict):
        return found
    faults.append(f"{path}: is not a JSON object; device, commit and seed are unknown")
    return {}


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


def read_rows(path: Path, faults: list[str]) -> list[NumberedRow]:
    """(line number, row) of a .jsonl file. A last line without its end is still being written."""
    raw = _bytes(path, faults, "no epoch has ended yet")
    rows = []
    for number, line in enumerate((raw or b"").split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append((number, row))
        else:
            faults.append(f"{path}: line {number} is not a JSON object; it is left out")
    return rows


def _bytes(path: Path, faults: list[str], so: str) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        faults.append(f"{path}: is missing; {so}")
    except OSError as error:
        faults.append(f"{path}: cannot be read ({error.strerror}); {so}")
    return None


# -- values ---------------------------------------------------------------------------


def as_number(value: Any) -> float | None:
    """A float; training writes NaN and infinities as strings, since JSON has none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_finite(value: Any) -> float | None:
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None


def as_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
