"""`drill evaluate`, `drill dynamic` and `drill cache` of a language model: perplexities."""

import io
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from drill.cli.display import Counter, console, note
from drill.cli.generate import note_if_unk_is_untrained
from drill.cli.options import (
    ZERO_PROBABILITY,
    Precision,
    Split,
    Weights,
    as_settings_error,
    load_language_model,
)
from drill.data import EOS, UNK
from drill.data.text.corpora import encode_text, read_own_text
from drill.errors import SettingsError
from drill.files import digest, write_output
from drill.language_modeling.evaluation.cache_pointer import cache_perplexity, cache_search
from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.evaluation.frequency_bands import (
    Band,
    excluded_words,
    vocabulary_bands,
)
from drill.language_modeling.evaluation.gradient_statistics import (
    COLUMNS,
    gradient_statistics,
    statistics_columns,
)
from drill.language_modeling.evaluation.perplexity import (
    Perplexity,
    evaluated,
    reading_order,
)
from drill.language_modeling.run import LanguageModelRun
from drill.report.results.evaluations import OWN_FILES
from drill.report.tables.band_tables import TextBands, bands_table
from drill.report.tables.markup import Table
from drill.training.precision import for_dynamic_evaluation, matmul_precision, resolve_precision
from drill.training.run.folder import json_row

Row = dict[str, Any]

HINTS = {
    "plain": ZERO_PROBABILITY,
    "dynamic": "the weights diverged; take a smaller --lr or a larger --decay",
    "cache": "a word that is not in the cache has no probability; take a smaller --lambda",
    "translation": ZERO_PROBABILITY,
}


class EvaluatedText(NamedTuple):
    """A text as the model reads it.

    Attributes:
        ids: (N,)
        batch_size: of plain evaluation.
        row: what a row of evaluations.jsonl says about the text.
        options: of `drill evaluate`, to read it again.
    """

    name: str
    ids: NDArray[Any]
    batch_size: int
    row: Row
    options: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """The options that the three commands share."""

    folder: Path
    split: Sequence[Split] | None
    text: Path | None
    weights: Weights | None
    precision: Precision | None
    device: str
    as_json: bool
    quiet: bool

    def run(self, rows_of: Callable[..., Iterator[tuple[Row, Row]]], **options: Any) -> None:
        """Print and save the rows of ``rows_of(run, texts, autocast, quiet, **options)``.

        ``rows_of`` yields what was measured, and with which settings.
        """
        run = load_language_model(self.folder, self.weights, self.device)
        device = torch.device(next(run.model.parameters()).device)
        precision: Any = self.precision or run.settings.training["precision"]
        if rows_of is dynamic_rows:
            precision = for_dynamic_evaluation(precision, device)
        rows = []
        with matmul_precision(precision, device) as autocast, as_settings_error():
            texts = self.texts(run)
            for measured, settings in rows_of(run, texts, autocast, self.quiet, **options):
                row = {
                    "run": str(self.folder),
                    **run.origin.row(),
                    "precision": resolve_precision(precision, device),
                    **measured,
                    **settings,
                }
                if self.as_json:
                    typer.echo(json_row(row))
                else:
                    console().print(_line(row, settings), soft_wrap=True)
                    if "bands" in row:
                        typer.echo(f"\n{_bands_table(run, row['bands']).markdown()}")
                run.folder.keep_evaluation(row)  # printed first: a full disk loses no result
                rows.append(row)
        for text in texts:
            if rows_of is not plain_rows and not self.as_json and text.batch_size != 1:
                words = ["drill", "evaluate", str(self.folder), *text.options, "--batch-size", "1"]
                note(
                    f"{text.name}: training and `drill evaluate` use batch size {text.batch_size}, "
                    f"this 1; compare with `{shlex.join(words)}`"
                )
        check_finite(rows)

    def texts(self, run: LanguageModelRun) -> list[EvaluatedText]:
        sizes = run.settings.training
        if self.text is not None:
            return [_own_text(run, self.text, sizes["test_batch_size"])]
        return [
            EvaluatedText(
                split.value,
                getattr(run.ids, split),
                sizes["test_batch_size" if split is Split.test else "valid_batch_size"],
                {"split": split.value},
                ("--split", split.value),
            )
            for split in self.split or (Split.valid, Split.test)
        ]


