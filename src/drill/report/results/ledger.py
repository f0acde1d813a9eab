"""The ledger: a JSON line for every measured result, bad ones too.

Lines are only ever appended, by ``record``, from the files of a run folder. A row has the recipe,
seed, commit and device, so that the run can be repeated. What `drill evaluate` finds after a result
was recorded is a line of its own that refers to the result by its fingerprint.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from drill.errors import ReportError
from drill.files import open_append
from drill.report.results.evaluations import latest
from drill.report.results.run_files import as_finite, as_text, as_whole, joined_text, read_starts
from drill.report.results.runs import RunSummary, read_run
from drill.training.schema import with_new_names

START_KEYS = ("commit", "device", "torch", "precision", "world_size", "started")


class LedgerError(ReportError):
    """A ledger that cannot be used, or a run that cannot be recorded."""


class AlreadyRecorded(LedgerError):
    """The ledger has this result."""


@dataclass(frozen=True)
class Row:
    """One result. Fields are as in ``RunSummary``; None: unknown."""

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
    recorded: str  # time of recording, ISO 8601
    note: str
    settings_digest: str
    fingerprint: str
    evaluations: list[dict[str, Any]]  # of `drill evaluate`: dynamic, cache, words by frequency
    extra: dict[str, Any]  # further figures
    # What follows is missing in older rows.
    curve: list[list[float | None]] = field(default_factory=list)
    """[epoch, valid, valid_published] of the last validation of each epoch."""
    validations: list[list[float | None]] = field(default_factory=list)
    """[step, valid, train, elapsed] of every validation: train is the training perplexity since the
    epoch began, elapsed is in seconds. Older rows have the first two or three."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Of a resumed run: ``START_KEYS`` of the first start and of every resumption."""
    settings: dict[str, Any] = field(default_factory=dict)  # recipe.toml
    changes: list[str] | None = None
    """How the settings differ from the recipe; None: drill has no recipe of that name."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of a result that was recorded before."""

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


AnyRow = Row | Evaluated | Failed
KINDS: Mapping[str, type[AnyRow]] = {"result": Row, "evaluation": Evaluated, "failed": Failed}
OLD_KEYS = {"lives": "starts"}


def record(
    run_folder: Path | str,
    ledger_path: Path | str,
    note: str = "",
    extra: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
    now: datetime | None = None,
) -> Row:
    """Append the result of a run to a ledger, completely or not at all.

    A result that is there already (the same settings and perplexities, in whatever folder) is an
    error unless ``force``; evaluations made since are appended. A run that was trained further is
    another result. Concurrent writers wait for each other.

    Returns:
        The row, with all evaluations of the result.
    """
    path = Path(ledger_path)
    now = datetime.now(UTC) if now is None else now
    if now.tzinfo is None:
        raise ValueError(f"record: now needs a time zone, such as UTC; {now} has none")
    run = read_run(run_folder)
    row = _row(run, note, extra or {}, now)
    with _locked(path) as (stream, content):
        rows = dict(_parsed(path, content))
        if None in rows.values():
            raise LedgerError(
                f"{path}: holds benchmark rows; record runs in another file, such as "
                f"{path.with_name('runs.jsonl')}"
            )
        same = {n: r for n, r in rows.items() if getattr(r, "fingerprint", "") == row.fingerprint}
        added: list[AnyRow] = [row]
        if same and not force:
            added = _evaluated_since(row, [*same.values()])
            if not added:
                raise AlreadyRecorded(
                    f"{run_folder}: is already in {path}, line {min(same)}; use --force to record "
                    "it again"
                )
        _append(stream, content, added)
    return _merged([*same.values(), *added])[-1]


def record_failure(failed: Failed, ledger_path: Path | str) -> None:
    """Append a failed job to a ledger."""
    with _locked(Path(ledger_path)) as (stream, content):
        _append(stream, content, [failed])


def read(ledger: Path | str) -> list[Row]:
    """The results of a ledger, oldest first; benchmark rows are skipped."""
    return _merged(_read_all(Path(ledger)))


def read_failures(ledger: Path | str) -> list[Failed]:
    """The failed jobs of a ledger, oldest first."""
    return [row for row in _read_all(Path(ledger)) if isinstance(row, Failed)]


def _merged(rows: Sequence[AnyRow | None]) -> list[Row]:
    """Results with all their evaluations."""
    found: list[Row] = []
    for row in rows:
        if isinstance(row, Row):
            found.append(row)
        elif isinstance(row, Evaluated):
            for n, result in enumerate(found):
                if result.fingerprint == row.fingerprint:
                    every = latest([*result.evaluations, row.evaluation])
                    found[n] = replace(result, evaluations=[dict(each) for each in every])
    return found


