"""Rows of RUN/evaluations.jsonl: printed, saved and checked."""

import math
from collections.abc import Iterable
from typing import Any

import typer

from drill.cli.options import ZERO_PROBABILITY
from drill.errors import SettingsError
from drill.language_modeling.run import LanguageModelRun
from drill.report.results.evaluations import OWN_FILES
from drill.training.run.folder import json_row
from drill.translation.run import TranslationRun

Row = dict[str, Any]

HINTS = {
    "dynamic": "the weights diverged; take a smaller --lr or a larger --decay",
    "cache": "a word that is not in the cache has no probability; take a smaller --lambda",
}


def print_and_save(
    run: LanguageModelRun | TranslationRun,
    precision: str,
    rows: Iterable[tuple[Row, str]],
    as_json: bool,
) -> None:
    """Print every row, as JSON or as its text, and append it to the run's evaluations.

    An infinite perplexity is a result too, but an error at the end.
    """
    infinite = None
    for found, text in rows:
        row = {"run": str(run.folder.path), **run.origin.row(), "precision": precision, **found}
        typer.echo(json_row(row) if as_json else text)
        run.folder.keep_evaluation(row)  # printed first: a full disk loses no result
        if not math.isfinite(row["perplexity"]):
            infinite = infinite or row
    if infinite is not None:
        hint = HINTS.get(infinite["kind"], ZERO_PROBABILITY)
        raise SettingsError(
            f"the perplexity is infinite (loss {infinite['loss']:.4g}): {hint}",
            key=f"{infinite['kind']} {text_name(infinite)}",
        )


def text_name(row: Row) -> str:
    """The split of the run's corpus, or the file."""
    own = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if own else row["split"])
