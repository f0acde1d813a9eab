"""`drill demo`: two layers on the embedded corpus, compared."""

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from drill.cli.compare_runs import Compared
from drill.cli.display import TrainingDisplay, console, note
from drill.cli.train import told_if_stopped_early
from drill.data import refuse_missing
from drill.language_modeling.run import Run, load_run
from drill.report import TextBands, write_report
from drill.report.analysis.frequency_bands import Band, band_label
from drill.report.tables import number_format as numbers
from drill.tasks import train_run
from drill.training.progress import duration
from drill.training.settings import Settings, recipe

RECIPES = ("demo-tied", "demo-drill")
EDGES = (1, 10, 50, 250, 1000)  # training counts; the corpus is a tenth of the paper's larger one
PROMPTS = ("In the beginning", "The king said to", "Blessed are")


def demo(
    runs: Annotated[Path, typer.Option("--runs", help="Where run folders go.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "runs/demo.html"
    ),
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of each model; those of its recipe by default.")
    ] = None,
) -> None:
    """Train tied weights and the paper's layer, and compare them.

    On the embedded corpus, a few minutes on two CPU cores. The same command resumes.
    """
    start = time.monotonic()
    changes = [] if epochs is None else [f"training.epochs={epochs}"]
    planned = {name: recipe(name, changes) for name in RECIPES}
    for settings in planned.values():
        refuse_missing(settings.data["corpus"])
    shown = console()
    shown.print(
        "The World English Bible (public domain) comes as a package: 840,418 tokens to train on,\n"
        "other books to test on. The two models differ in their output layer alone.\n"
    )
    trained: dict[str, Run] = {}
    for name, settings in planned.items():
        with told_if_stopped_early(runs / name), TrainingDisplay() as display:
            outcome = train_run(
                settings,
                runs / name,
                device="cpu",
                progress=display.show,
                opened=display.say,
                pass_on_signals=False,
            )
        if not outcome.finished or outcome.interrupted:
            note("stopped; all is saved, the same command goes on")
            raise typer.Exit(130)
        trained[name] = load_run(runs / name, device="cpu")

    note("reading the test books")
    found = Compared(EDGES, PROMPTS)
    for name, run in trained.items():
        found.add(name, run, samples=len(PROMPTS))
    shown.print(f"\n{_terms(trained[RECIPES[1]].settings)}\n")
    (text,) = found.texts()
    shown.print(_comparison(trained, text))
    shown.print(f"\nWhat {RECIPES[1]} writes:")
    for sample in found.samples[RECIPES[1]]:
        shown.print(f"  {sample}", soft_wrap=True)
    page = write_report(
        [runs / name for name in RECIPES],
        out,
        texts=[text],
        samples=found.samples,
        title="drill demo: tied weights and the deep residual layer",
    )
    shown.print(f"\n{duration(time.monotonic() - start)} in all. Look at {page}, then try:")
    program = ["drill"] if shutil.which("drill") else [sys.executable, "-m", "drill"]
    for words in next_commands(runs):
        shown.print(f"  {shlex.join([*program, *words])}", soft_wrap=True)
    shown.print(
        "To train on a text of your own, a folder or a file, give the last of these another\n"
        "--name and add --set data.corpus=PATH; a small text needs --set training.epochs=20\n"
        "too, or what docs/language-models.md says of its size."
    )


def next_commands(runs: Path) -> list[list[str]]:
    """What works as it stands after the demo: others look at its runs, the last trains."""
    deep = str(runs / RECIPES[1])
    return [
        ["generate", deep, "--prompt", "And God said", "--temperature", "0.8"],
        ["evaluate", deep, "--cache", "--search"],
        ["recipes"],
        ["train", RECIPES[1], "--name", "deeper", "--set", "layer.depth=4"],
    ]


def _terms(settings: Settings) -> str:
    """What the comparison holds for, and how to read it."""
    epochs = settings.training["epochs"]
    count = "one epoch" if epochs == 1 else f"{epochs} epochs"
    return (
        f"Depth {settings.layer['depth']}, {count}, one seed.\n"
        "Loss is in nats per token, by how often training has shown a word; lower is better."
    )


def _comparison(trained: dict[str, Run], text: TextBands) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("on the test books", no_wrap=True)
    for name in trained:
        table.add_column(name, justify="right")
    table.add_column("change", justify="right")

    def add(label: str, values: Sequence[float], shape: str, change: str) -> None:
        table.add_row(label, *(f"{value:{shape}}" for value in values), change)

    def add_sizes(label: str, values: Sequence[float], shape: str) -> None:
        add(label, values, shape, f"{100 * (values[1] / values[0] - 1):+.1f}%")

    def add_losses(label: str, values: Sequence[float]) -> None:
        add(label, values, ".3f", numbers.change(values[1] - values[0], 3))

    tests = [float(run.folder.rows()[-1]["test_perplexity"]) for run in trained.values()]
    add_sizes("perplexity, all tokens", tests, ",.1f")
    sums = [
        (sum(b.loss for b in bands), sum(b.tokens for b in bands)) for bands in text.losses.values()
    ]
    table.add_section()
    label = f"loss without {' and '.join(text.left_out)} ({sums[0][1]:,} tokens)"
    add_losses(label, [loss / count for loss, count in sums])
    rarest = int(trained[RECIPES[0]].settings.data.get("minimum_count", 1))
    for i, band in enumerate(text.losses[RECIPES[0]]):
        if band.tokens:
            values = [each[i].mean_loss for each in text.losses.values()]
            add_losses(f"  {seen(band, rarest)} ({band.tokens:,} tokens)", values)
    table.add_section()
    add_sizes("parameters", [run.model.parameter_count() for run in trained.values()], ",")
    return table


def seen(band: Band, rarest: int) -> str:
    """How often training has shown its words: words rarer than ``rarest`` are ``<unk>``."""
    if band.low == 0:
        return "never seen"
    return f"seen {band_label(max(band.low, rarest), band.high)} times"
