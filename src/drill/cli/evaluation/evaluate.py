"""`drill evaluate`, `drill dynamic` and `drill cache`: the scores of a trained run."""

from pathlib import Path
from typing import Annotated

import typer

from drill.cli.options import (
    BatchTokensOption,
    BeamOption,
    DeviceOption,
    JsonOption,
    LengthPenaltyOption,
    Precision,
    PrecisionOption,
    QuietOption,
    RunFolderArgument,
    Split,
    WeightsOption,
    as_settings_error,
    given,
    load_translator,
)
from drill.errors import SettingsError

LANGUAGE_MODEL_OPTIONS = {"text", "batch_size", "losses"}
TRANSLATOR_OPTIONS = {"beam", "length_penalty", "batch_tokens", "tokenize"}
TRANSLATOR_OPTIONS |= {"source", "reference"}

# What the arguments of the functions are called on the command line.
DYNAMIC_NAMES = {"lr": "--lr:", "lamb": "--decay:", "epsilon": "--epsilon:"}
CACHE_NAMES = {"window": "--window:", "theta": "--theta:", "lamb": "--lambda:"}

SplitOption = Annotated[
    list[Split] | None, typer.Option("--split", help="Repeatable; valid and test by default.")
]
TextOption = Annotated[
    Path | None,
    typer.Option("--text", help="Language models: a text file to evaluate instead of a split."),
]
SearchOption = Annotated[bool, typer.Option("--search", help="Tune on the validation split first.")]


