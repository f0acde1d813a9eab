"""A run is a folder of plain files.

    recipe.toml             the resolved settings
    vocabulary.json         words and their counts in the training text
    subwords.json           of a translator instead: subwords of both languages
    environment.json        versions, device, commit, seed
    metrics.jsonl           rows of training loss, of each validation and of the test
    evaluations.jsonl       results of `drill evaluate`
    test.de.hyp             a translator's last translations of a split, line by line
    target_counts.json      how often each label is a target in training
    best.safetensors        the weights with the lowest validation loss
    averaged.safetensors    the mean of a translator's last weights, if that is better
    last/                   what an exact resume needs

Files are written atomically. ``metrics.jsonl`` and ``evaluations.jsonl`` grow; a resume cuts the
metrics back to the size at the last checkpoint. The keys of its rows are in ``training/state.py``,
those of one task alone in ``language_modeling/train.py`` and ``translation/train.py``.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from drill.errors import CheckpointError, DrillError, RunFolderError
from drill.files import append_line, atomic_write, remove_parts
from drill.training.run import checkpoint

logger = logging.getLogger("drill")

NO_LOCKS = "there are no file locks here: do not train twice in one folder"


class RunFolder:
    """Paths and writers of one run. The constructor touches no file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.toml"
        self.vocabulary = self.path / "vocabulary.json"
        self.subwords = self.path / "subwords.json"
        self.target_counts = self.path / "target_counts.json"
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "evaluations.jsonl"
        self.best = self.path / "best.safetensors"
        self.averaged = self.path / "averaged.safetensors"
        self.last = self.path / "last" / "checkpoint.safetensors"
        self._pending: list[Mapping[str, Any]] = []  # rows for the next write of metrics.jsonl
        self._tensorboard: Any = None
        self._describe: Callable[[], None] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder.

        Removes what a killed process has written in part. A folder in which nothing was trained
        has no lock file afterwards, and one that was made here is removed.
        """
        lock = self.path / ".lock"
        new_folders = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as stream:
            if not _lock(stream.fileno()):
                raise RunFolderError(
                    f"{self.path}: another process is training here; wait for it or choose another "
                    "name"
                )
            for path in (self.path / "*", self.last.with_name("*")):
                remove_parts(path)
            try:
                yield
            finally:
                if not self.has_trained():
                    with contextlib.suppress(OSError):  # a folder with other files stays
                        lock.unlink()
                        for path in new_folders:
                            path.rmdir()

    def before_first_write(self, write: Callable[[], None]) -> None:
        """Call ``write``, which describes the run, before the first checkpoint or row of metrics.

        So a start that fails leaves the folder as it was.
        """
        self._describe = write

    def _begin(self) -> None:
        describe, self._describe = self._describe, None
        if describe is not None:
            describe()

    def has_trained(self) -> bool:
        """Whether there is something to resume from or to use."""
        return any(path.exists() for path in (self.last, self.best, self.metrics))

    def write_json(self, path: Path, value: Any) -> None:
        self.write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, path: Path, text: str) -> None:
        atomic_write(path, text.encode("utf-8"))

    def hypotheses(self, split: str, language: str) -> Path:
        """Translations of a split; ``*`` stands for any."""
        return self.path / f"{split}.{language}.hyp"

    def write_lines(self, path: Path, lines: Iterable[str]) -> None:
        self.write_text(path, "".join(f"{line}\n" for line in lines))

    def working_folder(self) -> str | None:
        """Where the run was trained last; None if environment.json does not say."""
        environment = self.read_environment() or {}
        path: str | None = [environment, *environment.get("resumed", [])][-1].get("working_folder")
        return path

    def read_environment(self) -> dict[str, Any] | None:
        """environment.json: where the run was trained. None if there is none."""
        if not self.environment.exists():
            return None
        with readable(self.environment, "restore it from a copy, or remove it"):
            environment: dict[str, Any] = json.loads(self.environment.read_bytes())
            if not all(isinstance(entry, dict) for entry in environment.get("resumed", [])):
                raise TypeError("resumed is no list of objects")
            return environment

    # -- metrics ----------------------------------------------------------------------------------

    def append_later(self, row: Mapping[str, Any]) -> None:
        """``append`` with the next row or checkpoint."""
        self._pending.append(row)

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows to ``metrics.jsonl``; they are on disk when this returns."""
        rows, self._pending = (*self._pending, *rows), []
        if not rows:
            return
        self._begin()
        self.path.mkdir(parents=True, exist_ok=True)
        append_line(self.metrics, b"".join(map(_line, rows)))
        self._show_in_tensorboard(rows)

    def append_test(self, row: Mapping[str, Any]) -> None:
        """``append`` the row that ends a run, with the fingerprint of the tested weights.

        They are the best ones, unless ``row["weights"]`` is "averaged".
        """
        tested = self.averaged if row.get("weights") == "averaged" else self.best
        self.append({**row, "weights_fingerprint": checkpoint.fingerprint_in(tested)})

    def keep_evaluation(self, row: Mapping[str, Any]) -> None:
        """Add a row to ``evaluations.jsonl``, all or nothing."""
        append_line(self.evaluations, _line(row))

    def metrics_size(self) -> int:
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Drop what was appended after a checkpoint that knew of ``size`` bytes."""
        self._pending = []
        if not self.metrics.exists() and size == 0:
            return
        if self.metrics_size() < size:
            raise RunFolderError(
                f"{self.metrics}: lacks rows that the checkpoint knows of; restore it from a copy, "
                f"or remove {self.last} to start over"
            )
        os.truncate(self.metrics, size)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``, without a last one that was cut off."""
        return read_rows(self.metrics, ("kind", "epoch"))

    def test_row(self) -> dict[str, Any] | None:
        """The row of the test, the last one of a finished run; None before."""
        rows = self.rows()
        return rows[-1] if rows and rows[-1].get("kind") == "test" else None

    def _show_in_tensorboard(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Also write the numbers for TensorBoard, if it is installed; a resume writes all again."""
        if self._tensorboard is None:
            self._tensorboard = _tensorboard_writer(self.path / "tensorboard")
            rows = self.rows()
        if self._tensorboard is not False:
            for row in rows:
                step = row.get("step", row["epoch"])  # an epoch may have several validations
                for key, value in row.items():
                    if isinstance(value, float) and key != "elapsed":
                        self._tensorboard.add_scalar(f"{row['kind']}/{key}", value, step)
            self._tensorboard.flush()

    # -- weights ----------------------------------------------------------------------------------

    def save_best(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        self._begin()
        checkpoint.save(self.best, tensors, numbers)

    def save_last(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        self._begin()
        self.append()
        checkpoint.save(self.last, tensors, {**numbers, "metrics_size": self.metrics_size()})

    def save_averaged(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        checkpoint.save(self.averaged, tensors, numbers)

    def recent(self, step: int | str) -> Path:
        """The weights of a validation, saved for averaging; ``*`` stands for any."""
        return self.last.with_name(f"recent-{step}.safetensors")

    def forget_recent(self, steps: Iterable[int]) -> None:
        """Remove the recent weights of all other steps."""
        names = {self.recent(step).name for step in steps}
        for path in self.last.parent.glob(self.recent("*").name):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        return checkpoint.load(self.last) if self.last.exists() else None

    def last_numbers(self) -> dict[str, Any]:
        return checkpoint.load_numbers(self.last)


def json_row(row: Mapping[str, Any], *, ensure_ascii: bool = True, nan: str | None = "nan") -> str:
    """A row as one line of JSON, which has no NaN and no infinity: strings, or ``nan`` for NaN."""
    names = {"NaN": nan, "Infinity": "inf", "-Infinity": "-inf"}
    plain = json.loads(json.dumps(dict(row)), parse_constant=names.__getitem__)
    return json.dumps(plain, ensure_ascii=ensure_ascii)


def _line(row: Mapping[str, Any]) -> bytes:
    return json_row(row).encode("utf-8") + b"\n"


def read_rows(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a file, which all have ``keys``; a last line without its end is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and row.keys() >= {*keys}:
                rows.append(row)
        if len(rows) < number:
            fault = f"line {number} is no JSON object with {' and '.join(keys)}"
            hint = "restore the file from a copy, or delete the line"
            raise RunFolderError(fault, key=str(path), hint=hint)
    return rows


def _lock(handle: int) -> bool:
    """False if another process has the lock."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # on Windows, and on some file systems
        logger.warning(NO_LOCKS)
    return True


def _tensorboard_writer(folder: Path) -> Any:
    """A writer without earlier events, or False if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()
    return SummaryWriter(str(folder))


@contextmanager
def readable(path: Path, hint: str) -> Iterator[None]:
    """Inside, values read from ``path`` are used: what is missing or wrong is a CheckpointError."""
    try:
        yield
    except DrillError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: does not fit this run ({type(error).__name__}: {error}); {hint}"
        ) from None
