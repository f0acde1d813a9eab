"""The `drill` command: one file per group of subcommands, errors as one sentence."""

import os
import sys
from typing import Annotated

import torch
import typer

from drill import __version__
from drill.checkpoint import CheckpointError
from drill.cli.demo import demo
from drill.cli.evaluate import evaluate
from drill.cli.layers import layers
from drill.cli.reports import data, record, report
from drill.cli.texts import generate, score
from drill.cli.train import finetune, recipes, train
from drill.cli.translate import translate
from drill.data import DataError
from drill.data.files import NotWritten
from drill.recipes import SettingsError
from drill.report.runs import ReportError
from drill.run_folder import RunFolderError
from drill.training import Diverged

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
    report,
    record,
    data,
    recipes,
    layers,
):
    app.command()(command)

USER_ERRORS = (
    CheckpointError,
    DataError,
    Diverged,
    NotWritten,
    ReportError,
    RunFolderError,
    SettingsError,
)
"""What a user can mend: shown as their sentence."""


def main() -> None:
    try:
        try:
            app()
        finally:  # what is still held back may find the pipe closed too
            sys.stdout.flush()
    except USER_ERRORS as error:
        _leave(f"{error}")
    except torch.OutOfMemoryError as error:
        _leave(
            f"the GPU's memory does not do ({str(error).splitlines()[0]}); take a smaller "
            "training.batch_size, or training.micro_batch for the same result in pieces; of a "
            "translator a smaller training.max_tokens and a larger training.accumulate"
        )
    except BrokenPipeError:
        _leave_closed_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes it a failure of ours
            _leave_closed_pipe()
        raise
    except OSError as error:
        _leave(f"{error.filename or 'output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _leave(sentence: str) -> None:
    print(f"drill: {sentence}", file=sys.stderr)
    sys.exit(1)


def _leave_closed_pipe() -> None:
    """`drill layers | head` has read enough: no word, and the status of whom SIGPIPE ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


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