def _evaluated_since(row: Row, same: Sequence[AnyRow | None]) -> list[AnyRow]:
    name = {"run": row.name}  # older ledgers have a path there
    known = [each | name for recorded in _merged(same) for each in recorded.evaluations]
    return [
        Evaluated(row.fingerprint, each, row.recorded, row.note)
        for each in row.evaluations
        if each | name not in known
    ]


def _row(run: RunSummary, note: str, extra: Mapping[str, Any], now: datetime) -> Row:
    if run.faults:
        raise LedgerError(f"{run.faults[0]}, so the run is not recorded")
    if not run.curve:
        raise LedgerError(f"{run.folder}: has no epoch yet; record it when one has ended")
    values: dict[str, Any] = {each.name: getattr(run, each.name, None) for each in fields(Row)}
    values |= {key: joined_text(run.environment, key) for key in ("torch", "precision")}
    values["world_size"] = as_whole(run.environment.get("world_size"))
    values["started"] = as_text(run.environment.get("started"))
    starts = read_starts(run.environment)
    resumed = [{key: each.get(key) for key in START_KEYS} for each in starts]
    values["starts"] = resumed if len(starts) > 1 else []
    # A folder means nothing on another machine, so runs are given by name.
    values["evaluations"] = [
        {**each, "run": run.name} if "run" in each else dict(each) for each in run.evaluations
    ]
    settings = dict(run.settings)
    if isinstance(settings.get("init_from"), str):
        settings["init_from"] = Path(settings["init_from"]).name
    values["settings"] = json.loads(json.dumps(settings, default=str), parse_constant=str)
    values["extra"] = json.loads(json.dumps({**run.scores, **extra}, allow_nan=False))
    values["curve"] = [
        [each.epoch, as_finite(each.valid), as_finite(each.valid_published)] for each in run.curve
    ]
    values["validations"] = [
        [each.step, as_finite(each.valid), as_finite(each.train), each.elapsed]
        for each in run.validations
    ]
    values |= {"note": note, "recorded": now.astimezone(UTC).isoformat(timespec="seconds")}
    return Row(**values)


# -- the file -------------------------------------------------------------------------------------


def _read_all(path: Path) -> list[AnyRow | None]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be read ({error.strerror}); name a ledger, such as runs/ledger.jsonl"
        ) from None
    return [row for _, row in _parsed(path, _without_cut_line(content))]


def _parsed(path: Path, content: bytes) -> Iterator[tuple[int, AnyRow | None]]:
    """(line number, row); None for a benchmark's row."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if "benchmark" in found:
                yield number, None
                continue
            found = {OLD_KEYS.get(key, key): value for key, value in found.items()}
            if "settings" in found:
                found["settings"] = with_new_names(found["settings"])
            kind = KINDS[found.pop("kind", None)]
            names = {each.name for each in fields(kind)}
            yield number, kind(**{key: found[key] for key in found if key in names})
        except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
            raise LedgerError(
                f"{path}: line {number} is not a row of a ledger; restore it from a copy, or "
                "remove it"
            ) from None


def _without_cut_line(content: bytes) -> bytes:
    """A killed writer may leave a part of the last line."""
    last = content.rpartition(b"\n")[2]
    try:
        json.loads(last or b"{}")
    except (ValueError, RecursionError):
        return content.removesuffix(last)
    return content


@contextmanager
def _locked(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """The open ledger, for one writer at a time, and its complete lines."""
    import fcntl  # not on Windows, which can still read ledgers

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_append(path), "a+b", buffering=0) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(0)
            yield stream, _without_cut_line(stream.read())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place"
        ) from None


def _append(stream: BinaryIO, content: bytes, rows: Sequence[AnyRow]) -> None:
    """Write ``rows`` after ``content``; a failed write is undone."""
    names = {kind: name for name, kind in KINDS.items()}
    lines = [json.dumps({"kind": names[type(row)], **asdict(row)}) for row in rows]  # ASCII
    start = "" if not content or content.endswith(b"\n") else "\n"
    left = memoryview((start + "".join(f"{line}\n" for line in lines)).encode("ascii"))
    stream.truncate(len(content))
    try:
        while left:
            left = left[os.write(stream.fileno(), left) :]
        os.fsync(stream.fileno())
    except OSError:
        stream.truncate(len(content))
        raise
