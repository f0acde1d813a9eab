"""Runs the evaluations of `drill evaluate`, `dynamic` and `cache`: rows, printed and saved."""

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
from drill.data import EOS, UNK, DataError, Pairs, ParallelText, encode_pairs
from drill.data.text.corpora import encode_text, read_own_text
from drill.errors import SettingsError
from drill.files import digest, write_output
from drill.language_modeling.cache_pointer import cache_perplexity, cache_search
from drill.language_modeling.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.gradient_statistics import (
    COLUMNS,
    gradient_statistics,
    statistics_columns,
)
from drill.language_modeling.perplexity import (
    Perplexity,
    laid_out,
    perplexity,
    predicted_bytes,
    token_losses,
)
from drill.language_modeling.run import LanguageModelRun
from drill.report.analysis.comparison import accuracy_bands
from drill.report.results.evaluations import OWN_FILES
from drill.report.tables.band_tables import accuracy_table
from drill.training.device import out_of_memory_hint
from drill.training.precision import for_dynamic_evaluation, matmul_precision, resolve_precision
from drill.training.run.folder import json_row
from drill.translation.bleu import corpus_scores
from drill.translation.evaluate import DecodingInfo, save_hypotheses, translated
from drill.translation.run import TranslationRun
from drill.translation.translate import Search

# What the arguments of the functions are called on the command line.
DYNAMIC_NAMES = {"lr": "--lr:", "lamb": "--decay:", "epsilon": "--epsilon:"}
CACHE_NAMES = {"window": "--window:", "theta": "--theta:", "lamb": "--lambda:"}

Row = dict[str, Any]

# -- rows ------------------------------------------------------------------------------------------

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

HINTS = {
    "plain": ZERO_PROBABILITY,
    "dynamic": "the weights diverged; take a smaller --lr or a larger --decay",
    "cache": "a word that is not in the cache has no probability; take a smaller --lambda",
    "translation": ZERO_PROBABILITY,
}


def text_name(row: Row) -> str:
    """The split of the run's corpus, or the file."""
    own = row["split"] == OWN_FILES
    return str((row["source"] if "source" in row else row["text"]) if own else row["split"])


def evaluation_line(row: Row) -> str:
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


def check_finite(rows: Iterable[Row]) -> None:
    """An infinite perplexity is printed and saved as a result; then the command fails."""
    for row in rows:
        if not math.isfinite(row["perplexity"]):
            raise SettingsError(
                f"the perplexity is infinite (loss {row['loss']:.4g}): {HINTS[row['kind']]}",
                key=f"{row['kind']} {text_name(row)}",
            )


# -- language models -------------------------------------------------------------------------------


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

    def run(self, rows_of: Callable[..., Iterator[Row]], **options: Any) -> None:
        """Print the rows of ``rows_of(evaluation, run, texts, autocast, **options)``; save them."""
        run = load_language_model(self.folder, self.weights, self.device)
        device = torch.device(next(run.model.parameters()).device)
        precision: Any = self.precision or run.settings.training["precision"]
        if rows_of is dynamic_rows:
            precision = for_dynamic_evaluation(precision, device)
        rows = []
        with matmul_precision(precision, device) as autocast, as_settings_error():
            texts = self.texts(run)
            for found in rows_of(self, run, texts, autocast, **options):
                row = {
                    "run": str(self.folder),
                    **run.origin.row(),
                    "precision": resolve_precision(precision, device),
                    **found,
                }
                if self.as_json:
                    typer.echo(json_row(row))
                else:
                    console().print(evaluation_line(row), soft_wrap=True)
                run.folder.keep_evaluation(row)  # printed first: a full disk loses no result
                rows.append(row)
        if rows_of is not plain_rows and not self.as_json:
            self._note_batch_sizes(texts)
        check_finite(rows)

    def texts(self, run: LanguageModelRun) -> list[EvaluatedText]:
        if self.text is not None:
            return [_own_text(run, self.text)]
        sizes = run.settings.training
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

    def _note_batch_sizes(self, texts: Sequence[EvaluatedText]) -> None:
        """Every sequence starts without context, so perplexity is a little higher with more."""
        for text in texts:
            if text.batch_size != 1:
                words = ["drill", "evaluate", str(self.folder), *text.options, "--batch-size", "1"]
                note(
                    f"{text.name}: training and `drill evaluate` use batch size {text.batch_size}, "
                    f"this 1; compare with `{shlex.join(words)}`"
                )


