"""`drill evaluate`, `drill generate`, `drill score`: a trained run at work."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from drill.build import Run, load_run
from drill.cli.display import Counter, console, note
from drill.data import UNK, DataError
from drill.data.files import write_whole
from drill.evaluation import Perplexity, perplexity, token_losses
from drill.evaluation.cache import cache_perplexity, cache_search
from drill.evaluation.dynamic import dynamic_perplexity, dynamic_search
from drill.evaluation.gradients import gradient_statistics
from drill.evaluation.scoring import Scored, unknown_words
from drill.evaluation.scoring import score as scored
from drill.generation import generate as generated
from drill.recipes import SettingsError
from drill.training import products


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


class Weights(StrEnum):
    best = "best"
    last = "last"


class Precision(StrEnum):
    float32 = "float32"
    tf32 = "tf32"
    bfloat16 = "bfloat16"


RunFolderArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
WeightsOption = Annotated[Weights | None, typer.Option(help="Which weights; the best by default.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def evaluate(
    run: RunFolderArgument,
    split: Annotated[
        list[Split] | None, typer.Option(help="valid and test by default; may be repeated.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Adapt to the text.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="Point to recent words.")] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Tune --dynamic or --cache on validation first.")
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Columns; the run's 10 for valid, 1 for test.")
    ] = None,
    lr: Annotated[float, typer.Option(help="Of --dynamic: length of the steps.")] = 5e-5,
    pull: Annotated[float, typer.Option(help="Of --dynamic: pull to the start.")] = 0.002,
    epsilon: Annotated[float, typer.Option(help="Of --dynamic: bounds rare steps.")] = 2e-5,
    every: Annotated[int, typer.Option(min=1, help="Of --dynamic: tokens a step.")] = 5,
    limit: Annotated[
        int, typer.Option(min=10, help="Of --dynamic --search: tokens of validation read.")
    ] = 30_000,
    window: Annotated[int, typer.Option(min=1, help="Of --cache: words held.")] = 500,
    theta: Annotated[float, typer.Option(help="Of --cache: how much nearness counts.")] = 1.0,
    share: Annotated[float, typer.Option(help="Of --cache: its share of p.")] = 0.1,
    published: Annotated[
        bool, typer.Option("--published", help="Of --cache: skip what the released code skips.")
    ] = False,
    losses: Annotated[
        Path | None,
        typer.Option(help="Write -log p of every token to this .npy file; needs one --split."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    weights: WeightsOption = None,
    precision: Annotated[Precision | None, typer.Option(help="The run's by default.")] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Perplexity of a run's model on its corpus.

    By predicted token (N - 1), and divided by all tokens (N) as published numbers are. Results
    also go to RUN/evaluations.jsonl.
    """
    if dynamic and cache:
        raise SettingsError("--dynamic and --cache: choose one of them")
    if search and not (dynamic or cache):
        raise SettingsError("--search: tunes --dynamic or --cache; add one of them")
    splits = split or [Split.valid, Split.test]
    if losses is not None and (len(splits) != 1 or dynamic or cache):
        raise SettingsError("--losses: needs one --split, and neither --dynamic nor --cache")
    held = _loaded(run, weights, device)
    chosen: Any = precision.value if precision else held.settings.training["precision"]
    where = torch.device(next(held.model.parameters()).device)
    with products(chosen, where) as autocast, told():
        if dynamic:
            rows = _dynamic(held, splits, search, lr, pull, epsilon, every, limit, quiet)
        elif cache:
            rows = _cached(held, splits, search, window, theta, share, published, quiet)
        else:
            rows = _plain(held, splits, batch_size, autocast, losses, quiet)
        for row in rows:
            row = {"run": str(run), "weights": held.weights, "precision": chosen, **row}
            _keep(held, row)
            if as_json:
                typer.echo(json.dumps(row))
            else:
                console().print(_line(row), soft_wrap=True)


def _loaded(folder: Path, weights: Weights | None, device: str) -> Run:
    chosen: Any = None if weights is None else weights.value
    return load_run(folder, chosen, device)


def _plain(
    run: Run,
    splits: list[Split],
    batch_size: int | None,
    autocast: torch.dtype | None,
    losses: Path | None,
    quiet: bool,
) -> Iterator[dict[str, Any]]:
    training = run.settings.training
    for split in splits:
        default = training["test_batch_size" if split is Split.test else "valid_batch_size"]
        batch, start = batch_size or default, time.monotonic()
        call = partial(
            perplexity if losses is None else token_losses,
            run.model,
            getattr(run.ids, split),
            batch_size=batch,
            bptt=training["bptt"],
            autocast=autocast,
        )
        with Counter(split, quiet) as progress:
            found: Any = call(progress=progress)
        if losses is not None:
            values = found.numpy()
            write_whole(losses, lambda stream, values=values: np.save(stream, values))  # type: ignore[misc]
            found = Perplexity(float(values.sum(dtype=np.float64)), len(values), batch)
        yield _row("plain", split, found, start, {"batch_size": batch})


