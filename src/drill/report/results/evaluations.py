"""Evaluations of a run by `drill evaluate`, `dynamic`, `cache`, `words` and `analyse`.

A row has what was measured, the settings, and the fingerprint of the weights. Only evaluations of
the weights that the run was tested with are used: a run may have been trained further since.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drill.errors import CheckpointError
from drill.report.results.run_files import as_finite
from drill.training.run.checkpoint import fingerprint_in
from drill.training.run.folder import RunFolder, read_rows

DYNAMIC_AND_CACHE = ("dynamic", "cache")  # kinds that metrics.jsonl does not have
HELD_OUT_WORDS = "words"  # as above: scores of held-out words
ANALYSIS = "analyse"  # loss by frequency and rank of the log-probabilities, on the test text
RECORDED = (*DYNAMIC_AND_CACHE, HELD_OUT_WORDS, ANALYSIS)
OWN_FILES = "files"
"""The ``split`` of an evaluation of other files: ``text``, or ``source`` and ``reference``."""

WORD_ACCURACY = "translation"  # for accuracy by word frequency; metrics.jsonl has the scores
BANDS = ("word_bands", "subword_bands")

MEASURED = {"run", "kind", "split", "tokens", "loss", "perplexity", "perplexity_all_tokens"}
MEASURED |= {"seconds", "weights", "weights_epoch", "weights_step", "weights_steps", "batch_size"}
MEASURED |= {"lines", "bleu", "tokenised_bleu", "chrf", "exact", "bits_per_byte", "bands", *BANDS}
MEASURED |= {"rank_tokens", "rank_absolute", "rank_relative", "rank_bound"}
MEASURED |= {"types", "text_perplexity", "mass_elsewhere"}
MEASURED |= {f"{of}{key}" for of in ("", "backoff_") for key in ("rank", "median_rank", "mass")}
MEASURED |= {"among", "backoff_perplexity", "mixed_perplexity"}
"""Keys that may differ between rows of the same weights and settings; all others are settings."""

NOT_SHOWN = {*MEASURED, "weights_fingerprint"}

Evaluation = Mapping[str, Any]


class Pair(NamedTuple):
    """Evaluations of the same kind, weights and settings; at least one is not None."""

    valid: Evaluation | None
    test: Evaluation | None

    @property
    def settings(self) -> str:
        """``window 500, theta 1, lambda 0.1, float32``."""
        row = self.test or self.valid or {}
        parts = [_setting(key, row[key]) for key in row if key not in NOT_SHOWN]
        return ", ".join(filter(None, parts))


def read_evaluations(
    files: RunFolder, test: Mapping[str, Any], remarks: list[str]
) -> tuple[Evaluation, ...]:
    """The ``latest`` of all kinds but plain evaluation, of the tested weights.

    ``test`` is the row of the test in metrics.jsonl. Sentences on lines of other weights are added
    to ``remarks``.
    """
    path = files.evaluations
    rows = [
        {key: value for key, value in row.items() if value is not None}
        for row in read_rows(path, ["kind"])
        if as_finite(row.get("perplexity")) is not None
        and row.get("split") != OWN_FILES
        and (row["kind"] in RECORDED or any(key in row for key in BANDS))
    ]
    if not rows:
        return ()
    try:
        tested = test.get("weights_fingerprint") or fingerprint_in(files.best)
    except CheckpointError as error:
        remarks.append(f"{path}: left out, since the tested weights cannot be read ({error})")
        return ()
    used = [row for row in rows if row.get("weights_fingerprint") == tested]
    if others := len(rows) - len(used):
        remarks.append(f"{path}: left out {others} of other weights than the test; evaluate again")
    return tuple(latest(used))


def latest(rows: Iterable[Evaluation]) -> list[Evaluation]:
    """The last row of each kind, split and settings, oldest first."""
    last_rows: dict[tuple[Any, Any, str], Evaluation] = {}
    for row in rows:
        key = (row.get("kind"), row.get("split"), _group(row))
        last_rows.pop(key, None)  # a repeated one moves to the end
        last_rows[key] = row
    return list(last_rows.values())


def last_pair(rows: Sequence[Evaluation], kind: str) -> Pair | None:
    """Validation and test with the same settings: the last such pair, else the last row alone."""
    groups: dict[str, dict[Any, Evaluation]] = {}
    for row in rows:
        if row.get("kind") == kind and row.get("split") in ("valid", "test"):
            group = groups.pop(_group(row), {})  # the last changed comes last
            groups[_group(row)] = {**group, row["split"]: row}
    pairs = [Pair(group.get("valid"), group.get("test")) for group in groups.values()]
    preferred = [pair for pair in pairs if None not in pair] or pairs
    return preferred[-1] if preferred else None


def _group(row: Evaluation) -> str:
    """Equal for rows of the same weights and settings."""
    settings = {key: value for key, value in row.items() if key not in MEASURED}
    return json.dumps(settings, sort_keys=True, default=str)


def _setting(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return key.replace("_", " ") if value else ""
    if isinstance(value, str):
        return value
    return f"{key.replace('_', ' ')} {value:g}"
