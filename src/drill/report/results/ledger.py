"""The ledger: a JSON line for every measured result, bad ones too.

Lines are only ever appended, by ``record_run``, from the files of a run folder. A row has the
recipe, seed, commit and device, so that the run can be repeated. What `drill evaluate` finds after
a result was recorded is a line of its own that refers to the result by its fingerprint.
"""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drill.errors import ReportError
from drill.files import append_line
from drill.report.results.evaluations import latest
from drill.report.results.run_files import as_finite, joined_text
from drill.report.results.runs import RunFigures, RunSummary, read_run, rounded_epochs
from drill.training.schema import with_new_names


class LedgerError(ReportError):
    """A ledger that cannot be used, or a run that cannot be recorded."""


class AlreadyRecorded(LedgerError):
    """The ledger has this result."""


@dataclass(frozen=True)
class Row(RunFigures):
    """One result."""

    torch: str | None
    precision: str | None
    recorded: str  # time of recording, ISO 8601
    note: str
    fingerprint: str
    evaluations: list[dict[str, Any]]  # of `drill evaluate`: dynamic, cache, words by frequency
    extra: dict[str, Any]  # further figures
    # What follows is missing in older rows.
    curve: list[list[float | None]] = field(default_factory=list)
    """[epoch, valid, valid_all_tokens] of the last validation of each epoch."""
    validations: list[list[float | None]] = field(default_factory=list)
    """[step, valid, train, elapsed] of every validation: train is the training perplexity since the
    epoch began, elapsed is in seconds. Older rows have the first two or three."""
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
class FailedJob:
    """A job of a study that ended without a result."""

    name: str  # of the run
    stage: str
    seed: int
    identity: str  # of the settings
    message: str
    seconds: float
    recorded: str


AnyRow = Row | Evaluated | FailedJob
KINDS: Mapping[str, type[AnyRow]] = {"result": Row, "evaluation": Evaluated, "failed": FailedJob}


def record_run(
    run_folder: Path | str,
    ledger_path: Path | str,
    note: str = "",
    extra: Mapping[str, Any] | None = None,
    *,
    kinds: Container[str] | None = None,
    force: bool = False,
    now: datetime | None = None,
) -> Row:
    """Append the result of a run to a ledger, completely or not at all.

    A result that is there already (the same settings and perplexities, in whatever folder) is an
    error unless ``force``; evaluations made since are appended. A run that was trained further is
    another result. Concurrent writers wait for each other.

    Args:
        run_folder: of a run that has a result.
        ledger_path: a .jsonl file; it is made if it is missing.
        note: a remark to store with the result.
        extra: further figures to store.
        kinds: of the evaluations to store, like ``dynamic``; all by default.
        force: add a result a second time.
        now: the time to store.

    Returns:
        The row, with all evaluations of the result.
    """
    path = Path(ledger_path)
    row = _row(read_run(run_folder), note, extra or {}, now or datetime.now(UTC))
    if kinds is not None:
        row = replace(row, evaluations=[each for each in row.evaluations if each["kind"] in kinds])
    with _locked(path) as rows:
        same = [other for other in rows if getattr(other, "fingerprint", "") == row.fingerprint]
        added: list[AnyRow] = [row]
        if same and not force:
            name = {"run": row.name}  # older ledgers have a path there
            known = [each | name for recorded in _merged(same) for each in recorded.evaluations]
            added = [
                Evaluated(row.fingerprint, evaluation, row.recorded, row.note)
                for evaluation in row.evaluations
                if evaluation | name not in known
            ]
            if not added:
                raise AlreadyRecorded(
                    f"is already in {path}", key=str(run_folder), hint="use --force to add it again"
                )
        rows += added
    return _merged([*same, *added])[-1]


def record_failure(failed: FailedJob, ledger_path: Path | str) -> None:
    with _locked(Path(ledger_path)) as rows:
        rows.append(failed)


