"""`drill dynamic` and `drill cache`: perplexity of models that adapt to the text."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drill.cli import options
from drill.cli.display import Counter, note
from drill.cli.evaluation.evaluate import SplitOption, TextOption, check_one_text, option_name
from drill.cli.options import as_settings_error, given
from drill.errors import SettingsError

if TYPE_CHECKING:
    from drill.cli.evaluation.language_model import EvaluatedText
    from drill.language_modeling.run import LanguageModelRun

# What the arguments of the functions are called on the command line.
DYNAMIC_NAMES = {"lr": "--lr:", "lamb": "--decay:", "epsilon": "--eps:"}
CACHE_NAMES = {"window": "--window:", "theta": "--theta:", "lamb": "--lambda:"}

SearchOption = Annotated[bool, typer.Option("--search", help="Tune on the validation split first.")]


def dynamic(
    context: typer.Context,
    run: options.Run,
    split: SplitOption = None,
    text: TextOption = None,
    search: SearchOption = False,
    lr: Annotated[float, typer.Option(help="Learning rate of the gradient steps.")] = 5e-5,
    decay: Annotated[
        float, typer.Option(help="Decay of the weights towards the trained ones.")
    ] = 0.002,
    epsilon: Annotated[
        float,
        typer.Option("--eps", help="Added to the RMS of the gradients that steps are divided by."),
    ] = 2e-5,
    segment_length: Annotated[
        int, typer.Option(min=1, help="Tokens between two gradient steps.")
    ] = 5,
    limit: Annotated[
        int, typer.Option(min=10, help="Validation tokens that --search reads.")
    ] = 30_000,
    as_json: options.Json = False,
    weights: options.Weights = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Perplexity of a language model with dynamic evaluation.

    The weights adapt to the text while it is read, by gradient steps on every segment (Krause et
    al. 2018). Results are appended to RUN/evaluations.jsonl.
    """
    from drill.cli.evaluation.language_model import evaluation, perplexity_row
    from drill.language_modeling.evaluation.dynamic_evaluation import (
        check_dynamic_settings,
        dynamic_perplexity,
        dynamic_search,
    )
    from drill.language_modeling.evaluation.gradient_statistics import (
        BATCH_SIZE,
        gradient_statistics,
        statistics_batch_size,
    )

    check_one_text(split, text, "--text")
    _check_tuned(given(context), "lr", "decay")
    if precision == "bfloat16":
        raise SettingsError(
            "too coarse for dynamic evaluation", key="--precision bfloat16", hint="use float32"
        )
    with as_settings_error():
        check_dynamic_settings(lr, decay, epsilon, DYNAMIC_NAMES)
    fixed: dict[str, Any] = {"epsilon": epsilon, "bptt": segment_length}
    shared = (run, split, text, weights, precision, device, as_json)
    with evaluation(*shared, dynamic=True) as (trained, texts, _, add):
        _check_carries_state("dynamic evaluation", trained)
        start, folder, tokens = time.monotonic(), trained.folder.path, len(trained.ids.train)
        size = statistics_batch_size(tokens, segment_length)
        if size < BATCH_SIZE:
            note(
                f"the training text has {tokens:,} tokens, too few for batch size {BATCH_SIZE} and "
                f"segments of {segment_length + 1}: gradient statistics are taken at batch size "
                f"{size}"
            )
        with Counter("gradient statistics", quiet) as progress:
            statistics = gradient_statistics(
                trained.model,
                trained.ids.train,
                batch_size=size,
                bptt=segment_length,
                progress=progress,
                file=folder / "dynamic.safetensors",
            )
        rates: dict[str, Any] = {"lr": lr, "lamb": decay}
        if search:
            try:
                with Counter("search on validation", quiet) as progress:
                    found = dynamic_search(
                        trained.model,
                        trained.ids.valid,
                        statistics,
                        **fixed,
                        limit=limit,
                        file=folder / "dynamic-search.json",
                        progress=progress,
                    )
            except KeyboardInterrupt:
                note("stopped; every setting that was tried is saved, the same command resumes")
                raise
            rates = {key: found.best.settings[key] for key in rates}
            note(f"tuned on validation: lr {rates['lr']:g}, decay {rates['lamb']:g}")
        settings = {"lr": rates["lr"], "decay": rates["lamb"], "epsilon": epsilon}
        settings |= {"segment_length": segment_length, "statistics_batch_size": size}
        for each in texts:
            with Counter(f"dynamic, {each.name}", quiet) as progress:
                scored = dynamic_perplexity(
                    trained.model, each.ids, statistics, **rates, **fixed, progress=progress
                )
            add(*perplexity_row("dynamic", each, scored, start, **settings))
            start = time.monotonic()
        _note_batch_size(run, texts, as_json)


