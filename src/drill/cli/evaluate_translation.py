"""`drill evaluate` of a translator: loss, BLEU and chrF of its corpus."""

import json
import time
from collections.abc import Sequence
from typing import Any

import torch
import typer

from drill.build_translation import TranslationRun
from drill.cli.display import Counter, console
from drill.data.parallel_text import ParallelText
from drill.evaluation.translated import translated
from drill.precision import products
from drill.recipes import SettingsError
from drill.translation import Search


def evaluate_translation(
    run: TranslationRun,
    splits: Sequence[str],
    *,
    beam: int | None,
    length_penalty: float | None,
    precision: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print a line for each split and add it to RUN/evaluations.jsonl."""
    if "train" in splits:
        raise SettingsError("--split train: a translator is evaluated on valid and test")
    training, device = run.settings.training, torch.device(next(run.model.parameters()).device)
    chosen: Any = precision or training["precision"]
    search: dict[str, Any] = {
        "beam": beam or training["beam"],
        "length_penalty": training["length_penalty"] if length_penalty is None else length_penalty,
    }
    for split in splits:
        start = time.monotonic()
        text: ParallelText = getattr(run.data.text, split)
        with products(chosen, device) as autocast, Counter(split, quiet) as progress:
            found = translated(
                run.model,
                run.subwords,
                text,
                getattr(run.data, split),
                Search(**search, autocast=autocast),
                language=run.data.language,
                progress=progress,
            )
        row = {
            "run": str(run.folder.path),
            "weights": run.weights,
            "precision": chosen,
            "kind": "translation",
            "split": split,
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
        if as_json:
            typer.echo(json.dumps(row))
        else:
            console().print(_line(row), soft_wrap=True)
        run.folder.keep_evaluation(row)


def _line(row: dict[str, Any]) -> str:
    tokenised = row["tokenised_bleu"]
    cut = "" if tokenised is None else f"tokenised {tokenised:.2f}  "
    return (
        f"translation {row['split']:5}  BLEU {row['bleu']:.2f}  {cut}"
        f"chrF {row['chrf']:.2f}  exact {row['exact']:.1%}  "
        f"perplexity {row['perplexity']:.3f}  "
        f"{row['lines']:,} lines  {row['seconds']:.1f} s  "
        f"[{row['weights']} weights, beam {row['beam']}, {row['signature']}]"
    )