def _own_text(run: LanguageModelRun, path: Path, batch_size: int) -> EvaluatedText:
    """A file, read as the run's corpus is."""
    vocabulary = run.vocabulary
    ids = encode_text(read_own_text(path), vocabulary)
    unknown = int((ids == vocabulary.ids[UNK]).sum()) if UNK in vocabulary else 0
    if unknown:
        words = int((ids != vocabulary.ids[EOS]).sum())
        note(
            f"{path}: {unknown:,} of its {words:,} words ({unknown / words:.1%}) are {UNK} to the "
            "model, which counts as one word in the perplexity"
        )
        note_if_unk_is_untrained(vocabulary)
    row: Row = {"split": OWN_FILES, "text": str(path), "sha256": digest(path, "sha256")}
    row["unknown"] = unknown
    return EvaluatedText(str(path), ids, batch_size, row, ("--text", str(path)))


def plain_rows(
    run: LanguageModelRun,
    texts: Sequence[EvaluatedText],
    autocast: torch.dtype | None,
    quiet: bool,
    *,
    batch_size: int | None,
    losses: Path | None,
    words: bool,
) -> Iterator[tuple[Row, Row]]:
    """The model as it is.

    Args:
        losses: a file for -log p of every token.
        words: add the loss by frequency.
    """
    vocabulary = run.vocabulary
    options: dict[str, Any] = {"bptt": run.settings.training["bptt"], "autocast": autocast}
    for text in texts:
        size, start = batch_size or text.batch_size, time.monotonic()
        options["batch_size"] = size
        with Counter(text.name, quiet) as progress:
            found, values, targets = evaluated(
                run.model,
                text.ids,
                **options,
                token_bytes=vocabulary.token_bytes,
                progress=progress,
            )
        if losses is not None:
            content = io.BytesIO()  # np.save does not write into pipes
            np.save(content, reading_order(values).numpy())
            write_output(losses, content.getvalue())
        row = _row("plain", text, found, start)
        if words:
            corpus = run.settings.data["corpus"]
            bands = vocabulary_bands(values.flatten(), targets.flatten(), vocabulary, corpus)
            row["bands"] = [asdict(band) for band in bands]
        yield row, {}


def dynamic_rows(
    run: LanguageModelRun,
    texts: Sequence[EvaluatedText],
    autocast: torch.dtype | None,
    quiet: bool,
    *,
    search: bool,
    lr: float,
    decay: float,
    epsilon: float,
    segment_length: int,
    limit: int,
) -> Iterator[tuple[Row, Row]]:
    """Dynamic evaluation; gradient statistics and searches are saved in the run folder."""
    _check_carries_state("dynamic evaluation", run)
    start, folder, tokens = time.monotonic(), run.folder.path, len(run.ids.train)
    size = statistics_columns(tokens, segment_length)
    if size < COLUMNS:
        note(
            f"the training text has {tokens:,} tokens, too few for batch size {COLUMNS} and "
            f"segments of {segment_length + 1}: gradient statistics are taken at batch size {size}"
        )
    with Counter("gradient statistics", quiet) as progress:
        statistics = gradient_statistics(
            run.model,
            run.ids.train,
            batch_size=size,
            bptt=segment_length,
            progress=progress,
            file=folder / "dynamic.safetensors",
        )
    options: dict[str, Any] = {"epsilon": epsilon, "bptt": segment_length}
    if search:
        try:
            with Counter("search on validation", quiet) as progress:
                best = dynamic_search(
                    run.model,
                    run.ids.valid,
                    statistics,
                    **options,
                    limit=limit,
                    file=folder / "dynamic-search.json",
                    progress=progress,
                ).best
        except KeyboardInterrupt:
            note("stopped; every setting that was tried is saved, the same command resumes")
            raise
        lr, decay = best.settings["lr"], best.settings["lamb"]
        note(f"tuned on validation: lr {lr:g}, decay {decay:g}")
    settings = {"lr": lr, "decay": decay, "epsilon": epsilon, "segment_length": segment_length}
    settings |= {"statistics_columns": size}
    for text in texts:
        with Counter(f"dynamic, {text.name}", quiet) as progress:
            found = dynamic_perplexity(
                run.model, text.ids, statistics, lr=lr, lamb=decay, **options, progress=progress
            )
        yield _row("dynamic", text, found, start), settings
        start = time.monotonic()


