"""`drill evaluate`: the scores of a trained run."""

from pathlib import Path
from typing import Annotated

import typer

from drill.cli import options
from drill.cli.options import Split, as_settings_error, given
from drill.errors import SettingsError

LANGUAGE_MODEL_OPTIONS = {"text", "batch_size", "losses"}
TRANSLATOR_OPTIONS = {"beam", "length_penalty", "batch_tokens", "tokenize"}
TRANSLATOR_OPTIONS |= {"source", "reference"}

SplitOption = Annotated[
    list[Split] | None, typer.Option("--split", help="Repeatable; valid and test by default.")
]
TextOption = Annotated[
    Path | None,
    typer.Option("--text", help="Language models: a text file to evaluate instead of a split."),
]


def evaluate(
    context: typer.Context,
    run: options.Run,
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
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    batch_tokens: options.BatchTokens = 4096,
    bands: Annotated[
        bool,
        typer.Option("--bands", help="Loss, or accuracy of translators, by frequency of words."),
    ] = False,
    tokenize: Annotated[
        str | None,
        typer.Option(help="Translators: sacreBLEU tokenizer; by target language by default."),
    ] = None,
    as_json: options.Json = False,
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
    for name in given(context):
        if name in (LANGUAGE_MODEL_OPTIONS if translator else TRANSLATOR_OPTIONS):
            kind = "language models" if translator else "translators"
            raise SettingsError(f"is for {kind}, which {run} is not", key=option_name(name))
    if translator:
        from drill.cli.evaluation.translation import evaluate_translation
        from drill.translation.build import check_ready
        from drill.translation.run import load_translation

        if (source is None) != (reference is None):
            raise SettingsError("are given together", key="--source and --reference")
        check_one_text(split, source, "--source")
        check_ready(run, "evaluating", text=bands or source is None)
        with as_settings_error():
            evaluate_translation(
                load_translation(run, weights, device),
                split or ("valid", "test"),
                (source, reference) if source and reference else None,
                beam=beam,
                length_penalty=length_penalty,
                batch_tokens=batch_tokens,
                words=bands,
                tokenize=tokenize,
                precision=precision,
                as_json=as_json,
                quiet=quiet,
            )
        return
    from drill.cli.evaluation.language_model import evaluate_plain, evaluation

    check_one_text(split, text, "--text")
    if losses is not None and text is None and len(split or ()) != 1:
        raise SettingsError("needs one --split or a --text", key="--losses")
    with evaluation(run, split, text, weights, precision, device, as_json) as found:
        evaluate_plain(found, batch_size, losses, bands, quiet)


def option_name(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"


def check_one_text(split: list[Split] | None, own: object, option: str) -> None:
    if split and own is not None:
        raise SettingsError(
            f"is a split of the run's corpus; leave it or {option} out", key="--split"
        )
