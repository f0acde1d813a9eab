"""`drill evaluate`, `drill dynamic` and `drill cache`: the scores of a trained run."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from drill.cli import options
from drill.cli.display import counting, note
from drill.cli.options import Split, as_settings_error, check_one_text, given_options
from drill.errors import SettingsError

LANGUAGE_MODEL_OPTIONS = {"text", "batch_size"}
TRANSLATOR_OPTIONS = {"beam", "length_penalty", "batch_tokens", "tokenize", "source", "reference"}

SplitOption = Annotated[
    list[Split] | None, Option("--split", help="Repeatable; valid and test by default.")
]
TextOption = Annotated[
    Path | None,
    Option("--text", help="Language models: a text file to evaluate instead of a split."),
]


def evaluate(
    context: Context,
    run: options.Run,
    split: SplitOption = None,
    text: TextOption = None,
    batch_size: Annotated[
        int | None,
        Option(
            min=1,
            help="Language models: sequences processed in parallel; those of training by default.",
        ),
    ] = None,
    source: Annotated[
        Path | None, Option(help="Translators: a text file to translate, with --reference.")
    ] = None,
    reference: Annotated[
        Path | None, Option(help="Translators: the reference translation of --source.")
    ] = None,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    batch_tokens: options.BatchTokens = 4096,
    bands: Annotated[
        bool, Option("--bands", help="Loss, or accuracy of translators, by frequency of words.")
    ] = False,
    tokenize: Annotated[
        str | None, Option(help="Translators: sacreBLEU tokenizer; by target language by default.")
    ] = None,
    as_json: options.JsonLines = False,
    weights: options.Weights = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Perplexity of a language model, BLEU of a translator.

    Perplexity is exp(total loss / (N - 1)) over the N - 1 predicted tokens of a text of N tokens.
    Papers divide by N; that figure is printed next to it. Translations of a split
    are written to RUN/<split>.<language>.hyp. Results are appended to RUN/evaluations.jsonl.
    """
    from drill.training.run.weights import task_of
    from drill.training.settings import TRANSLATION

    translator = task_of(run) == TRANSLATION
    for name in given_options(context):
        if name in (LANGUAGE_MODEL_OPTIONS if translator else TRANSLATOR_OPTIONS):
            kind = "language models" if translator else "translators"
            raise SettingsError(
                f"is for {kind}, which {run} is not", key=f"--{name.replace('_', '-')}"
            )
    if translator:
        from drill.cli.evaluation.translation import evaluate_translation
        from drill.translation.build import check_ready
        from drill.translation.run import load_translator

        if (source is None) != (reference is None):
            raise SettingsError("are given together", key="--source and --reference")
        check_one_text(split, source, "--source")
        check_ready(run, "evaluating", text=bands or source is None)
        evaluate_translation(
            load_translator(run, weights, device),
            split or ("valid", "test"),
            (source, reference) if source and reference else None,
            beam_size=beam,
            length_penalty=length_penalty,
            batch_tokens=batch_tokens,
            bands=bands,
            tokenize=tokenize,
            precision=precision,
            as_json=as_json,
            quiet=quiet,
        )
        return
    from drill.cli.evaluation.rows import evaluate_plain, evaluation

    with evaluation(run, split, text, weights, precision, device, as_json) as evaluated:
        evaluate_plain(evaluated, batch_size, bands, quiet)


