"""The files of a run, read with patience: a fault becomes a sentence, the rest is used.

Every reader takes the list that its sentences go to.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

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
    faults.append(f"{path}: holds no JSON object; device, commit and seed are unknown")
    return {}


def lives(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a run was trained on at first, and each time it went on."""
    first = {key: value for key, value in environment.items() if key != "resumed"}
    resumed = environment.get("resumed")
    later = resumed if isinstance(resumed, list) else []
    return [first, *(life for life in later if isinstance(life, Mapping))]


def over_lives(environment: Mapping[str, Any], key: str) -> str | None:
    """A text of every life, ``abc1234, then def5678`` where it changed; None where none has it."""
    told = [as_text(life.get(key)) for life in lives(environment)]
    if not any(told):
        return None
    changes = [text or "unknown" for text, _ in groupby(told)]
    return ", then ".join(changes)


def read_rows(path: Path, faults: list[str]) -> list[NumberedRow]:
    """(line number, row) of a .jsonl file. What follows the last line end is being written."""
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
        return path.read_bytes()
    except FileNotFoundError:
        faults.append(f"{path}: is missing; {so}")
    except OSError as error:
        faults.append(f"{path}: cannot be read ({error.strerror}); {so}")
    return None


# -- values of any kind ---------------------------------------------------------------------------


def as_number(value: Any) -> float | None:
    """A float; training writes what JSON has no word for as the strings nan and inf."""
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
