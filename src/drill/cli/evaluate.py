"""`drill evaluate`: perplexity of a trained run, as it is, adapting, or with a cache."""

import io
import shlex
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from drill.cli.display import Counter, console, note
from drill.cli.evaluate_adaptive import (
    CACHE_NAMES,
    DYNAMIC_NAMES,
    Cached,
    Dynamic,
    cached_rows,
    dynamic_rows,
)
from drill.cli.evaluate_language_model import EvaluatedText, own_text, splits_of
from drill.cli.evaluate_translation import Files, evaluate_translation
from drill.cli.evaluation_rows import Split, evaluation_line, evaluation_row, refuse_infinity
from drill.cli.options import (
    DeviceOption,
    Precision,
    QuietOption,
    RunFolderArgument,
    WeightsOption,
    loaded,
    loaded_translator,
    told,
)
from drill.errors import SettingsError
from drill.files import write_output
from drill.language_modeling.cache_pointer import check_cache_settings
from drill.language_modeling.dynamic_evaluation import check_dynamic_settings
from drill.language_modeling.perplexity import Perplexity, perplexity, token_losses
from drill.language_modeling.run import Run
from drill.training.precision import effective, for_dynamic_evaluation, products
from drill.training.run.folder import json_row
from drill.training.run.weights import task_of
from drill.training.settings import TRANSLATION
from drill.translation.build import refuse_unready

OF_DYNAMIC = ("lr", "pull", "epsilon", "every", "limit")
OF_CACHE = ("window", "theta", "share", "published", "chunk")
SEARCHED = ("lr", "pull", "theta", "share")
OF_TEXTS = ("text", "dynamic", "cache", "search", "batch_size", "losses", *OF_DYNAMIC, *OF_CACHE)
OF_TRANSLATORS = (
    "beam",
    "length_penalty",
    "batch_tokens",
    "words",
    "tokenize",
    "source",
    "reference",
)


