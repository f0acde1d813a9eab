"""Reads the files of a run folder; a damaged file adds a sentence to ``faults``."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from drill.files import read_regular


def read_table(
    path: Path, parse: Callable[[str], Any], faults: list[str], effect: str
) -> dict[str, Any]:
    """A TOML or JSON file; {} if it cannot be read, and ``effect`` says what is unknown then."""
    text = _read(path, faults, effect)
    found = {} if text is None else _parsed(parse, text)
    if found is None:
        kind = "TOML" if path.suffix == ".toml" else "a JSON object"
        faults.append(f"{path}: is not {kind}; {effect}")
    return found or {}


def read_rows(path: Path, faults: list[str]) -> list[dict[str, Any]]:
    """The rows of a .jsonl file. A last line without its end is still being written."""
    rows = []
    lines = (_read(path, faults, "no epoch has ended yet") or "").split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        if (row := _parsed(json.loads, line)) is None:
            faults.append(f"{path}: line {number} is not a JSON object; it is left out")
        else:
            rows.append(row)
    return rows


def _parsed(parse: Callable[[str], Any], text: str) -> dict[str, Any] | None:
    try:
        found = parse(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read(path: Path, faults: list[str], effect: str) -> str | None:
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except OSError as error:
        fault = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
        faults.append(f"{path}: {fault}; {effect}")
        return None


def read_starts(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The environment of the first start of a run, and of every resumption."""
    first = {key: value for key, value in environment.items() if key != "resumed"}
    return [first, *environment.get("resumed", ())]


def joined_text(environment: Mapping[str, Any], key: str) -> str | None:
    """A text over all starts: ``abc1234, then def5678`` where it changed; None: unknown."""
    values = [each.get(key) for each in read_starts(environment)]
    if not any(values):
        return None
    return ", then ".join(text or "unknown" for text, _ in groupby(values))


def as_number(value: Any) -> float | None:
    """Training writes NaN and infinities as strings, since JSON has none."""
    return None if value is None else float(value)


def as_finite(value: Any) -> float | None:
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None


def known(values: Iterable[float | None]) -> list[float]:
    """Those that are not None."""
    return [value for value in values if value is not None]
