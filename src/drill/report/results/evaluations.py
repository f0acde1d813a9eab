"""What `drill evaluate` found of a run: which is of its tested weights, and what belongs together.

A row says what was measured, by which settings, and of which weights. Training goes on after an
evaluation, and an evaluation may be of other weights than the run's figures are: those rows stand
beside nothing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from drill.errors import CheckpointError
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.results.run_files import as_finite, as_text, read_rows
from drill.training.run.checkpoint import fingerprint_in
from drill.training.run.folder import RunFolder

ADAPTIVE = ("dynamic", "cache")  # kinds that metrics.jsonl does not have
OWN_FILES = "files"
"""The ``split`` of a row that is of none: it names a ``text``, or a ``source`` and its
``reference``."""

TRANSLATION = "translation"  # one that it has, but for which words are right
BANDS = ("word_bands", "subword_bands")

MEASURED = {"run", "kind", "split", "tokens", "loss", "perplexity", "published", "seconds"}
MEASURED |= {"weights", "weights_epoch", "weights_step"}
MEASURED |= {"lines", "bleu", "tokenised_bleu", "chrf", "exact", *BANDS}
"""What may differ between two rows that belong together; the rest are settings, and the weights."""

UNSAID = {"batch_size", "weights_fingerprint"}  # the same in all rows that are shown

Evaluation = Mapping[str, Any]


class Pair(NamedTuple):
    """Evaluations of one kind, of the same weights by the same settings; at least one is there."""

    valid: Evaluation | None
    test: Evaluation | None

    @property
    def settings(self) -> str:
        """``window 500, theta 1, share 0.1, float32``."""
        row = self.test or self.valid or {}
        said = [_said(key, row[key]) for key in row if key not in MEASURED | UNSAID]
        return ", ".join(filter(None, said))


def read_evaluations(
    files: RunFolder, test: Mapping[str, Any], faults: list[str], remarks: list[str]
) -> tuple[Evaluation, ...]:
    """Evaluations that adapt, and words by frequency, of the weights the run was tested with.

    ``test`` is that test's line of metrics, {} where there is none. The ``latest`` of each stand
    here; what is left out because of its weights is told in ``remarks``.
    """
    path = files.evaluations
    rows: dict[int, Evaluation] = {}
    for number, row in read_rows(path, faults) if path.exists() else []:
        kind, split = as_text(row.get("kind")), as_text(row.get("split"))
        if kind is None or split is None:
            faults.append(f"{path}: line {number} names no kind and split; it is left out")
        elif as_finite(row.get("perplexity")) is None:
            continue
        elif split == OWN_FILES or "reference" in row:
            continue  # the latter alone tells it in older rows
        elif kind in ADAPTIVE or (kind == TRANSLATION and any(key in row for key in BANDS)):
            kept = {key: value for key, value in row.items() if _plain(value)}
            bands = {key: row[key] for key in BANDS if key in row}
            if not all(map(_are_bands, bands.values())):
                faults.append(f"{path}: line {number} has bands without counts; it is left out")
                continue
            rows[number] = {**kept, **bands}
    if not rows:
        return ()
    try:
        tested = _tested_weights(files, test)
    except CheckpointError as error:
        remarks.append(
            f"{path}: its evaluations are left out, since nobody can say whether they are of the "
            f"tested weights ({error})"
        )
        return ()
    others: dict[str, list[int]] = {}
    for number, each in rows.items():
        if (fault := _not_of(tested, each)) is not None:
            others.setdefault(fault, []).append(number)
    for fault, numbers in others.items():
        lines, are = ("line", "is") if len(numbers) == 1 else ("lines", "are")
        which = f"{lines} {', '.join(map(str, numbers))} {are} left out"
        remarks.append(f"{path}: {which}, since {fault}; evaluate the run again")
    left = {number for numbers in others.values() for number in numbers}
    return tuple(latest(row for number, row in rows.items() if number not in left))


def latest(rows: Iterable[Evaluation]) -> list[Evaluation]:
    """The last of each kind and split by the same settings, in the order they were made."""
    found: dict[tuple[Any, Any, str], Evaluation] = {}
    for row in rows:
        key = (row.get("kind"), row.get("split"), _group(row))
        found.pop(key, None)  # one that was made again is younger than what came between
        found[key] = row
    return list(found.values())


def paired(rows: Sequence[Evaluation], kind: str) -> Pair | None:
    """Validation and test by the same settings: the last such pair, else the last row alone.

    Rows that name no weights are passed over; older ledgers have them.
    """
    groups: dict[str, dict[Any, Evaluation]] = {}
    for row in rows:
        if row.get("kind") == kind and row.get("split") in ("valid", "test") and names_weights(row):
            group = groups.pop(_group(row), {})
            groups[_group(row)] = {**group, row["split"]: row}
    if not groups:
        return None
    whole = [group for group in groups.values() if len(group) == 2]
    last = (whole or list(groups.values()))[-1]
    return Pair(last.get("valid"), last.get("test"))


def names_weights(row: Evaluation) -> bool:
    return as_text(row.get("weights_fingerprint")) is not None


def _tested_weights(files: RunFolder, test: Mapping[str, Any]) -> str:
    """By the test's own line, which needs no weights; older runs have them only."""
    if (told := as_text(test.get("weights_fingerprint"))) is not None:
        return told
    return fingerprint_in(files.averaged if test.get("weights") == "averaged" else files.best)


def _group(row: Evaluation) -> str:
    """Equal for rows of the same weights by the same settings."""
    belongs = {key: value for key, value in row.items() if key not in MEASURED}
    return json.dumps(belongs, sort_keys=True, default=str)


def _not_of(tested: str, row: Evaluation) -> str | None:
    if not names_weights(row):
        return "no weights are named there"
    if row["weights_fingerprint"] == tested:
        return None
    kind, epoch, step = (row.get(key) for key in ("weights", "weights_epoch", "weights_step"))
    when = f" of epoch {epoch}" if epoch is not None else f" of step {step}" * (step is not None)
    return f"other weights were evaluated ({kind}{when}) than the run's figures are of"


def _said(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return key.replace("_", " ") if value else ""
    if isinstance(value, str):
        return value
    return f"{key.replace('_', ' ')} {value:g}"


def _are_bands(value: Any) -> bool:
    """Whether these are ``AccuracyBand``s as JSON has them."""
    names = {each.name for each in fields(AccuracyBand)}
    return isinstance(value, list) and all(
        isinstance(band, Mapping)
        and band.keys() == names
        and all(type(band[name]) is int or (name, band[name]) == ("high", None) for name in names)
        for band in value
    )


def _plain(value: Any) -> bool:
    """Whether JSON can hold it again."""
    return isinstance(value, str | int) or as_finite(value) is not None