def cache(
    context: typer.Context,
    run: options.Run,
    split: SplitOption = None,
    text: TextOption = None,
    search: SearchOption = False,
    window: Annotated[int, typer.Option(min=1, help="Size of the cache in words.")] = 500,
    theta: Annotated[
        float, typer.Option(help="Scale of the similarity of hidden states; 0 counts words.")
    ] = 1.0,
    lambda_: Annotated[
        float, typer.Option("--lambda", help="Weight of the cache in the mixture, 0 to 1.")
    ] = 0.1,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="No cache at the start of the text and of chunks, as in the released code.",
        ),
    ] = False,
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens read at a time; --published skips by it.")
    ] = 2000,
    as_json: options.Json = False,
    weights: options.Weights = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Perplexity of a language model with a continuous cache pointer.

    The prediction is mixed with one from recent words in similar contexts (Grave et al. 2017).
    Results are appended to RUN/evaluations.jsonl.
    """
    from drill.cli.evaluation.language_model import evaluation, perplexity_row
    from drill.language_modeling.evaluation.cache_pointer import (
        cache_perplexity,
        cache_search,
        check_cache_settings,
    )

    check_one_text(split, text, "--text")
    _check_tuned(given(context), "theta", "lambda_")
    with as_settings_error():
        check_cache_settings(window, [theta], [lambda_], CACHE_NAMES)
    fixed: dict[str, Any] = {"window": window, "bptt": chunk, "published": published}
    shared = (run, split, text, weights, precision, device, as_json)
    with evaluation(*shared) as (trained, texts, autocast, add):
        _check_carries_state("the cache pointer", trained)
        fixed["autocast"] = autocast
        mixture: dict[str, Any] = {"theta": theta, "lamb": lambda_}
        if search:
            with Counter("search on validation", quiet) as progress:
                found = cache_search(trained.model, trained.ids.valid, **fixed, progress=progress)
            mixture = {key: found.best.settings[key] for key in mixture}
            note(f"tuned on validation: theta {mixture['theta']:g}, lambda {mixture['lamb']:g}")
        settings = {"window": window, "theta": mixture["theta"], "lambda": mixture["lamb"]}
        settings |= {"as_published": published, **({"chunk": chunk} if published else {})}
        for each in texts:
            start = time.monotonic()
            with Counter(f"cache, {each.name}", quiet) as progress:
                scored = cache_perplexity(
                    trained.model, each.ids, **mixture, **fixed, progress=progress
                )
            add(*perplexity_row("cache", each, scored, start, **settings))
        _note_batch_size(run, texts, as_json)


def _check_tuned(names: list[str], *tuned: str) -> None:
    """--search finds these values, so they cannot be given with it."""
    for name in tuned:
        if name in names and "search" in names:
            raise SettingsError(
                "is tuned by --search; leave one of them out", key=option_name(name)
            )
    if "limit" in names and "search" not in names:
        raise SettingsError("limits what --search reads; add that", key="--limit")


def _check_carries_state(what: str, run: "LanguageModelRun") -> None:
    if not run.model.encoder.carries_state:
        raise SettingsError(
            f"{what} needs an encoder that carries a state from segment to segment",
            key=str(run.folder.path),
            hint="use `drill evaluate`",
        )


def _note_batch_size(run: Path, texts: "Sequence[EvaluatedText]", as_json: bool) -> None:
    for text in texts:
        if text.batch_size != 1 and not as_json:
            option = "--text" if "text" in text.row else "--split"
            words = ["drill", "evaluate", str(run), option, text.name, "--batch-size", "1"]
            note(
                f"{text.name}: training and `drill evaluate` use batch size {text.batch_size}, "
                f"this 1; compare with `{shlex.join(words)}`"
            )