def evaluate(
    context: typer.Context,
    run: RunFolderArgument,
    split: SplitOption = None,
    text: TextOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Language models: sequences processed in parallel; those of training by default.",
        ),
    ] = None,
    losses: Annotated[
        Path | None,
        typer.Option(
            help="Language models: write -log p of every token to this .npy file, for one split or "
            "text."
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Translators: a text file to translate, with --reference.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Translators: the reference translation of --source.")
    ] = None,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    batch_tokens: BatchTokensOption = 4096,
    words: Annotated[
        bool,
        typer.Option("--words", help="Loss, or accuracy of translators, by frequency of words."),
    ] = False,
    tokenize: Annotated[
        str | None,
        typer.Option(help="Translators: sacreBLEU tokenizer; by target language by default."),
    ] = None,
    as_json: JsonOption = False,
    weights: WeightsOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Perplexity of a language model, BLEU of a translator.

    Perplexity is exp(total loss / (N - 1)) over the N - 1 predicted tokens of a text of N tokens.
    Papers divide by N; that figure is printed next to it. Translations of a split
    are written to RUN/<split>.<language>.hyp. Results are appended to RUN/evaluations.jsonl.
    """
    from drill.training.run.weights import task_of
    from drill.training.settings import TRANSLATION

    translator = task_of(run) == TRANSLATION
    for name in given(context):
        if name in (LANGUAGE_MODEL_OPTIONS if translator else TRANSLATOR_OPTIONS):
            kind = "language models" if translator else "translators"
            raise SettingsError(f"is for {kind}, which {run} is not", key=_option(name))
    if translator:
        from drill.cli.evaluation.translation import Files, evaluate_translation
        from drill.translation.build import check_ready

        if (source is None) != (reference is None):
            raise SettingsError("are given together", key="--source and --reference")
        own = None if source is None or reference is None else Files(source, reference)
        _check_one_text(split, own, "--source")
        check_ready(run, "evaluating", text=words or own is None)
        with as_settings_error():
            evaluate_translation(
                load_translator(run, weights, device),
                own or [each.value for each in split or (Split.valid, Split.test)],
                beam=beam,
                length_penalty=length_penalty,
                batch_tokens=batch_tokens,
                words=words,
                tokenize=tokenize,
                precision=precision.value if precision else None,
                as_json=as_json,
                quiet=quiet,
            )
        return
    from drill.cli.evaluation.language_model import Evaluation, plain_rows

    _check_one_text(split, text, "--text")
    if losses is not None and text is None and len(split or ()) != 1:
        raise SettingsError("needs one --split or a --text", key="--losses")
    shared = (run, split, text, weights, precision, device, as_json, quiet)
    Evaluation(*shared).run(plain_rows, batch_size=batch_size, losses=losses, words=words)


def dynamic(
    context: typer.Context,
    run: RunFolderArgument,
    split: SplitOption = None,
    text: TextOption = None,
    search: SearchOption = False,
    lr: Annotated[float, typer.Option(help="Learning rate of the gradient steps.")] = 5e-5,
    decay: Annotated[
        float, typer.Option(help="Decay of the weights towards the trained ones.")
    ] = 0.002,
    epsilon: Annotated[
        float, typer.Option(help="Added to the RMS of the gradients that steps are divided by.")
    ] = 2e-5,
    segment_length: Annotated[
        int, typer.Option(min=1, help="Tokens between two gradient steps.")
    ] = 5,
    limit: Annotated[
        int, typer.Option(min=10, help="Validation tokens that --search reads.")
    ] = 30_000,
    as_json: JsonOption = False,
    weights: WeightsOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Perplexity of a language model with dynamic evaluation.

    The weights adapt to the text while it is read, by gradient steps on every segment (Krause et
    al. 2018). Results are appended to RUN/evaluations.jsonl.
    """
    from drill.cli.evaluation.language_model import Evaluation, dynamic_rows
    from drill.language_modeling.evaluation.dynamic_evaluation import check_dynamic_settings

    _check_one_text(split, text, "--text")
    _check_tuned(given(context), "lr", "decay")
    if precision is Precision.bfloat16:
        raise SettingsError(
            "too coarse for dynamic evaluation", key="--precision bfloat16", hint="use float32"
        )
    with as_settings_error():
        check_dynamic_settings(lr, decay, epsilon, DYNAMIC_NAMES)
    shared = (run, split, text, weights, precision, device, as_json, quiet)
    Evaluation(*shared).run(
        dynamic_rows,
        search=search,
        lr=lr,
        decay=decay,
        epsilon=epsilon,
        segment_length=segment_length,
        limit=limit,
    )


def cache(
    context: typer.Context,
    run: RunFolderArgument,
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
        bool, typer.Option("--published", help="Skip the tokens that the released code skips.")
    ] = False,
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens read at a time; --published skips by it.")
    ] = 2000,
    as_json: JsonOption = False,
    weights: WeightsOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Perplexity of a language model with a continuous cache pointer.

    The prediction is mixed with one from recent words in similar contexts (Grave et al. 2017).
    Results are appended to RUN/evaluations.jsonl.
    """
    from drill.cli.evaluation.language_model import Evaluation, cache_rows
    from drill.language_modeling.evaluation.cache_pointer import check_cache_settings

    _check_one_text(split, text, "--text")
    _check_tuned(given(context), "theta", "lambda_")
    with as_settings_error():
        check_cache_settings(window, [theta], [lambda_], CACHE_NAMES)
    shared = (run, split, text, weights, precision, device, as_json, quiet)
    Evaluation(*shared).run(
        cache_rows,
        search=search,
        window=window,
        theta=theta,
        lamb=lambda_,
        published=published,
        chunk=chunk,
    )


def _option(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"


def _check_one_text(split: list[Split] | None, own: object, option: str) -> None:
    if split and own is not None:
        raise SettingsError(
            f"is a split of the run's corpus; leave it or {option} out", key="--split"
        )


def _check_tuned(names: list[str], *tuned: str) -> None:
    """--search finds these values, so they cannot be given with it."""
    for name in tuned:
        if name in names and "search" in names:
            raise SettingsError("is tuned by --search; leave one of them out", key=_option(name))
    if "limit" in names and "search" not in names:
        raise SettingsError("limits what --search reads; add that", key="--limit")
