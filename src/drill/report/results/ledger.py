"""The ledger: one JSON line for every measured result, bad ones too.

Rows are only ever added, by ``record``, from what a run has written; nobody types a number. A row
names the recipe, the seed, the commit and the device, so that it can be measured again. What
`drill evaluate` finds of a result that stands there already is a row that names it.
"""

import json
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from drill.errors import ReportError
from drill.files import mend_of_writing
from drill.report.results.evaluations import Evaluation, latest
from drill.report.results.run_files import as_finite, lives, over_lives
from drill.report.results.runs import RunSummary, read_run

RESULT, EVALUATION, FAILED = "result", "evaluation", "failed"  # tell rows from those of other tools
OF_LIVES = ("commit", "device", "torch", "precision", "world_size", "started")


class LedgerError(ReportError):
    """A ledger that cannot be used, or a run that cannot be recorded."""


class AlreadyRecorded(LedgerError):
    """A result that the ledger has."""


@dataclass(frozen=True)
class Row:
    """One result; fields as in ``RunSummary``, None is what the run did not say."""

    name: str
    recipe: str | None
    layer: str | None
    parameters: int | None
    seed: int | None
    epochs: int
    best_epoch: int | None
    valid: float | None
    test: float | None
    valid_published: float | None
    test_published: float | None
    seconds: float | None
    tokens_per_second: float | None
    device: str | None
    commit: str | None
    torch: str | None
    precision: str | None
    world_size: int | None
    started: str | None
    recorded: str  # when the row was written, ISO 8601
    note: str
    settings_digest: str
    fingerprint: str
    evaluations: list[dict[str, Any]]
    """By `drill evaluate`: with dynamic evaluation, with a cache, or words by frequency."""
    extra: dict[str, Any]  # other figures
    curve: list[list[float | None]] = field(default_factory=list)
    """[epoch, valid, valid_published] of the last validation of each; older rows have none."""
    validations: list[list[float | None]] = field(default_factory=list)
    """[step, valid, train, elapsed] of every validation, inside epochs too: train is the perplexity
    of training since the epoch began, elapsed are seconds of the run; older rows have fewer."""
    lives: list[dict[str, Any]] = field(default_factory=list)
    """``OF_LIVES`` of each life of a run that was resumed; none of a run that was not."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The tables of ``recipe.toml``, whole; older rows have none."""
    changes: list[str] | None = None
    """What they change of the recipe, as it was when the row was written; None of older rows,
    and where drill has no such recipe."""


@dataclass(frozen=True)
class Evaluated:
    """What was found of a result after it had been recorded."""

    fingerprint: str  # of the result
    evaluation: dict[str, Any]
    recorded: str
    note: str


@dataclass(frozen=True)
class Failed:
    """A job of a study that ended without a result."""

    name: str  # of the run
    stage: str
    seed: int
    identity: str  # of the settings
    message: str
    seconds: float
    recorded: str


KINDS: Mapping[str, type[Row | Evaluated | Failed]] = {
    RESULT: Row,
    EVALUATION: Evaluated,
    FAILED: Failed,
}
HINTS: Mapping[str, Any] = get_type_hints(Row)


def record(
    run_folder: Path | str,
    ledger_path: Path | str,
    note: str = "",
    extra: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
    now: datetime | None = None,
) -> Row:
    """Add the result of a run to a ledger, whole or not at all, and give the row.

    A result that stands there already is refused unless ``force``: the same settings with the same
    perplexities, wherever the folder lies. If it was evaluated since, that alone is added. A run
    that went on is another result. Writers wait for one another; the row is on disk when this
    returns.
    """
    path = Path(ledger_path)
    now = datetime.now(UTC) if now is None else now
    if now.tzinfo is None:
        raise ValueError(f"record: now needs a time zone, such as UTC; {now} has none")
    run = read_run(run_folder)
    row = _row(run, note, _plain(run_folder, {**run.scores, **(extra or {})}), now)
    with _locked(path) as handle:
        held = _read_whole(handle)
        rows = list(_rows(path, held))
        same = [number for number, other in rows if other and other.fingerprint == row.fingerprint]
        added: list[Row | Evaluated] = [row]
        if same and not force:
            added = [*_evaluated_since(row, [other for _, other in rows])]
            if not added:
                raise AlreadyRecorded(
                    f"{run_folder}: is already in {path}, line {same[0]}; say --force to record it "
                    "again"
                )
        if any(other is None for _, other in rows):
            raise LedgerError(
                f"{path}: holds benchmark rows; record runs in another file, such as "
                f"{path.with_name('runs.jsonl')}"
            )
        start = b"" if not held or held.endswith(b"\n") else b"\n"
        _append(path, handle, start + b"".join(map(_line, added)), len(held))
    together = _merged([other for _, other in rows if other] + added)
    return next(each for each in reversed(together) if each.fingerprint == row.fingerprint)