def cache_rows(
    run: LanguageModelRun,
    texts: Sequence[EvaluatedText],
    autocast: torch.dtype | None,
    quiet: bool,
    *,
    search: bool,
    window: int,
    theta: float,
    lamb: float,
    published: bool,
    chunk: int,
) -> Iterator[tuple[Row, Row]]:
    """The continuous cache pointer."""
    _check_carries_state("the cache pointer", run)
    options: dict[str, Any] = {"window": window, "bptt": chunk, "published": published}
    options["autocast"] = autocast
    if search:
        with Counter("search on validation", quiet) as progress:
            best = cache_search(run.model, run.ids.valid, **options, progress=progress).best
        theta, lamb = best.settings["theta"], best.settings["lamb"]
        note(f"tuned on validation: theta {theta:g}, lambda {lamb:g}")
    settings = {"window": window, "theta": theta, "lambda": lamb, "as_published": published}
    settings |= {"chunk": chunk} if published else {}
    for text in texts:
        start = time.monotonic()
        with Counter(f"cache, {text.name}", quiet) as progress:
            found = cache_perplexity(
                run.model, text.ids, theta=theta, lamb=lamb, **options, progress=progress
            )
        yield _row("cache", text, found, start), settings


def _check_carries_state(what: str, run: LanguageModelRun) -> None:
    if not run.model.encoder.carries_state:
        raise SettingsError(
            f"{what} needs an encoder that carries a state from segment to segment",
            key=str(run.folder.path),
            hint="use `drill evaluate`",
        )


def _row(kind: str, text: EvaluatedText, found: Perplexity, start: float) -> Row:
    return {
        "kind": kind,
        **text.row,
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "published": found.published_perplexity,
        **({} if found.bytes is None else {"bits_per_byte": found.bits_per_byte}),
        "seconds": round(time.monotonic() - start, 3),
        "batch_size": found.columns,
    }


def _bands_table(run: LanguageModelRun, bands: Sequence[Row]) -> Table:
    left_out = excluded_words(run.vocabulary, run.settings.data["corpus"])
    return bands_table(TextBands({"loss": [Band(**each) for each in bands]}, left_out=left_out))


def _line(row: Row, settings: Mapping[str, Any]) -> str:
    shown = ", ".join(
        f"{key} {value}" if value is not True else key.replace("_", " ")
        for key, value in settings.items()
        if value is not False
    )
    unknown = f" ({row['unknown']:,} of them {UNK})" if row.get("unknown") else ""
    bits = f"{row['bits_per_byte']:.4f} bits per byte  " if "bits_per_byte" in row else ""
    return (
        f"{row['kind']} {text_name(row):5}  perplexity {row['perplexity']:.3f}  {bits}"
        f"(over all N tokens, as papers count: {row['published']:.3f})  loss {row['loss']:.4f}  "
        f"{row['tokens']:,} tokens{unknown}, batch size {row['batch_size']}  "
        f"{row['seconds']:.1f} s" + (f"  [{shown}]" if shown else "")
    )


def text_name(row: Row) -> str:
    """The split of the run's corpus, or the file."""
    own = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if own else row["split"])


def check_finite(rows: Iterable[Row]) -> None:
    """An infinite perplexity is printed and saved as a result; then the command fails."""
    for row in rows:
        if not math.isfinite(row["perplexity"]):
            raise SettingsError(
                f"the perplexity is infinite (loss {row['loss']:.4g}): {HINTS[row['kind']]}",
                key=f"{row['kind']} {text_name(row)}",
            )
