"""`drill generate` and `drill score`: texts out of a trained run, and texts held against it."""

import math
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from drill.cli.display import note
from drill.cli.evaluation_rows import OTHER_WEIGHTS
from drill.cli.input_lines import blocks_of_lines, is_standard_input, name_of
from drill.cli.options import DeviceOption, RunFolderArgument, WeightsOption, loaded, told
from drill.data import UNK, DataError, Vocabulary
from drill.errors import SettingsError
from drill.language_modeling.generation import BETWEEN_SAMPLES
from drill.language_modeling.generation import generate as generated
from drill.language_modeling.scoring import Scored, read_as_unknown
from drill.language_modeling.scoring import score as scored
from drill.training.run.folder import json_row

READ_AS_UNKNOWN = f"not in the vocabulary, read as {UNK}: "
NAMED_AT_MOST = 20  # unknown words of a text that is scored
COLUMNS = ("log p", "tokens", "unknown", "perplexity", "text")


def generate(
    run: RunFolderArgument,
    prompt: Annotated[str, typer.Option(help="Words to go on from, separated by spaces.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many, line ends counted.")] = 100,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, 0 the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Only so many likeliest words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only those that make up p.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same text again.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    unknown: Annotated[bool, typer.Option("--unknown", help=f"Let {UNK} be drawn.")] = False,
    echo: Annotated[
        bool, typer.Option("--echo/--no-echo", help="Begin each text with the prompt.")
    ] = True,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Write text, word by word as it is drawn."""
    held = loaded(run, weights, device)
    with told():
        pieces = generated(
            held.model,
            held.vocabulary,
            prompt=prompt,
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            samples=samples,
            allow_unknown=unknown,
            start_file=held.folder.line_start,
        )
        strange = read_as_unknown(held.vocabulary, prompt)
        if strange:
            _name_unknown(strange)
            tell_if_never_trained(held.vocabulary)
        begun = typer.style(prompt.rstrip(" "), bold=True) if echo and prompt else ""
        typer.echo(begun, nl=False)  # bold on a terminal only
        for piece in pieces:
            typer.echo(piece, nl=False)
            if piece == BETWEEN_SAMPLES:
                typer.echo(begun, nl=False)
        typer.echo()


def score(
    run: RunFolderArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="One sentence a line; - or none: standard input."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Also log p of every word.")] = False,
    header: Annotated[bool, typer.Option("--header", help="Name the columns first.")] = False,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Print the log-probability of every line.

    Each line on its own, in columns: log p (in nats, the line's end included), tokens (its words
    and the end), unknown (how many of its words are <unk> to the model), perplexity
    (exp(-log p / tokens)), text. An unknown word has the probability of all unknown words
    together, which may be high: lines with different numbers of them do not compare. They are
    named on standard error; --json has those of every line.
    """
    if header and as_json:
        raise SettingsError("--header: names columns, and JSON lines name their own; leave it out")
    held = loaded(run, weights, device)
    with told():
        # One by one where somebody waits for the answer, else together, which is faster.
        waited = is_standard_input(file) and sys.stdin.isatty()
        found = scored(
            held.model,
            held.vocabulary,
            chain.from_iterable(blocks_of_lines(file)),
            lines_per_block=1 if waited else 1024,
            start_file=held.folder.line_start,
        )
        strange: dict[str, None] = {}  # in the order of the text, each once
        infinite, count = 0, 0
        for count, each in enumerate(found, start=1):
            if header and count == 1:
                typer.echo("\t".join(COLUMNS))
            typer.echo(_as_json(each, words) if as_json else _as_text(each, words))
            if waited:
                _name_unknown(each.unknown)
            if each.unknown and not strange:
                tell_if_never_trained(held.vocabulary)
            strange |= dict.fromkeys(each.unknown)
            if not infinite and math.isinf(each.perplexity):
                infinite = count
        if count == 0:  # a figure was asked for, and there is none
            raise DataError(f"{name_of(file)}: holds no line to score; give one sentence a line")
        if not waited and not as_json:
            _name_unknown([*strange], at_most=NAMED_AT_MOST)
        if infinite:  # printed, but no success: see refuse_infinity
            raise DataError(
                f"{name_of(file)}: line {infinite}: the perplexity is infinite: {OTHER_WEIGHTS}"
            )


def _name_unknown(words: Sequence[str], at_most: int | None = None) -> None:
    others = [word for word in words if word != UNK]
    left = len(others[at_most:]) if at_most is not None else 0
    if others:
        note(
            f"{READ_AS_UNKNOWN}{' '.join(others[:at_most])}"
            + (f" and {left:,} more; --json has those of every line" if left else "")
        )


def tell_if_never_trained(vocabulary: Vocabulary) -> None:
    """Of a text with unknown words: whether training has shown what they are read as."""
    if vocabulary.counts[vocabulary.ids[UNK]] == 0:
        note(
            f"{UNK} is nowhere in the training text, so the model has learnt nothing of it and "
            "what it costs means nothing; a larger data.minimum_count puts it there"
        )


def _as_json(each: Scored, words: bool) -> str:
    row: dict[str, Any] = {
        "text": each.text,
        "log_prob": each.log_prob,
        "tokens": each.tokens,
        "perplexity": each.perplexity,
        "unknown": list(each.unknown),
    }
    if words:
        row["words"] = list(zip(each.words, each.log_probs, strict=True))
    return json_row(row, ensure_ascii=False)


def _as_text(each: Scored, words: bool) -> str:
    numbers = f"{each.log_prob:.4f}\t{each.tokens}\t{len(each.unknown)}\t{each.perplexity:.2f}"
    line = f"{numbers}\t{each.text}"
    if words:
        pairs = zip(each.words, each.log_probs, strict=True)
        line += "".join(f"\n{value:.4f}\t\t\t\t{word}" for word, value in pairs)
    return line