def record_failure(failed: Failed, ledger_path: Path | str) -> None:
    """Add a failed job to a ledger."""
    path = Path(ledger_path)
    with _locked(path) as handle:
        held = _read_whole(handle)
        start = b"" if not held or held.endswith(b"\n") else b"\n"
        _append(path, handle, start + _line(failed), len(held))


def read(ledger: Path | str) -> list[Row]:
    """The results of a ledger, oldest first; rows of benchmarks are passed over."""
    path = Path(ledger)
    return _merged([row for _, row in _rows(path, _held(path)) if row is not None])


def read_failures(ledger: Path | str) -> list[Failed]:
    """The failed jobs of a ledger, oldest first."""
    path = Path(ledger)
    return [row for _, row in _all_rows(path, _held(path)) if isinstance(row, Failed)]


def _held(path: Path) -> bytes:
    try:
        return _without_torn_end(path.read_bytes())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be read ({error.strerror}); name a ledger, such as runs/ledger.jsonl"
        ) from None


def _merged(rows: Sequence[Row | Evaluated]) -> list[Row]:
    """Results with all that was found of them, ``latest`` of the evaluations."""
    found: list[Row] = []
    for row in rows:
        if isinstance(row, Row):
            found.append(row)
            continue
        for place, result in enumerate(found):
            if result.fingerprint == row.fingerprint:
                each = latest([*result.evaluations, row.evaluation])
                found[place] = replace(result, evaluations=[dict(one) for one in each])
    return found


def _evaluated_since(row: Row, held: Sequence[Row | Evaluated | None]) -> Iterator[Evaluated]:
    """The evaluations of a recorded result that the ledger does not hold."""
    known: list[dict[str, Any]] = []
    for other in held:
        if other is not None and other.fingerprint == row.fingerprint:
            known += other.evaluations if isinstance(other, Row) else [other.evaluation]
    names = {"run": row.name}  # older ledgers have paths there
    for evaluation in row.evaluations:
        if all(evaluation | names != other | names for other in known):
            yield Evaluated(row.fingerprint, evaluation, row.recorded, row.note)


def _row(run: RunSummary, note: str, extra: dict[str, Any], now: datetime) -> Row:
    if run.faults:
        raise LedgerError(f"{run.faults[0]}, so the run is not recorded")
    if not run.curve:
        raise LedgerError(f"{run.folder}: has no epoch yet; record it when one has ended")
    values = {key: getattr(run, key) for key in HINTS if hasattr(run, key)}
    values["evaluations"] = [_by_name(each, run.name) for each in run.evaluations]
    values["curve"] = [
        [each.epoch, as_finite(each.valid), as_finite(each.valid_published)] for each in run.curve
    ]
    values["validations"] = [
        [each.step, as_finite(each.valid), as_finite(each.train), each.elapsed]
        for each in run.validations
    ]
    values["settings"] = _in_json(_without_place(run.settings))
    for key in ("torch", "precision"):
        values[key] = over_lives(run.environment, key)
    for key in ("world_size", "started"):
        found = run.environment.get(key)
        values[key] = found if _fits(found, HINTS[key]) else None
    told = lives(run.environment)
    if len(told) > 1:
        values["lives"] = [{key: life.get(key) for key in OF_LIVES} for life in told]
    recorded = now.astimezone(UTC).isoformat(timespec="seconds")
    return Row(**values, recorded=recorded, note=note, extra=extra)


def _by_name(evaluation: Evaluation, name: str) -> dict[str, Any]:
    """The run as the ledger calls it: where its folder lay means nothing elsewhere."""
    return {**evaluation, "run": name} if "run" in evaluation else dict(evaluation)


