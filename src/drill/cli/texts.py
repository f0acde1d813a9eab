"""`drill generate` and `drill score`: texts out of a trained run, and texts held against it."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from drill.cli.display import note
from drill.cli.trained import (
    DeviceOption,
    RunFolderArgument,
    WeightsOption,
    loaded,
    told,
)
from drill.data import UNK, DataError
from drill.evaluation.scoring import Scored, unknown_words
from drill.evaluation.scoring import score as scored
from drill.generation import BETWEEN_SAMPLES
from drill.generation import generate as generated
from drill.recipes import SettingsError

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
        strange = unknown_words(held.vocabulary, prompt)
        if strange:
            note(f"{READ_AS_UNKNOWN}{' '.join(strange)}")
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
        Path | None, typer.Argument(help="One sentence a line; standard input by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Also log p of every word.")] = False,
    header: Annotated[bool, typer.Option("--header", help="Name the columns first.")] = False,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Print the log-probability of every line.

    Each line on its own, in columns: log p (in nats, the line's end included), tokens (its words
    and the end), unknown (how many of its words the model does not know), perplexity
    (exp(-log p / tokens)), text. An unknown word has the probability of all unknown words
    together, which may be high: lines with different numbers of them do not compare. They are
    named on standard error; --json has those of every line.
    """
    if header and as_json:
        raise SettingsError("--header: names columns, and JSON lines name their own; leave it out")
    held = loaded(run, weights, device)
    with told(), ExitStack() as stack:
        # One by one where somebody waits for the answer, else together, which is faster.
        waited = file is None and sys.stdin.isatty()
        lines = sys.stdin.buffer if file is None else stack.enter_context(opened(file))
        name = "standard input" if file is None else str(file)
        texts = _texts(lines, name)
        block = 1 if waited else 1024
        strange: dict[str, None] = {}  # in the order of the text, each once
        if header:
            typer.echo("\t".join(COLUMNS))
        count = 0
        kept = held.folder.line_start
        for each in scored(
            held.model, held.vocabulary, texts, lines_per_block=block, start_file=kept
        ):
            count += 1
            typer.echo(_as_json(each, words) if as_json else _as_text(each, words))
            if waited and each.unknown:
                note(f"{READ_AS_UNKNOWN}{' '.join(each.unknown)}")
            strange |= dict.fromkeys(each.unknown)
        if count == 0:
            raise DataError(f"{name}: holds no line to score; give one sentence a line")
        if strange and not waited and not as_json:
            named = " ".join([*strange][:NAMED_AT_MOST])
            more = len(strange) - NAMED_AT_MOST
            note(
                f"{READ_AS_UNKNOWN}{named}"
                + (f" and {more:,} more; --json has those of every line" if more > 0 else "")
            )


def opened(file: Path) -> Any:
    """A file to read bytes from."""
    try:
        return file.open("rb")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); name a text file") from None


def _texts(lines: Any, name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{name}: line {number} is not UTF-8; convert it first") from None


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
    return json.dumps(row, ensure_ascii=False)


def _as_text(each: Scored, words: bool) -> str:
    numbers = f"{each.log_prob:.4f}\t{each.tokens}\t{len(each.unknown)}\t{each.perplexity:.2f}"
    line = f"{numbers}\t{each.text}"
    if words:
        pairs = zip(each.words, each.log_probs, strict=True)
        line += "".join(f"\n\t{value:.4f}\t{word}" for word, value in pairs)
    return line
