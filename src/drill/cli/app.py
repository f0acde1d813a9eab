"""The commands of `drill`. No module imported here imports torch before a command runs."""

from typing import Annotated

import typer

from drill import __version__
from drill.cli.data import data
from drill.cli.demo import demo
from drill.cli.evaluation.evaluate import cache, dynamic, evaluate
from drill.cli.generate import generate, score
from drill.cli.listings import layers, recipes, settings
from drill.cli.play import play
from drill.cli.results.analyse import analyse
from drill.cli.results.compare import compare
from drill.cli.results.report import record, report
from drill.cli.results.study import study
from drill.cli.train import finetune, train
from drill.cli.translate import export, translate
from drill.cli.words import words

app = typer.Typer(
    help="Output layers for neural language generation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)

TRAIN = (demo, train, finetune)
USE = (evaluate, dynamic, cache, generate, score, words, translate, export)
RESULTS = (study, report, compare, analyse, play)
LISTS = (data, recipes, settings, layers)
COMMANDS = (*TRAIN, *USE, *RESULTS, *LISTS)
for command in COMMANDS:
    app.command()(command)

ledger = typer.Typer(
    help="Ledgers: one row per result.", no_args_is_help=True, rich_markup_mode=None
)
ledger.callback()(lambda: None)  # a group, though it has one command
ledger.command("add")(record)
app.add_typer(ledger, name="ledger")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"drill {__version__}")
        raise typer.Exit


@app.callback()
def drill(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
