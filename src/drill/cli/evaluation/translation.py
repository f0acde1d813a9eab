"""`drill evaluate` of a translator: BLEU and other scores of its translations."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from drill.cli.display import counting, note, table_text
from drill.cli.evaluation.rows import EvaluationRow, evaluation_rows, text_name
from drill.cli.options import Precision, checked
from drill.data import DataError, Pairs, ParallelText, encode_pairs
from drill.errors import SettingsError
from drill.report.analysis.comparison import accuracy_bands
from drill.report.results.evaluations import OWN_FILES
from drill.report.tables.band_tables import accuracy_table
from drill.training.precision import resolve_precision
from drill.translation.bleu import corpus_scores
from drill.translation.evaluate import evaluate_translator
from drill.translation.run import TranslationRun

SCORES = ("bleu", "tokenised_bleu", "chrf", "signature", "tokenised_signature", "chrf_signature")


def evaluate_translation(
    run: TranslationRun,
    splits: Sequence[str],
    files: tuple[Path, Path] | None,
    *,
    bands: bool,
    tokenize: str | None,
    precision: Precision,
    as_json: bool,
    quiet: bool,
    **search_options: Any,
) -> None:
    """Print a line for each split, or for the ``files``, and add it to RUN/evaluations.jsonl.

    The translations of a split are written to RUN/<split>.<language>.hyp. ``bands`` adds accuracy
    by word frequency, which needs the training text.
    """
    if "train" in splits:
        raise SettingsError("a translator is evaluated on valid and test", key="--split train")
    if tokenize is not None:
        corpus_scores(["-"], ["-"], tokenize=tokenize)  # a wrong name fails now, not after minutes
    language = run.settings.data["target"]
    chosen = precision or run.settings.training["precision"]
    resolved = resolve_precision(chosen, torch.device(next(run.model.parameters()).device))
    split_texts = (({"split": split}, *run.split(split)) for split in splits)
    with evaluation_rows(run, resolved, as_json) as add:
        for about, text, pairs in [_read(run, *files)] if files else split_texts:
            start = time.monotonic()
            with (
                checked(run.search(precision=chosen, **search_options)) as search,
                counting(text_name(about), quiet) as progress,
            ):
                result = evaluate_translator(
                    run.model,
                    run.subwords,
                    text,
                    pairs,
                    search,
                    language=language,
                    tokenize=tokenize,
                    progress=progress,
                )
            row = {
                "kind": "translation",
                **about,
                "lines": len(text),
                "tokens": result.fit.tokens,
                "loss": result.fit.loss,
                "perplexity": result.fit.perplexity,
                **{key: getattr(result.scores, key) for key in SCORES},
                "exact": result.exact,
                "beam": search.beam_size,
                "length_penalty": search.length_penalty,
                "seconds": round(time.monotonic() - start, 3),
            }
            line = _line(row, run.weights)
            by_kind = accuracy_bands(run, text.target, result.hypotheses, note) if bands else {}
            for kind, accuracy in by_kind.items():
                row[f"{kind}_bands"] = [asdict(band) for band in accuracy]
                line += f"\n\n{table_text(accuracy_table({f'{kind}s': accuracy}, of=kind))}"
            add(row, line)
            if files is None:
                path = run.folder.hypotheses(about["split"], language)
                run.folder.write_lines(path, result.hypotheses)


def _read(
    run: TranslationRun, source: Path, reference: Path
) -> tuple[EvaluationRow, ParallelText, Pairs]:
    """Files that are no split of the run's corpus."""
    text = ParallelText.from_files(source, reference)
    for path, lines in ((source, text.source), (reference, text.target)):
        if not any(map(str.split, lines)):
            raise DataError("has no words; give one sentence per line", key=str(path))
    about = {"split": OWN_FILES, "source": str(source), "reference": str(reference)}
    return about, text, encode_pairs(text, run.subwords)


def _line(row: EvaluationRow, weights: str) -> str:
    tokenised = row["tokenised_bleu"]
    cut = "" if tokenised is None else f"tokenised {tokenised:.2f}  "
    return (
        f"{text_name(row)}: BLEU {row['bleu']:.2f}  {cut}"
        f"chrF {row['chrf']:.2f}  exact {row['exact']:.1%}  "
        f"perplexity {row['perplexity']:.3f}  "
        f"{row['lines']:,} line{'' if row['lines'] == 1 else 's'}  {row['seconds']:.1f} s  "
        f"[{weights} weights, beam {row['beam']}, {row['signature']}]"
    )
