"""Results of evaluations: a row of evaluations.jsonl, a line on the screen."""

import math
from collections.abc import Iterable
from typing import Any

from drill.data import UNK
from drill.errors import SettingsError
from drill.report.results.evaluations import OWN_FILES

NOT_SETTINGS = {"run", "weights", "precision", "kind", "split", "tokens", "loss", "perplexity"}
NOT_SETTINGS |= {"published", "seconds", "batch_size", "as_published", "statistics_columns"}
NOT_SETTINGS |= {
    "weights_epoch",
    "weights_step",
    "weights_fingerprint",
    "text",
    "sha256",
    "unknown",
    "bits_per_byte",
}

OTHER_WEIGHTS = "the weights give a word of the text no probability; evaluate others, or train anew"
HINTS = {
    "plain": OTHER_WEIGHTS,
    "dynamic": "the weights diverged; take a smaller --lr or a larger --decay",
    "cache": "a word that is not in the cache has no probability; take a smaller --lambda",
    "translation": OTHER_WEIGHTS,
}


def text_name(row: dict[str, Any]) -> str:
    """The split of the run's corpus, or the file."""
    own = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if own else row["split"])


def evaluation_line(row: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} {row[key]}" for key in row if key not in NOT_SETTINGS)
    if row.get("as_published"):
        settings += ", skipping what the released code skips"
    if "statistics_columns" in row:
        settings += f", gradient statistics at batch size {row['statistics_columns']}"
    unknown = f" ({row['unknown']:,} of them {UNK})" if row.get("unknown") else ""
    bits = f"{row['bits_per_byte']:.4f} bits per byte  " if "bits_per_byte" in row else ""
    return (
        f"{row['kind']} {text_name(row):5}  perplexity {row['perplexity']:.3f}  {bits}"
        f"(as in published results: {row['published']:.3f})  loss {row['loss']:.4f}  "
        f"{row['tokens']:,} tokens{unknown}, batch size {row['batch_size']}  "
        f"{row['seconds']:.1f} s" + (f"  [{settings}]" if settings else "")
    )


def check_finite(rows: Iterable[dict[str, Any]]) -> None:
    """An infinite perplexity is printed and saved as a result; then the command fails."""
    for row in rows:
        if not math.isfinite(row["perplexity"]):
            raise SettingsError(
                f"the perplexity is infinite (loss {row['loss']:.4g}): {HINTS[row['kind']]}",
                key=f"{row['kind']} {text_name(row)}",
            )