def dynamic(
    context: Context,
    run: options.Run,
    split: SplitOption = None,
    text: TextOption = None,
    search: Annotated[
        bool, Option("--search", help="Find --lr and --decay on the validation split first.")
    ] = False,
    lr: Annotated[float, Option(min=0, help="Learning rate of the gradient steps.")] = 5e-5,
    decay: Annotated[
        float, Option(min=0, help="Decay of the weights towards the trained ones.")
    ] = 0.002,
    eps: Annotated[
        float, Option(min=0, help="Added to the RMS of the gradients that steps are divided by.")
    ] = 2e-5,
    segment_length: Annotated[int, Option(min=1, help="Tokens between two gradient steps.")] = 5,
    limit: Annotated[int, Option(min=10, help="Validation tokens that --search reads.")] = 30_000,
    as_json: options.JsonLines = False,
    weights: options.Weights = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Perplexity of a language model with dynamic evaluation.

    The weights adapt to the text while it is read, by gradient steps on every segment (Krause et
    al. 2018). Results are appended to RUN/evaluations.jsonl.
    """
    from drill.cli.evaluation.rows import evaluation, perplexity_row
    from drill.language_modeling.evaluation import dynamic_evaluation
    from drill.language_modeling.evaluation import gradient_statistics as gradients

    _check_search(given_options(context), "lr", "decay")
    if precision == "bfloat16":
        raise SettingsError(
            "too coarse for dynamic evaluation", key="--precision bfloat16", hint="use float32"
        )
    with as_settings_error():
        dynamic_evaluation.check_dynamic_settings(lr, decay, eps)
    fixed: dict[str, Any] = {"eps": eps, "segment_length": segment_length}
    shared = (run, split, text, weights, precision, device, as_json)
    with evaluation(*shared, kind="dynamic") as evaluated:
        trained = evaluated.run
        start, folder = time.monotonic(), trained.folder.path
        saves = os.access(folder, os.W_OK)  # statistics and a search, which a later call reads
        computed = folder / "dynamic.safetensors"
        size = gradients.statistics_batch_size(len(trained.ids.train), segment_length)
        with counting("gradient statistics", quiet) as progress:
            statistics = gradients.gradient_statistics(
                trained.model,
                trained.ids.train,
                batch_size=size,
                segment_length=segment_length,
                progress=progress,
                file=computed if saves or computed.exists() else None,
            )
        rates: dict[str, Any] = {"lr": lr, "decay": decay}
        if search:
            with counting("search on validation", quiet) as progress:
                tuned = dynamic_evaluation.dynamic_search(
                    trained.model,
                    trained.ids.valid,
                    statistics,
                    **fixed,
                    limit=limit,
                    file=folder / "dynamic-search.json" if saves else None,
                    progress=progress,
                )
            rates = {key: tuned.best.settings[key] for key in rates}
            note(f"tuned on validation: lr {rates['lr']:g}, decay {rates['decay']:g}")
        settings = {**rates, **fixed, "statistics_batch_size": size}
        for eval_text in evaluated.texts:
            with counting(f"dynamic, {eval_text.name}", quiet) as progress:
                scores = dynamic_evaluation.dynamic_perplexity(
                    trained.model, eval_text.ids, statistics, **rates, **fixed, progress=progress
                )
            evaluated.add(*perplexity_row("dynamic", eval_text, scores, start, **settings))
            start = time.monotonic()


def cache(
    context: Context,
    run: options.Run,
    split: SplitOption = None,
    text: TextOption = None,
    search: Annotated[
        bool, Option("--search", help="Find --theta and --lambda on the validation split first.")
    ] = False,
    window: Annotated[int, Option(min=1, help="Size of the cache in words.")] = 500,
    theta: Annotated[
        float, Option(help="Scale of the similarity of hidden states; 0 counts words.")
    ] = 1.0,
    lambda_: Annotated[
        float, Option("--lambda", min=0, max=1, help="Weight of the cache in the mixture.")
    ] = 0.1,
    as_json: options.JsonLines = False,
    weights: options.Weights = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Perplexity of a language model with a continuous cache pointer.

    The prediction is mixed with one from recent words in similar contexts (Grave et al. 2017).
    Results are appended to RUN/evaluations.jsonl.
    """
    from drill.cli.evaluation.rows import evaluation, perplexity_row
    from drill.language_modeling.evaluation import cache_pointer

    _check_search(given_options(context), "theta", "lambda_")
    with as_settings_error():
        cache_pointer.check_cache_settings(window, [theta], [lambda_])
    fixed: dict[str, Any] = {"window": window}
    shared = (run, split, text, weights, precision, device, as_json)
    with evaluation(*shared, kind="cache") as evaluated:
        trained = evaluated.run
        fixed["autocast"] = evaluated.autocast
        mixture: dict[str, Any] = {"theta": theta, "lambda_": lambda_}
        if search:
            with counting("search on validation", quiet) as progress:
                tuned = cache_pointer.cache_search(
                    trained.model, trained.ids.valid, **fixed, progress=progress
                )
            mixture = {key: tuned.best.settings[key] for key in mixture}
            note(f"tuned on validation: theta {mixture['theta']:g}, lambda {mixture['lambda_']:g}")
        settings = {"window": window, "theta": mixture["theta"], "lambda": mixture["lambda_"]}
        for eval_text in evaluated.texts:
            start = time.monotonic()
            with counting(f"cache, {eval_text.name}", quiet) as progress:
                scores = cache_pointer.cache_perplexity(
                    trained.model, eval_text.ids, **mixture, **fixed, progress=progress
                )
            evaluated.add(*perplexity_row("cache", eval_text, scores, start, **settings))


def _check_search(names: list[str], *searched: str) -> None:
    """--search finds these values, so they cannot be given with it."""
    for name in searched:
        if name in names and "search" in names:
            key = f"--{name.rstrip('_')}"
            raise SettingsError("is found by --search; leave one of them out", key=key)
    if "limit" in names and "search" not in names:
        raise SettingsError("limits what --search reads; add that", key="--limit")