def _without_place(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run that finetuning started from by its name, for the same reason."""
    start = settings.get("start")
    return {**settings, "start": Path(start).name} if isinstance(start, str) else dict(settings)


def _plain(folder: Path | str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` as it will be read again."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(extra), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise LedgerError(
            f"{folder}: extra holds what JSON cannot ({error}); give texts, finite numbers, lists "
            "and tables of these"
        ) from None
    return plain


def _in_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has more kinds of values than JSON, such as dates: those become texts."""
    text = json.dumps(settings, default=str)
    found: dict[str, Any] = json.loads(text, parse_constant=str)  # NaN and the infinities too
    return found


# -- lines ----------------------------------------------------------------------------------------


def _line(row: Row | Evaluated | Failed) -> bytes:
    kind = next(name for name, each in KINDS.items() if isinstance(row, each))
    text = json.dumps({"kind": kind, **asdict(row)})  # ASCII: file names need not be UTF-8
    return text.encode("ascii") + b"\n"


def _rows(path: Path, held: bytes) -> Iterator[tuple[int, Row | Evaluated | None]]:
    """(line number, row) of results and evaluations; None for a benchmark's row."""
    for number, row in _all_rows(path, held):
        if not isinstance(row, Failed):
            yield number, row


def _all_rows(path: Path, held: bytes) -> Iterator[tuple[int, Row | Evaluated | Failed | None]]:
    """(line number, row) of every line with something in it."""
    for number, line in enumerate(held.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise LedgerError(
                f"{path}: line {number} is not a JSON object; restore it from a copy, or remove it"
            )
        if "benchmark" in found:
            yield number, None
        elif fault := _fault(found):
            raise LedgerError(f"{path}: line {number} is no result; {fault}")
        else:
            kind = KINDS[found["kind"]]
            yield number, kind(**{key: found[key] for key in get_type_hints(kind) if key in found})


def _fault(found: dict[str, Any]) -> str | None:
    if (kind := KINDS.get(str(found.get("kind")))) is None:
        return f"it has kind {found.get('kind')!r} and not {RESULT!r}"
    unsaid = (MISSING, MISSING)
    needed = [each.name for each in fields(kind) if (each.default, each.default_factory) == unsaid]
    if missing := [key for key in needed if key not in found]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"{', '.join(missing[:3])}{more} missing"
    for key, hint in get_type_hints(kind).items():
        if key in found and not _fits(found[key], hint):
            return f"{key} is {found[key]!r}"
    return None


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of the kind that a field of ``Row`` has."""
    for kind in get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        if kind is float and type(value) in (int, float):
            return True
        if get_origin(kind) is list and isinstance(value, list):
            return all(_fits(each, get_args(kind)[0]) for each in value)
        if type(value) is (get_origin(kind) or kind):
            return True
    return False


# -- the file -------------------------------------------------------------------------------------


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A handle on the ledger, made where it is missing, that no other writer holds."""
    try:
        import fcntl
    except ImportError:
        raise LedgerError(
            f"{path}: this system has no file locks to keep writers apart; record on Linux or macOS"
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                break
            os.close(handle)  # while we waited, another file took its place
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        yield handle
    finally:
        os.close(handle)


def _read_whole(handle: int) -> bytes:
    """All lines; what a killed writer has left of a last one is removed from the file."""
    with os.fdopen(os.dup(handle), "rb") as stream:
        stream.seek(0)
        held = stream.read()
    whole = _without_torn_end(held)
    if len(whole) < len(held):
        os.ftruncate(handle, len(whole))
    return whole


def _without_torn_end(held: bytes) -> bytes:
    last = held.rpartition(b"\n")[2]
    try:
        json.loads(last or b"{}")
    except (ValueError, RecursionError):
        return held[: len(held) - len(last)]
    return held


def _append(path: Path, handle: int, content: bytes, size: int) -> None:
    """Add ``content`` after ``size`` bytes; a row that cannot be written whole is taken back."""
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
        if size == 0:  # a new name must reach the disk too
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    except OSError as error:
        os.ftruncate(handle, size)
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> LedgerError:
    fault = error.strerror or type(error).__name__
    return LedgerError(
        f"{path}: cannot be written ({fault}); {mend_of_writing(error, 'choose another place')}"
    )