def read_ledger(ledger: Path | str) -> list[Row]:
    """Read a ledger.

    Args:
        ledger: a .jsonl file.

    Returns:
        Its results, oldest first; benchmark rows are skipped.
    """
    return _merged(_read_all(Path(ledger)))


def read_failures(ledger: Path | str) -> list[FailedJob]:
    return [row for row in _read_all(Path(ledger)) if isinstance(row, FailedJob)]


def _merged(rows: Sequence[AnyRow]) -> list[Row]:
    """Results with all their evaluations."""
    results: list[Row] = []
    for row in rows:
        if isinstance(row, Row):
            results.append(row)
        elif isinstance(row, Evaluated):
            for n, result in enumerate(results):
                if result.fingerprint == row.fingerprint:
                    evaluations = latest([*result.evaluations, row.evaluation])
                    results[n] = replace(result, evaluations=[dict(each) for each in evaluations])
    return results


def _row(run: RunSummary, note: str, extra: Mapping[str, Any], now: datetime) -> Row:
    if not run.curve:
        raise LedgerError("has no epoch yet; record it when one has ended", key=str(run.folder))
    if not run.environment:
        raise LedgerError("has no environment.json; copy it from the run", key=str(run.folder))
    settings = dict(run.settings)
    if "init_from" in settings:
        settings["init_from"] = Path(settings["init_from"]).name  # paths are of this machine only
    values: dict[str, Any] = {each.name: getattr(run, each.name, None) for each in fields(Row)}
    values |= {key: joined_text(run.environment, key) for key in ("torch", "precision")}
    values |= {
        "evaluations": [
            {**each, "run": run.name} if "run" in each else dict(each) for each in run.evaluations
        ],
        "settings": json.loads(json.dumps(settings, default=str), parse_constant=str),
        "extra": json.loads(json.dumps({**run.extra, **extra}, allow_nan=False)),
        "curve": [
            [rounded_epochs(e.epochs_done), as_finite(e.valid), as_finite(e.valid_all_tokens)]
            for e in run.curve
        ],
        "validations": [
            [point.step, as_finite(point.valid), as_finite(point.train), point.elapsed]
            for point in run.validations
        ],
        "note": note,
        "recorded": now.astimezone(UTC).isoformat(timespec="seconds"),
    }
    return Row(**values)


# -- the file -------------------------------------------------------------------------------------


def _read_all(path: Path) -> list[AnyRow]:
    """All rows except those of benchmarks."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot be read ({error.strerror})", key=str(path)) from None
    rows = []
    for number, line in enumerate(_without_cut_line(content).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if "benchmark" in values:
                continue
            if "settings" in values:
                values["settings"] = with_new_names(values["settings"])
            kind = KINDS[values.pop("kind", None)]
            names = {each.name for each in fields(kind)}
            rows.append(kind(**{key: values[key] for key in values if key in names}))
        except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
            raise LedgerError(
                f"line {number} is not a row of a ledger", key=str(path), hint="remove that line"
            ) from None
    return rows


def _without_cut_line(content: bytes) -> bytes:
    """A killed writer may leave a part of the last line."""
    last = content.rpartition(b"\n")[2]
    try:
        json.loads(last or b"{}")
    except (ValueError, RecursionError):
        return content.removesuffix(last)
    return content


@contextmanager
def _locked(path: Path) -> Iterator[list[AnyRow]]:
    """The rows, for one writer at a time; those that the block adds are written, all or none."""
    import fcntl  # not on Windows, which can still read ledgers

    names = {kind: name for name, kind in KINDS.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            rows = _read_all(path)
            count = len(rows)
            yield rows
            added = [json.dumps({"kind": names[type(row)], **asdict(row)}) for row in rows[count:]]
            content = _without_cut_line(path.read_bytes())
            stream.truncate(len(content))
            first = "\n" if content and not content.endswith(b"\n") else ""
            append_line(path, (first + "\n".join(added) + "\n").encode("ascii"))
    except OSError as error:
        raise LedgerError(f"cannot be written ({error.strerror})", key=str(path)) from None