def _dynamic(
    run: Run,
    splits: list[Split],
    search: bool,
    lr: float,
    pull: float,
    epsilon: float,
    every: int,
    limit: int,
    quiet: bool,
) -> Iterator[dict[str, Any]]:
    folder = run.folder.path
    start = time.monotonic()
    with Counter("gradient statistics", quiet) as progress:
        statistics = gradient_statistics(
            run.model, run.ids.train, progress=progress, file=folder / "dynamic.safetensors"
        )
    settings = {"lr": lr, "lamb": pull}
    if search:
        with Counter("search on validation", quiet) as progress:
            best = dynamic_search(
                run.model,
                run.ids.valid,
                statistics,
                epsilon=epsilon,
                bptt=every,
                limit=limit,
                file=folder / "dynamic-search.json",
                progress=progress,
            ).best
        settings = dict(best.settings)
        note(f"search: lr {settings['lr']:g}, pull {settings['lamb']:g}")
    for split in splits:
        with Counter(f"dynamic, {split}", quiet) as progress:
            found = dynamic_perplexity(
                run.model,
                getattr(run.ids, split),
                statistics,
                lr=settings["lr"],
                lamb=settings["lamb"],
                epsilon=epsilon,
                bptt=every,
                progress=progress,
            )
        chosen = {"lr": settings["lr"], "pull": settings["lamb"]}
        yield _row("dynamic", split, found, start, {**chosen, "epsilon": epsilon, "every": every})
        start = time.monotonic()


def _cached(
    run: Run,
    splits: list[Split],
    search: bool,
    window: int,
    theta: float,
    share: float,
    published: bool,
    quiet: bool,
) -> Iterator[dict[str, Any]]:
    if search:
        with Counter("search on validation", quiet) as progress:
            best = cache_search(run.model, run.ids.valid, window=window, progress=progress).best
        theta, share = best.settings["theta"], best.settings["lamb"]
        note(f"search: theta {theta:g}, share {share:g}")
    for split in splits:
        start = time.monotonic()
        with Counter(f"cache, {split}", quiet) as progress:
            found = cache_perplexity(
                run.model,
                getattr(run.ids, split),
                window=window,
                theta=theta,
                lamb=share,
                published=published,
                progress=progress,
            )
        chosen = {"window": window, "theta": theta, "share": share, "as_published": published}
        yield _row("cache", split, found, start, chosen)


def _row(
    kind: str, split: Split, found: Perplexity, start: float, settings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "split": split.value,
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "published": found.published_perplexity,
        "seconds": round(time.monotonic() - start, 3),
        **settings,
    }


def _line(row: dict[str, Any]) -> str:
    beyond = [key for key in row if key not in SHOWN]
    settings = ", ".join(f"{key} {row[key]}" for key in beyond)
    return (
        f"{row['kind']} {row['split']:5}  perplexity {row['perplexity']:.3f}  "
        f"(divided by N: {row['published']:.3f})  loss {row['loss']:.4f}  "
        f"{row['tokens']:,} tokens  {row['seconds']:.1f} s  [{settings}]"
    )


SHOWN = {"run", "weights", "precision", "kind", "split", "tokens", "loss", "perplexity"} | {
    "published",
    "seconds",
}


def _keep(run: Run, row: dict[str, Any]) -> None:
    with (run.folder.path / "evaluations.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def generate(
    run: RunFolderArgument,
    prompt: Annotated[str, typer.Option(help="Words to go on from, separated by spaces.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many, line ends counted.")] = 100,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, 0 the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Only the k likeliest words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only those that make up p.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same text again.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    unknown: Annotated[bool, typer.Option("--unknown", help=f"Let {UNK} be drawn.")] = False,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Write text, word by word as it is drawn."""
    held = _loaded(run, weights, device)
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
        )
        strange = unknown_words(held.vocabulary, prompt)
        if strange:
            note(f"not in the vocabulary, read as {UNK}: {' '.join(strange)}")
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")


def score(
    run: RunFolderArgument,
    file: Annotated[
        Path | None, typer.Argument(help="One sentence a line; standard input by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Also log p of every word.")] = False,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Log-probabilities of lines, each on its own: sum, tokens, perplexity, text."""
    held = _loaded(run, weights, device)
    with told(), ExitStack() as stack:
        # One by one where somebody waits for the answer, else together, which is faster.
        waited = file is None and sys.stdin.isatty()
        lines = sys.stdin.buffer if file is None else stack.enter_context(_opened(file))
        texts = _texts(lines, "standard input" if file is None else str(file))
        block = 1 if waited else 1024
        for each in scored(held.model, held.vocabulary, texts, lines_per_block=block):
            typer.echo(_as_json(each, words) if as_json else _as_text(each, words))


def _opened(file: Path) -> Any:
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
    line = f"{each.log_prob:.4f}\t{each.tokens}\t{each.perplexity:.2f}\t{each.text}"
    if words:
        pairs = zip(each.words, each.log_probs, strict=True)
        line += "".join(f"\n\t{value:.4f}\t{word}" for word, value in pairs)
    return line


@contextmanager
def told() -> Iterator[None]:
    """What a function says about a value of the command line is told as its sentence."""
    try:
        yield
    except (ValueError, TypeError, FloatingPointError) as error:
        raise SettingsError(str(error)) from error
