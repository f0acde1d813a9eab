"""Rows of RUN/evaluations.jsonl: the texts of a run, evaluated, printed and saved."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from numpy.typing import NDArray

from drill.cli import options
from drill.cli.display import counting, table_text
from drill.cli.options import Precision, Split, Weights
from drill.data import UNK
from drill.data.text.corpora import encode_text, read_own_text
from drill.errors import SettingsError
from drill.files import WriteError, sha256
from drill.language_modeling.evaluation.frequency_bands import excluded_words, vocabulary_bands
from drill.language_modeling.evaluation.perplexity import Perplexity, evaluate_tokens
from drill.language_modeling.run import LanguageModelRun, load_language_model
from drill.report.results.evaluations import OWN_FILES
from drill.report.tables.band_tables import TextBands, bands_table
from drill.training.precision import for_dynamic_evaluation, matmul_precision, resolve_precision
from drill.training.run.folder import json_row
from drill.translation.run import TranslationRun

EvaluationRow = dict[str, Any]
"""A row of RUN/evaluations.jsonl."""

CARRIES_STATE = {"dynamic": "dynamic evaluation", "cache": "the cache pointer"}
"""Kinds of evaluation that go on from segment to segment, as errors call them."""


class EvaluatedText(NamedTuple):
    """A text as the model reads it."""

    name: str
    ids: NDArray[Any]  # (N,)
    batch_size: int  # of plain evaluation
    row: EvaluationRow  # what a row says about the text


AddRow = Callable[[EvaluationRow, str], None]
"""Prints and saves a row; the second argument is its text."""


class Evaluation(NamedTuple):
    """What a command evaluates, and where its results go."""

    run: LanguageModelRun
    texts: list[EvaluatedText]
    autocast: torch.dtype | None
    add: AddRow


@contextmanager
def evaluation_rows(
    run: LanguageModelRun | TranslationRun, precision: str, as_json: bool
) -> Iterator[AddRow]:
    """Yields a function that prints a row, as JSON or as its text, and saves it in the run folder.

    A row that could not be saved is an error at the end of the block.
    """
    about = {"run": str(run.folder.path), **run.origin.row(), "precision": precision}
    unsaved: list[WriteError] = []

    def add(values: EvaluationRow, text: str) -> None:
        row = {**about, **values}
        typer.echo(json_row(row) if as_json else text)
        try:
            run.folder.keep_evaluation(row)
        except WriteError as error:
            unsaved.append(error)

    yield add
    if unsaved:
        raise unsaved[0]


def text_name(row: EvaluationRow) -> str:
    """The split of the run's corpus, or the file."""
    is_file = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if is_file else row["split"])


@contextmanager
def evaluation(
    folder: Path,
    split: list[Split] | None,
    text: Path | None,
    weights: Weights,
    precision: Precision,
    device: str,
    as_json: bool,
    *,
    kind: str = "perplexity",
) -> Iterator[Evaluation]:
    """Load a run and its texts; kinds of ``CARRIES_STATE`` ask for an encoder that does."""
    options.check_one_text(split, text, "--text")
    run = load_language_model(folder, weights, device)
    if kind in CARRIES_STATE and not run.model.encoder.carries_state:
        raise SettingsError(
            f"{CARRIES_STATE[kind]} needs an encoder that carries a state from segment to segment",
            key=str(run.folder.path),
            hint="use `drill evaluate`",
        )
    model_device = torch.device(next(run.model.parameters()).device)
    chosen = precision or run.settings.training["precision"]
    if kind == "dynamic":
        chosen = for_dynamic_evaluation(chosen, model_device)
    with (
        matmul_precision(chosen, model_device) as autocast,
        evaluation_rows(run, resolve_precision(chosen, model_device), as_json) as add,
    ):
        yield Evaluation(run, _texts(run, split, text), autocast, add)


def _texts(
    run: LanguageModelRun, splits: Sequence[str] | None, text: Path | None
) -> list[EvaluatedText]:
    sizes, vocabulary = run.settings.training, run.vocabulary
    if text is not None:  # a file, read as the run's corpus is
        ids = encode_text(read_own_text(text), vocabulary)
        unknown = int((ids == vocabulary.ids[UNK]).sum()) if UNK in vocabulary else 0
        row = {"split": OWN_FILES, "text": str(text), "sha256": sha256(text), "unknown": unknown}
        return [EvaluatedText(str(text), ids, sizes["test_batch_size"], row)]
    return [
        EvaluatedText(
            split,
            getattr(run.ids, split),
            sizes["test_batch_size" if split == "test" else "valid_batch_size"],
            {"split": split},
        )
        for split in splits or ("valid", "test")
    ]


def evaluate_plain(
    evaluation: Evaluation, batch_size: int | None, bands: bool, quiet: bool
) -> None:
    """`drill evaluate`: the model as it is."""
    run = evaluation.run
    vocabulary, corpus = run.vocabulary, run.settings.data["corpus"]
    for text in evaluation.texts:
        start = time.monotonic()
        with counting(text.name, quiet) as progress:
            scores, values, targets = evaluate_tokens(
                run.model,
                text.ids,
                bptt=run.settings.training["bptt"],
                autocast=evaluation.autocast,
                batch_size=batch_size or text.batch_size,
                token_bytes=vocabulary.token_bytes,
                progress=progress,
            )
        row, line = perplexity_row("plain", text, scores, start)
        if bands:
            by_band = vocabulary_bands(values.flatten(), targets.flatten(), vocabulary, corpus)
            row["bands"] = [asdict(band) for band in by_band]
            table = TextBands({"loss": by_band}, left_out=excluded_words(vocabulary, corpus))
            line += f"\n\n{table_text(bands_table(table))}"
        evaluation.add(row, line)


def perplexity_row(
    kind: str, text: EvaluatedText, scores: Perplexity, start: float, **settings: Any
) -> tuple[EvaluationRow, str]:
    """The row of an evaluation that began at ``start``, and its line."""
    row: EvaluationRow = {
        "kind": kind,
        **text.row,
        "tokens": scores.tokens,
        "loss": scores.loss,
        "perplexity": scores.perplexity,
        "perplexity_all_tokens": scores.perplexity_all_tokens,
        **({} if scores.bytes is None else {"bits_per_byte": scores.bits_per_byte}),
        "seconds": round(time.monotonic() - start, 3),
        "batch_size": scores.batch_size,
    }
    shown = ", ".join(
        f"{key} {value}" if value is not True else key.replace("_", " ")
        for key, value in settings.items()
        if value is not False
    )
    unknown = f" ({row['unknown']:,} of them {UNK})" if row.get("unknown") else ""
    bits = f"{row['bits_per_byte']:.4f} bits per byte  " if "bits_per_byte" in row else ""
    adapted = "" if kind == "plain" else f"{kind}, "
    line = (
        f"{adapted}{text_name(row)}: perplexity {scores.perplexity:.3f}  {bits}"
        f"(over all tokens, as papers count: {scores.perplexity_all_tokens:.3f})  "
        f"loss {scores.loss:.4f}  {scores.tokens:,} tokens{unknown}, batch size "
        f"{scores.batch_size}  {row['seconds']:.1f} s" + (f"  [{shown}]" if shown else "")
    )
    return row | settings, line
