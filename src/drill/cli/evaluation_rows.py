"""What `drill evaluate` finds, as a row of evaluations.jsonl and as a line on the screen."""

import time
from enum import StrEnum
from typing import Any

from drill.evaluation import Perplexity


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


SHOWN = {"run", "weights", "precision", "kind", "split", "tokens", "loss", "perplexity"}
SHOWN |= {"published", "seconds", "batch_size"}
"""What a line says in words, or not at all; the rest are settings."""


def evaluation_row(
    kind: str, split: Split, found: Perplexity, start: float, settings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "split": split.value,
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "published": found.published_perplexity,
        "seconds": round(time.monotonic() - start, 3),
        "batch_size": found.columns,
        **settings,
    }


def evaluation_line(row: dict[str, Any]) -> str:
    beyond = [key for key in row if key not in SHOWN]
    settings = ", ".join(f"{key} {row[key]}" for key in beyond)
    columns = "1 column" if row["batch_size"] == 1 else f"{row['batch_size']} columns"
    return (
        f"{row['kind']} {row['split']:5}  perplexity {row['perplexity']:.3f}  "
        f"(divided by N: {row['published']:.3f})  loss {row['loss']:.4f}  "
        f"{row['tokens']:,} tokens in {columns}  {row['seconds']:.1f} s"
        + (f"  [{settings}]" if settings else "")
    )
