"""The subcommands of `drill`, gathered; what they import takes seconds."""

from typing import Annotated

import typer

from drill import __version__
from drill.cli.data import data
from drill.cli.demo import demo
from drill.cli.evaluate import evaluate
from drill.cli.export import export
from drill.cli.generate import generate, score
from drill.cli.layers import layers
from drill.cli.recipes import recipes
from drill.cli.report import record, report
from drill.cli.study import study
from drill.cli.train import finetune, train
from drill.cli.translate import translate

app = typer.Typer(
    help="Output layers for neural language generation.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)

for command in (
    demo,
    train,
    finetune,
    evaluate,
    generate,
    score,
    translate,
    export,
    study,
    report,
    record,
    data,
    recipes,
    layers,
):
    app.command()(command)


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
