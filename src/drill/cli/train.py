"""`drill train`, `drill finetune`."""

import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from drill.cli.display import (
    Counter,
    TrainingDisplay,
    note,
)
from drill.cli.errors import sentence
from drill.cli.options import RunFolderArgument
from drill.errors import SettingsError
from drill.language_modeling.finetune import finetuning
from drill.recipes.reader import changed, recipe_names
from drill.tasks import refuse_faults, train_run
from drill.training.loop import TRAINING_LOG, Outcome
from drill.training.progress import duration
from drill.training.run.folder import RunFolder
from drill.training.run.resume import settings_to_go_on
from drill.training.settings import Settings, recipe, resolved
from drill.translation.evaluate import Translated

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. layer.depth=2."),
]
Runs = Annotated[Path, typer.Option("--runs", help="The folder that holds run folders.")]
Name = Annotated[
    str | None,
    typer.Option(help="The run's folder in --runs; the recipe's or file's name by default."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", help="training.seed; may be repeated, for a run each."),
]


def train(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE", help="Names, files ending in .toml, or folders of runs to go on."
        ),
    ],
    change: Changes = None,
    name: Name = None,
    seed: Seeds = None,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a recipe, or several one after another. The same command resumes.

    So does `drill train RUN` with the folder of a run, by the settings that it was begun with.
    Ctrl-C stops after saving. Of several, one that fails does not keep the others from training;
    wrong settings, missing texts and folders of other runs are told of before the first begins.
    `drill recipes` lists what there is.
    """
    wanted = [
        (each, number) for each in recipes for number in (seed if seed is not None else [None])
    ]
    _refuse_no_name(name)
    if name is not None and len(wanted) > 1:
        raise SettingsError(f"--name {name}: is for one run, but {len(wanted)} are asked for")
    planned: list[tuple[Settings, Path]] = []
    for each, number in wanted:
        changes = [*(change or []), *([] if number is None else [f"training.seed={number}"])]
        if _is_run_folder(each):
            if name is not None:
                raise SettingsError(
                    f"--name {name}: {each} goes on in its own folder; leave it out, or begin "
                    f"another run with drill train {Path(each, 'recipe.toml')} --name {name}"
                )
            planned.append((settings_to_go_on(each, changes), Path(each)))
            continue
        settings = recipe(each, changes)
        several = number is not None and len(seed or []) > 1
        called = Path(each).stem if each.endswith(".toml") else each
        label = name or (f"{called}-seed-{number}" if several else called)
        planned.append((settings, runs / label))
    folders = [folder for _, folder in planned]
    for folder in folders:
        if folders.count(folder) > 1:
            raise SettingsError(
                f"{folder}: is asked for {folders.count(folder)} times; name every recipe and seed "
                "once, or train runs of one name by commands of their own, with --name"
            )
    alone = len(planned) == 1 or "RANK" in os.environ  # several processes must stay in step
    failed: list[Path] = []
    for settings, folder in [] if alone else planned:  # told of now, not after hours of training
        with _left_out(folder, failed):
            refuse_faults(settings, folder, folders)
    for settings, folder in planned:
        if folder in failed:
            continue
        with nullcontext() if alone else _left_out(folder, failed):
            if not _trained(settings, folder, device, quiet):
                raise typer.Exit(130)
    if failed:
        note(f"drill: {len(failed)} of {len(planned)} runs failed: {', '.join(map(str, failed))}")
        raise typer.Exit(1)


@contextmanager
def _left_out(folder: Path, failed: list[Path]) -> Iterator[None]:
    """Inside, a fault that a user can mend is told of and does not end the command."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as fault:
        words = sentence(fault)
        if words is None:
            raise
        note(f"drill: {words}")
        failed.append(folder)


def _is_run_folder(given: str) -> bool:
    """Whether a folder is meant and no recipe: one of its name comes before a folder beside us."""
    return os.path.isdir(given) and given not in recipe_names()  # Path.is_dir() fails on odd names


