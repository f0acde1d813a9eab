"""`drill generate` and `drill score`: sample text from a language model; log p of lines."""

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from drill.cli import options
from drill.cli.display import note
from drill.cli.options import as_settings_error, is_standard_input, name_of
from drill.errors import DataError

if TYPE_CHECKING:
    from drill.data import Vocabulary
    from drill.language_modeling.run import LanguageModelRun
    from drill.language_modeling.scoring import Scored

UNK = "<unk>"
NAMED_AT_MOST = 20  # unknown words of a text


def generate(
    run: options.Run,
    prompt: Annotated[str, Option(help="Text to continue, words separated by spaces.")] = "",
    max_new_tokens: Annotated[int, Option(min=1, help="Maximum number of new tokens.")] = 100,
    temperature: Annotated[
        float, Option(min=0.0, help="Sampling temperature; 0 is greedy decoding.")
    ] = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    samples: Annotated[int, Option(min=1, help="Number of texts.")] = 1,
    allow_unk: Annotated[bool, Option("--allow-unk", help=f"Allow {UNK} to be generated.")] = False,
    weights: options.Weights = None,
    device: options.Device = "auto",
) -> None:
    """Generate text with a language model, printed token by token."""
    from drill.language_modeling.generation import BETWEEN_SAMPLES
    from drill.language_modeling.generation import generate as generated
    from drill.language_modeling.run import load_language_model

    loaded = load_language_model(run, weights, device)
    with as_settings_error():
        pieces = generated(
            loaded.model,
            loaded.vocabulary,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            samples=samples,
            allow_unk=allow_unk,
        )
    unknown = loaded.vocabulary.unknown_words(prompt)
    if unknown:
        _name_unknown(unknown)
        _note_if_unk_is_untrained(loaded.vocabulary)
    start = typer.style(prompt.rstrip(" "), bold=True) if prompt else ""
    typer.echo(start, nl=False)  # bold on a terminal only
    for piece in pieces:
        typer.echo(piece, nl=False)
        if piece == BETWEEN_SAMPLES:
            typer.echo(start, nl=False)
    typer.echo()


def score(
    run: options.Run,
    file: options.Lines = None,
    as_json: options.JsonLines = False,
    weights: options.Weights = None,
    device: options.Device = "auto",
) -> None:
    """Print the log-probability of every line of a text.

    Each line is scored on its own. Columns: log p (in nats, with the end of the line), tokens
    (words and the end), unknown (words that are <unk> to the model), perplexity
    (exp(-log p / tokens)), text. <unk> has the probability of all unknown words together, which may
    be high: do not compare lines with different numbers of them. Unknown words are listed on
    standard error; with --json per line, with the log-probability of every word.
    """
    from drill.language_modeling.run import load_language_model

    loaded = load_language_model(run, weights, device)
    print_scores(loaded, file, as_json=as_json)


def print_scores(loaded: "LanguageModelRun", file: Path | None, *, as_json: bool) -> None:
    """The lines of `drill score`."""
    from drill.language_modeling.scoring import score as scored

    # Line by line for somebody who types, else in blocks, which is faster.
    interactive = is_standard_input(file) and sys.stdin is not None and sys.stdin.isatty()
    scores = scored(
        loaded.model,
        loaded.vocabulary,
        chain.from_iterable(options.blocks_of_lines(file)),
        lines_per_block=1 if interactive else 1024,
    )
    unknown: dict[str, None] = {}  # in the order of the text, each once
    empty = True
    for line in scores:
        empty = False
        typer.echo(_printed(line, as_json))
        unknown |= dict.fromkeys(line.unknown)
    if empty:
        raise DataError("has no line", key=name_of(file), hint="give one sentence per line")
    if not as_json:
        _name_unknown([*unknown])
    if unknown:
        _note_if_unk_is_untrained(loaded.vocabulary)


def _name_unknown(words: Sequence[str]) -> None:
    others = [word for word in words if word != UNK]
    shown = others[:NAMED_AT_MOST]
    more = f" and {len(others) - len(shown):,} more" if others[len(shown) :] else ""
    if others:
        note(f"not in the vocabulary, read as {UNK}: {' '.join(shown)}{more}")


def _note_if_unk_is_untrained(vocabulary: "Vocabulary") -> None:
    """For a text with unknown words: whether training has seen <unk> at all."""
    if vocabulary.counts[vocabulary.ids[UNK]] == 0:
        note(
            f"{UNK} does not occur in the training text, so its probability is untrained and means "
            "nothing; train with a larger data.min_count"
        )


def _printed(line: "Scored", as_json: bool) -> str:
    from drill.training.run.folder import json_row

    if not as_json:
        numbers = f"{line.log_prob:.4f}\t{line.tokens}\t{len(line.unknown)}\t{line.perplexity:.2f}"
        return f"{numbers}\t{line.text}"
    row: dict[str, Any] = {
        "text": line.text,
        "log_prob": line.log_prob,
        "tokens": line.tokens,
        "perplexity": line.perplexity,
        "unknown": list(line.unknown),
        "words": list(zip(line.words, line.log_probs, strict=True)),
    }
    return json_row(row, ensure_ascii=False)
