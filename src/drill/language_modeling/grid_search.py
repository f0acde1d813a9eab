"""A search over settings, cell by cell; each finished cell is on disk, so a restart goes on."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drill.data import DataError
from drill.files import atomic_write, read_bytes
from drill.language_modeling.perplexity import Perplexity, Progress

KIND = "drill searches"

Settings = Mapping[str, float]


@dataclass(frozen=True)
class Cell:
    """Settings and what came of them; None where the loss was not finite."""

    settings: Settings
    result: Perplexity | None


@dataclass(frozen=True)
class Search:
    """Every cell of a grid, in the order of the grid."""

    cells: list[Cell]

    @property
    def best(self) -> Cell:
        """The cell of the lowest loss, the first of several."""
        finite = [cell for cell in self.cells if cell.result is not None]
        if not finite:
            raise FloatingPointError(
                f"all {len(self.cells)} cells diverged; search among smaller settings"
            )
        return min(finite, key=lambda cell: cell.result.loss if cell.result else math.inf)


def grid(
    points: Sequence[Settings],
    evaluate: Callable[[Settings, Progress], Perplexity],
    *,
    key: str,
    tokens: int,
    file: Path | str | None,
    progress: Progress | None,
    report: Callable[[Cell], None] | None,
) -> Search:
    """Evaluate every point that ``file`` does not hold yet under ``key``.

    ``key`` names all that the results depend on beside the settings of a point: weights, text,
    and so on. A file serves several keys, so it never gives a result of something else and never
    loses one. A point whose evaluation raises FloatingPointError counts as diverged; Stalled says
    nothing about a point, so it ends the search, and a restart goes on there.
    ``tokens`` is how many a point predicts; ``report`` sees each cell, also those from the file.
    """
    if not points:
        raise ValueError("grid: there are no settings to try; give at least one value of each")
    path = None if file is None else Path(file)
    done = {} if path is None else _read(path).get(key, {})
    cells = []
    for number, point in enumerate(points):

        def here(count: int, _: int, before: int = number * tokens) -> None:
            if progress is not None:
                progress(before + count, len(points) * tokens)

        name = _name(point)
        if name in done:
            result = done[name]
            here(tokens, tokens)
        else:
            try:
                result = _finite(evaluate(point, here))
            except FloatingPointError:
                result = None
            if path is not None:
                _add(path, key, name, result)
        cells.append(Cell(point, result))
        if report is not None:
            report(cells[-1])
    return Search(cells)


# -- the file: {"kind": ..., "searches": {key: {settings: result}}} --------------------------------


def _read(path: Path) -> dict[str, dict[str, Perplexity | None]]:
    if not path.exists():
        return {}
    try:
        held = json.loads(read_bytes(path))
        if held["kind"] != KIND:
            raise ValueError(f"it holds {held['kind']!r}")
        return {
            key: {name: _result(cell) for name, cell in cells.items()}
            for key, cells in held["searches"].items()
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: holds no searches ({type(error).__name__}: {error}); remove it to search anew"
        ) from None


def _add(path: Path, key: str, name: str, result: Perplexity | None) -> None:
    searches = _read(path)  # another search may have written meanwhile
    searches.setdefault(key, {})[name] = result
    plain = {
        key: {name: result and vars(result) for name, result in cells.items()}
        for key, cells in searches.items()
    }
    text = json.dumps({"kind": KIND, "searches": plain}, indent=1, allow_nan=False)
    atomic_write(path, text.encode("utf-8"))


def _name(point: Settings) -> str:
    return json.dumps(dict(sorted(point.items())))  # floats as they are, to the last bit


def _result(cell: Any) -> Perplexity | None:
    if cell is None:
        return None
    nll, tokens, columns = (cell[field] for field in ("nll", "tokens", "columns"))
    sizes = type(tokens) is int and type(columns) is int and tokens > 0 and columns > 0
    if not (sizes and type(nll) is float and math.isfinite(nll)):
        raise ValueError(f"{cell} is no result")
    return Perplexity(nll, tokens, columns)


def _finite(result: Perplexity) -> Perplexity | None:
    return result if math.isfinite(result.nll) else None
