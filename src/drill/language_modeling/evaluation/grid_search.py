"""A grid search whose finished cells are saved, so that a restart continues."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drill.data import DataError
from drill.files import OnProgress, atomic_write, read_bytes
from drill.language_modeling.evaluation.perplexity import Perplexity

GridPoint = Mapping[str, float]

IN_FILES = {"decay": "lamb"}  # names of settings in files of searches, where they differ


@dataclass(frozen=True)
class Cell:
    """Settings and their result; None where the loss was not finite."""

    settings: GridPoint
    result: Perplexity | None


@dataclass(frozen=True)
class GridSearch:
    """Every cell of a grid, in the order of the grid."""

    cells: list[Cell]

    @property
    def best(self) -> Cell:
        """The cell of the lowest loss, the first of several."""
        best = min(self.cells, key=lambda cell: cell.result.loss if cell.result else math.inf)
        if best.result is None:
            raise FloatingPointError(
                f"all {len(self.cells)} cells diverged; search among smaller settings"
            )
        return best


def run_grid(
    points: Sequence[GridPoint],
    evaluate: Callable[..., Perplexity],
    *,
    key: str,
    tokens: int,
    file: Path | str | None,
    progress: OnProgress | None,
) -> GridSearch:
    """Evaluate every point whose result is not yet in ``file`` under ``key``.

    ``key`` names all else that the results depend on: weights, text and so on; a file can have the
    results of several. ``evaluate`` takes the settings of a point and ``progress``; its
    FloatingPointError counts as diverged. ``tokens`` is how many a point predicts.
    """
    if not points:
        raise ValueError("grid: there are no settings to try; give at least one value of each")
    path = None if file is None else Path(file)
    done = _read(path).get(key, {})
    cells = []
    for number, point in enumerate(points):

        def report(count: int, _: int, before: int = number * tokens) -> None:
            if progress is not None:
                progress(before + count, len(points) * tokens)

        name = json.dumps({IN_FILES.get(k, k): value for k, value in sorted(point.items())})
        if name in done:
            report(tokens, tokens)
            fields = done[name]
            result = None if fields is None else Perplexity(**fields)
        else:
            try:
                result = evaluate(**point, progress=report)
            except FloatingPointError:
                result = None
            if result is not None and not math.isfinite(result.nll):
                result = None
            _add(path, key, name, result)
        cells.append(Cell(point, result))
    return GridSearch(cells)


def _read(path: Path | None) -> dict[str, dict[str, dict[str, Any] | None]]:
    """{key: {settings as JSON: fields of the result, null where it diverged}}"""
    if path is None or not path.exists():
        return {}
    try:
        content = json.loads(read_bytes(path))
        return {key: dict(cells) for key, cells in content["searches"].items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(
            f"{path}: no searches ({type(error).__name__}: {error}); remove it to search again"
        ) from None


def _add(path: Path | None, key: str, name: str, result: Perplexity | None) -> None:
    if path is None:
        return
    searches = _read(path)  # another search may have written meanwhile
    searches.setdefault(key, {})[name] = None if result is None else vars(result)
    atomic_write(path, json.dumps({"searches": searches}, indent=1).encode())
