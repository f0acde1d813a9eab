"""What `drill evaluate` finds, as a row of evaluations.jsonl and as a line on the screen."""

import math
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from drill.data import UNK
from drill.errors import SettingsError
from drill.language_modeling.perplexity import Perplexity
from drill.report.results.evaluations import OWN_FILES


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


SHOWN = {"run", "weights", "precision", "kind", "split", "tokens", "loss", "perplexity"}
SHOWN |= {"published", "seconds", "batch_size", "as_published", "statistics_columns"}
SHOWN |= {"weights_epoch", "weights_step", "weights_fingerprint", "text", "sha256", "unknown"}
"""What a line says in words, or not at all; the rest are settings."""

OTHER_WEIGHTS = "the weights give a word of the text no probability; evaluate others, or train anew"
MENDS = {
    "plain": OTHER_WEIGHTS,
    "dynamic": "the weights have run away; take a smaller --lr or a larger --pull",
    "cache": "a word that the cache does not hold has no probability; take a smaller --share",
    "translation": OTHER_WEIGHTS,
}


def text_of(row: dict[str, Any]) -> str:
    """What was read: a split of the run's corpus, a file, or the first of two."""
    own = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if own else row["split"])


def evaluation_row(
    kind: str, text: Mapping[str, Any], found: Perplexity, start: float, settings: dict[str, Any]
) -> dict[str, Any]:
    """``text`` says which one was read."""
    return {
        "kind": kind,
        **text,
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "published": found.published_perplexity,
        "seconds": round(time.monotonic() - start, 3),
        "batch_size": found.columns,
        **settings,
    }


def evaluation_line(row: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} {row[key]}" for key in row if key not in SHOWN)
    if row.get("as_published"):
        settings += ", skipping what the released code skips"
    if "statistics_columns" in row:
        settings += f", gradient statistics of {in_columns(row['statistics_columns'])}"
    unknown = f" ({row['unknown']:,} of them {UNK})" if row.get("unknown") else ""
    return (
        f"{row['kind']} {text_of(row):5}  perplexity {row['perplexity']:.3f}  "
        f"(as published numbers are counted: {row['published']:.3f})  loss {row['loss']:.4f}  "
        f"{row['tokens']:,} tokens{unknown} in {in_columns(row['batch_size'])}  "
        f"{row['seconds']:.1f} s" + (f"  [{settings}]" if settings else "")
    )


def in_columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def refuse_infinity(rows: Iterable[dict[str, Any]]) -> None:
    """A perplexity without an end is a result, so it is printed and kept; then the command fails.

    A script that reads the exit status alone must not take it for a success.
    """
    for row in rows:
        if not math.isfinite(row["perplexity"]):
            raise SettingsError(
                f"{row['kind']} {text_of(row)}: the perplexity is infinite (a loss of "
                f"{row['loss']:.4g}): {MENDS[row['kind']]}"
            )