def _own_text(run: LanguageModelRun, path: Path) -> EvaluatedText:
    """A file, read as the run's corpus is, at the batch size of its test."""
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
    row = {
        "split": OWN_FILES,
        "text": str(path),
        "sha256": digest(path, "sha256"),
        "unknown": unknown,
    }
    size = run.settings.training["test_batch_size"]
    return EvaluatedText(str(path), ids, size, row, ("--text", str(path)))


def plain_rows(
    evaluation: Evaluation,
    run: LanguageModelRun,
    texts: Sequence[EvaluatedText],
    autocast: torch.dtype | None,
    *,
    batch_size: int | None,
    losses: Path | None,
) -> Iterator[Row]:
    """The model as it is; ``losses`` is a file for -log p of every token."""
    options: dict[str, Any] = {"bptt": run.settings.training["bptt"], "autocast": autocast}
    for text in texts:
        size, start = batch_size or text.batch_size, time.monotonic()
        options["batch_size"] = size
        with Counter(text.name, evaluation.quiet) as progress:
            if losses is None:
                found = perplexity(
                    run.model, text.ids, **options, token_bytes=run.token_bytes, progress=progress
                )
            else:
                values = token_losses(run.model, text.ids, **options, progress=progress).numpy()
                content = io.BytesIO()  # np.save does not write into pipes
                np.save(content, values)
                write_output(losses, content.getvalue())
                held = predicted_bytes(
                    laid_out("evaluate", run.model, text.ids, size), run.token_bytes
                )
                found = Perplexity(float(values.sum(dtype=np.float64)), len(values), size, held)
        yield _row("plain", text, found, start, {})


def dynamic_rows(
    evaluation: Evaluation,
    run: LanguageModelRun,
    texts: Sequence[EvaluatedText],
    autocast: torch.dtype | None,
    *,
    search: bool,
    lr: float,
    decay: float,
    epsilon: float,
    segment_length: int,
    limit: int,
) -> Iterator[Row]:
    """Dynamic evaluation; gradient statistics and searches are saved in the run folder."""
    _check_state("dynamic evaluation", run)
    start, quiet, folder = time.monotonic(), evaluation.quiet, run.folder.path
    tokens = len(run.ids.train)
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
    for text in texts:
        with Counter(f"dynamic, {text.name}", quiet) as progress:
            found = dynamic_perplexity(
                run.model, text.ids, statistics, lr=lr, lamb=decay, **options, progress=progress
            )
        yield _row("dynamic", text, found, start, {**settings, "statistics_columns": size})
        start = time.monotonic()


def cache_rows(
    evaluation: Evaluation,
    run: LanguageModelRun,
    texts: Sequence[EvaluatedText],
    autocast: torch.dtype | None,
    *,
    search: bool,
    window: int,
    theta: float,
    lamb: float,
    published: bool,
    chunk: int,
) -> Iterator[Row]:
    """The continuous cache pointer."""
    _check_state("the cache pointer", run)
    options: dict[str, Any] = {"window": window, "bptt": chunk, "published": published}
    options["autocast"] = autocast
    if search:
        with Counter("search on validation", evaluation.quiet) as progress:
            best = cache_search(run.model, run.ids.valid, **options, progress=progress).best
        theta, lamb = best.settings["theta"], best.settings["lamb"]
        note(f"tuned on validation: theta {theta:g}, lambda {lamb:g}")
    settings = {"window": window, "theta": theta, "lambda": lamb, "as_published": published}
    settings |= {"chunk": chunk} if published else {}
    for text in texts:
        start = time.monotonic()
        with Counter(f"cache, {text.name}", evaluation.quiet) as progress:
            found = cache_perplexity(
                run.model, text.ids, theta=theta, lamb=lamb, **options, progress=progress
            )
        yield _row("cache", text, found, start, settings)


def _check_state(what: str, run: LanguageModelRun) -> None:
    if not run.model.encoder.carries_state:
        raise SettingsError(
            f"{run.folder.path}: {what} reads a text in small parts and needs an encoder that "
            "carries a state; use `drill evaluate`"
        )


def _row(
    kind: str, text: EvaluatedText, found: Perplexity, start: float, settings: Mapping[str, Any]
) -> Row:
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
        **settings,
    }


# -- translators -----------------------------------------------------------------------------------


class Files(NamedTuple):
    """Pairs of text files that are no split of the run's corpus."""

    source: Path
    reference: Path