def evaluate(
    context: typer.Context,
    run: RunFolderArgument,
    split: Annotated[
        list[Split] | None, typer.Option(help="valid and test by default; may be repeated.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Of a language model: a text of your own, not a split.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Adapt to the text.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="Point to recent words.")] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Tune --dynamic or --cache on validation first.")
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Columns; by default as in training, 10 and 1.")
    ] = None,
    lr: Annotated[float, typer.Option(help="Of --dynamic: length of the steps.")] = 5e-5,
    pull: Annotated[float, typer.Option(help="Of --dynamic: pull to the start.")] = 0.002,
    epsilon: Annotated[float, typer.Option(help="Of --dynamic: bounds rare steps.")] = 2e-5,
    every: Annotated[
        int, typer.Option(min=1, help="Of --dynamic: tokens a step, in its statistics too.")
    ] = 5,
    limit: Annotated[
        int, typer.Option(min=10, help="Of --dynamic --search: tokens of validation read.")
    ] = 30_000,
    window: Annotated[int, typer.Option(min=1, help="Of --cache: words held.")] = 500,
    theta: Annotated[float, typer.Option(help="Of --cache: how much nearness counts.")] = 1.0,
    share: Annotated[float, typer.Option(help="Of --cache: its share of p.")] = 0.1,
    published: Annotated[
        bool, typer.Option("--published", help="Of --cache: skip what the released code skips.")
    ] = False,
    chunk: Annotated[
        int, typer.Option(min=1, help="Of --cache: tokens at a time; --published skips by it.")
    ] = 2000,
    losses: Annotated[
        Path | None,
        typer.Option(help="Write -log p of every token to this .npy file; of one text."),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Of a translator: places; the run's by default.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Of a translator: the run's by default.")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Of a translator: subwords searched together.")
    ] = 4096,
    words: Annotated[
        bool,
        typer.Option("--words", help="Of a translator: which words are right, by frequency."),
    ] = False,
    tokenize: Annotated[
        str | None,
        typer.Option(help="Of a translator: how BLEU cuts words; by its language by default."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Of a translator: a text of your own, with --reference.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Of a translator: that text in the other language.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    weights: WeightsOption = None,
    precision: Annotated[Precision | None, typer.Option(help="The run's by default.")] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Perplexity of a run's model on its corpus, or on a --text.

    By predicted token (N - 1), and divided by all tokens (N) as published numbers are. Of a
    translator loss, BLEU and chrF; its translations go to RUN/<split>.<language>.hyp, but for those
    of --source. Results also go to RUN/evaluations.jsonl.
    """
    translator = task_of(run) == TRANSLATION
    given = [name for name in context.params if _is_given(context, name)]
    for name in given:
        if name in (OF_TEXTS if translator else OF_TRANSLATORS):
            raise _is_for_the_other_task(name, run, translator)
    if translator:
        pairs = _pairs(split, source, reference)
        refuse_unready(run, "evaluating", text=words or not isinstance(pairs, Files))
        with told():
            evaluate_translation(
                loaded_translator(run, weights, device),
                pairs,
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
    if text is not None and split:
        raise SettingsError("--split: is of the run's own corpus; leave it or --text out")
    splits = split or [Split.valid, Split.test]
    _refuse_what_is_not_used(given, 1 if text is not None else len(splits), precision)
    with told():  # before statistics are gathered for minutes
        if dynamic:
            check_dynamic_settings(lr, pull, epsilon, DYNAMIC_NAMES)
        elif cache:
            check_cache_settings(window, [theta], [share], CACHE_NAMES)
    held = loaded(run, weights, device)
    where = torch.device(next(held.model.parameters()).device)
    chosen: Any = precision.value if precision else held.settings.training["precision"]
    if dynamic:
        chosen = for_dynamic_evaluation(chosen, where)
    with products(chosen, where) as autocast, told():
        texts = splits_of(held, splits) if text is None else [own_text(held, text)]
        if dynamic:
            stepped = Dynamic(lr, pull, epsilon, every, limit)
            rows = dynamic_rows(held, texts, search, stepped, quiet)
        elif cache:
            cached = Cached(window, theta, share, published, chunk)
            rows = cached_rows(held, texts, search, cached, autocast, quiet)
        else:
            rows = _plain(held, texts, batch_size, autocast, losses, quiet)
        kept = []
        for row in rows:
            row = {
                "run": str(run),
                **held.origin.row(),
                "precision": effective(chosen, where),
                **row,
            }
            if as_json:
                typer.echo(json_row(row))
            else:
                console().print(evaluation_line(row), soft_wrap=True)
            held.folder.keep_evaluation(row)  # printed first: a full disk takes nothing away
            kept.append(row)
        if (dynamic or cache) and not as_json:
            _tell_of_columns(run, texts)
        refuse_infinity(kept)


def _pairs(
    split: Sequence[Split] | None, source: Path | None, reference: Path | None
) -> list[str] | Files:
    """What a translator is held against."""
    if source is None and reference is None:
        return [each.value for each in split or [Split.valid, Split.test]]
    if source is None or reference is None:
        given, lacking = ("source", "reference") if reference is None else ("reference", "source")
        raise SettingsError(f"--{given}: is one of two texts that belong together; add --{lacking}")
    if split:
        raise SettingsError("--split: is of the run's own corpus; leave it or --source out")
    return Files(source, reference)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_for_the_other_task(name: str, run: Path, translator: bool) -> SettingsError:
    kind = "language models" if translator else "translators"
    mend = {
        "text": "; --source and --reference read other pairs",
        "source": "; --text reads another text",
        "reference": "; --text reads another text",
    }.get(name, "")
    return SettingsError(f"--{name.replace('_', '-')}: is for {kind}, which {run} is not{mend}")


def _refuse_what_is_not_used(given: Sequence[str], texts: int, precision: Precision | None) -> None:
    """An option of the command line that would change nothing is a mistake."""
    for needed, names in (("dynamic", OF_DYNAMIC), ("cache", OF_CACHE)):
        for name in given:
            if name in names and needed not in given:
                raise SettingsError(f"--{name}: says something about --{needed}; add that")
    kinds = [name for name in ("dynamic", "cache") if name in given]
    if len(kinds) == 2:
        raise SettingsError("--dynamic and --cache: choose one of them")
    if "search" in given and not kinds:
        raise SettingsError("--search: tunes --dynamic or --cache; add one of them")
    if "batch_size" in given and kinds:
        raise SettingsError(f"--batch-size: --{kinds[0]} reads one column; leave it out")
    for name in SEARCHED:
        if name in given and "search" in given:
            raise SettingsError(f"--{name}: is what --search looks for; leave one of them out")
    if "limit" in given and "search" not in given:
        raise SettingsError("--limit: bounds what --search reads; add that")
    if "losses" in given and (texts != 1 or kinds):
        raise SettingsError(
            "--losses: needs one --split or a --text, and neither --dynamic nor --cache"
        )
    if precision is Precision.bfloat16 and "dynamic" in kinds:
        raise SettingsError(
            "--precision bfloat16: is too coarse for the steps of --dynamic; choose float32 or tf32"
        )


def _plain(
    run: Run,
    texts: Sequence[EvaluatedText],
    batch_size: int | None,
    autocast: torch.dtype | None,
    losses: Path | None,
    quiet: bool,
) -> Iterator[dict[str, Any]]:
    training = run.settings.training
    for text in texts:
        batch, start = batch_size or text.columns, time.monotonic()
        call = partial(
            perplexity if losses is None else token_losses,
            run.model,
            text.ids,
            batch_size=batch,
            bptt=training["bptt"],
            autocast=autocast,
        )
        with Counter(text.name, quiet) as progress:
            found: Any = call(progress=progress)
        if losses is not None:
            values, content = found.numpy(), io.BytesIO()  # np.save does not write into pipes
            np.save(content, values)
            write_output(losses, content.getvalue())
            found = Perplexity(float(values.sum(dtype=np.float64)), len(values), batch)
        yield evaluation_row("plain", text.told, found, start, {})


def _tell_of_columns(run: Path, texts: Sequence[EvaluatedText]) -> None:
    """Every column begins without context, so figures of more columns are a little higher."""
    for text in texts:
        if text.columns != 1:
            again = shlex.join(["drill", "evaluate", str(run), *text.options, "--batch-size", "1"])
            note(
                f"{text.name}: training and plain evaluation read it in {text.columns} columns, "
                f"this in one; compare with `{again}`"
            )
