"""Rows of RUN/evaluations.jsonl: printed, saved and checked."""

import math
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


class Rows:
    """Prints rows as JSON or as their text, and appends them to the run's evaluations."""

    def __init__(
        self, run: LanguageModelRun | TranslationRun, precision: str, as_json: bool
    ) -> None:
        self.folder, self.as_json = run.folder, as_json
        self.about = {"run": str(run.folder.path), **run.origin.row(), "precision": precision}
        self.infinite: Row | None = None

    def add(self, found: Row, text: str) -> None:
        row = {**self.about, **found}
        typer.echo(json_row(row) if self.as_json else text)
        self.folder.keep_evaluation(row)  # printed first: a full disk loses no result
        if not math.isfinite(row["perplexity"]):
            self.infinite = self.infinite or row

    def check_finite(self) -> None:
        """An infinite perplexity is a result too, but an error at the end."""
        if (row := self.infinite) is not None:
            hint = HINTS.get(row["kind"], ZERO_PROBABILITY)
            raise SettingsError(
                f"the perplexity is infinite (loss {row['loss']:.4g}): {hint}",
                key=f"{row['kind']} {text_name(row)}",
            )


def text_name(row: Row) -> str:
    """The split of the run's corpus, or the file."""
    own = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if own else row["split"])