def evaluate_translation(
    run: TranslationRun,
    splits: Sequence[str] | Files,
    *,
    beam: int | None,
    length_penalty: float | None,
    batch_tokens: int,
    words: bool,
    tokenize: str | None,
    precision: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print a line for each split, or for the files, and add it to RUN/evaluations.jsonl.

    The translations of a split are written to RUN/<split>.<language>.hyp, and how they were made
    to a .json file next to it. ``words`` prints accuracy by word frequency, which needs the
    training text.
    """
    if "train" in splits:
        raise SettingsError("--split train: a translator is evaluated on valid and test")
    if tokenize is not None:
        corpus_scores(["-"], ["-"], tokenize=tokenize)  # a wrong name fails now, not after minutes
    language = run.settings.data["target"]
    training, device = run.settings.training, torch.device(next(run.model.parameters()).device)
    chosen: Any = precision or training["precision"]
    search: dict[str, Any] = {
        "beam": beam or training["beam"],
        "length_penalty": training["length_penalty"] if length_penalty is None else length_penalty,
    }
    rows = []
    for split, text, pairs in _texts(run, splits):
        start = time.monotonic()
        with (
            matmul_precision(chosen, device) as autocast,
            Counter(split, quiet) as progress,
            out_of_memory_hint(
                f"the evaluation of {run.folder.path}", "take a smaller --batch-tokens or --beam"
            ),
        ):
            found = translated(
                run.model,
                run.subwords,
                text,
                pairs,
                Search(**search, batch_tokens=batch_tokens, autocast=autocast),
                language=language,
                tokenize=tokenize,
                progress=progress,
            )
        row = {
            "run": str(run.folder.path),
            **run.origin.row(),
            "precision": resolve_precision(chosen, device),
            "kind": "translation",
            **_names(splits, split),
            "lines": len(text),
            "tokens": found.fit.tokens,
            "loss": found.fit.loss,
            "perplexity": found.fit.perplexity,
            "bleu": found.scores.bleu,
            "tokenised_bleu": found.scores.tokenised_bleu,
            "chrf": found.scores.chrf,
            "exact": found.exact,
            "signature": found.scores.signature,
            "tokenised_signature": found.scores.tokenised_signature,
            "chrf_signature": found.scores.chrf_signature,
            **search,
            "seconds": round(time.monotonic() - start, 3),
        }
        bands = accuracy_bands(run, text.target, found.hypotheses, note) if words else {}
        row |= {f"{kind}_bands": [asdict(band) for band in each] for kind, each in bands.items()}
        if as_json:
            typer.echo(json_row(row))
        else:
            console().print(_line(row), soft_wrap=True)
            for kind, each in bands.items():
                typer.echo(f"\n{accuracy_table({f'{kind}s': each}, of=kind).markdown()}")
        if not isinstance(splits, Files):
            made = DecodingInfo(**search, weights=run.weights)
            save_hypotheses(run.folder, split, language, found.hypotheses, made)
        run.folder.keep_evaluation(row)
        rows.append(row)
    check_finite(rows)


def _texts(
    run: TranslationRun, splits: Sequence[str] | Files
) -> Iterator[tuple[str, ParallelText, Pairs]]:
    if isinstance(splits, Files):
        text = ParallelText.from_files(*splits)
        for path, lines in zip(splits, (text.source, text.target), strict=True):
            if not any(map(str.split, lines)):
                raise DataError(f"{path}: holds no words to translate; give one sentence a line")
        yield str(splits.source), text, encode_pairs(text, run.subwords)
        return
    for split in splits:
        yield split, *run.split(split)


def _names(splits: Sequence[str] | Files, split: str) -> dict[str, str]:
    """What a row says about the text; a file may be called ``test`` too."""
    if not isinstance(splits, Files):
        return {"split": split}
    return {"split": OWN_FILES, **{name: str(path) for name, path in splits._asdict().items()}}


def _line(row: Row) -> str:
    tokenised = row["tokenised_bleu"]
    cut = "" if tokenised is None else f"tokenised {tokenised:.2f}  "
    return (
        f"translation {text_name(row):5}  BLEU {row['bleu']:.2f}  {cut}"
        f"chrF {row['chrf']:.2f}  exact {row['exact']:.1%}  "
        f"perplexity {row['perplexity']:.3f}  "
        f"{row['lines']:,} line{'' if row['lines'] == 1 else 's'}  {row['seconds']:.1f} s  "
        f"[{row['weights']} weights, beam {row['beam']}, {row['signature']}]"
    )