def _refuse_no_name(name: str | None) -> None:
    """What a script makes of an unset variable would train in the folder of another run."""
    if name is not None and not name.strip():
        raise SettingsError("--name: is empty; give the run a name, or leave it out")


def finetune(
    run: RunFolderArgument,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. optimizer.lr=5."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The new folder beside RUN; RUN-finetune by default.")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Go on from a run's best weights with averaged SGD.

    It ends when it no longer helps.
    """
    _refuse_no_name(name)
    settings = finetuning(run)
    if change:
        tables = {"recipe": settings.recipe, "start": settings.start, **settings.tables()}
        settings = resolved(changed(tables, change))
    run = Path(os.path.abspath(run))  # `.` has neither a name nor a parent
    folder = run.parent / (name or f"{run.name}-finetune")
    if not _trained(settings, folder, device, quiet):
        raise typer.Exit(130)


def _trained(settings: Settings, folder: Path, device: str, quiet: bool) -> bool:
    """Train; False where somebody asked for an end, be it of a run that was ending."""
    first = _is_first()
    with (
        told_if_stopped_early(folder),
        Counter("data", quiet) as counted,
        TrainingDisplay(quiet or not first) as display,
        _remarks(display),
    ):
        outcome = train_run(
            settings,
            folder,
            device=device,
            progress=display.show,
            data_progress=counted,
            opened=display.say,
            pass_on_signals=False,
        )
    if first:
        _print_outcome(outcome, folder)
        if outcome.finished and outcome.out_of_time and not quiet:
            note(_out_of_time(outcome.epoch, settings.training))
    return outcome.finished and not outcome.interrupted


def _is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def told_if_stopped_early(folder: Path) -> Iterator[None]:
    """Inside, what is trained in ``folder`` may be stopped where it cannot save: before its first
    step, or by a second Ctrl-C. Then the command ends with a line on what there is."""
    try:
        yield
    except KeyboardInterrupt:
        if _is_first():
            saved = RunFolder(folder).has_trained()
            note(
                f"stopped; {folder} is as it was saved last: the same command goes on"
                if saved
                else "stopped before training had anything to save"
            )
        raise typer.Exit(130) from None


@contextmanager
def _remarks(display: TrainingDisplay) -> Iterator[None]:
    """Inside, what training says of its way (on a GPU: which LSTM, how steps go) is shown."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            display.say(record.getMessage())

    log, handler = logging.getLogger(TRAINING_LOG), Shown(logging.INFO)
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _print_outcome(outcome: Outcome, folder: Path) -> None:
    if not outcome.finished:
        note(
            f"stopped in epoch {outcome.epoch}; all is saved: the same command goes on, or "
            f"drill train {shlex.quote(str(folder))}"
        )
        return
    assert outcome.valid is not None
    assert outcome.test is not None
    if isinstance(outcome.test, Translated):
        tested = f"BLEU {outcome.test.scores.bleu:.2f}  exact {outcome.test.exact:.1%}"
    else:
        tested = f"perplexity {outcome.test.perplexity:.2f}"
    typer.echo(
        f"{folder}: valid perplexity {outcome.valid.perplexity:.2f}  test {tested}  "
        f"(best of {outcome.epoch} epoch{'' if outcome.epoch == 1 else 's'}: {outcome.best_epoch}; "
        f"{duration(outcome.elapsed)} in all"
        f"{', ended by training.max_minutes' if outcome.out_of_time else ''}"
        f"{', ended by training.patience' if outcome.stopped else ''})"
    )


def _out_of_time(epoch: int, training: Mapping[str, Any]) -> str:
    updates = training.get("updates")  # of translators; it ends them long before their epochs do
    end = f" of {training['epochs']}" if updates is None else f", before update {updates:,}"
    return (
        f"ended by training.max_minutes in epoch {epoch}{end}; set a larger training.max_minutes "
        "to continue"
    )
