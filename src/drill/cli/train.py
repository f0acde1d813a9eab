"""`drill train`, `drill finetune`."""

import logging
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Exit, Option, echo

from drill.cli import options
from drill.cli.display import TrainingDisplay, counting, note
from drill.errors import SettingsError
from drill.recipes.reader import apply_overrides
from drill.training.progress import duration

if TYPE_CHECKING:
    from drill.training.loop import Outcome
    from drill.training.settings import Settings


def train(
    context: Context,
    recipe: Annotated[
        str,
        Argument(
            metavar="RECIPE",
            help="A recipe name, a .toml file, or a run folder to resume.",
            autocompletion=options.recipes_from,
        ),
    ],
    change: options.Set = None,
    name: Annotated[
        str | None, Option(help="Name of the run folder; the recipe's name by default.")
    ] = None,
    seed: Annotated[int | None, Option(help="Random seed (training.seed).")] = None,
    runs: options.Runs = Path("runs"),
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Train a recipe. The same command resumes.

    `drill train RUN` resumes a run folder with its own settings. Ctrl-C saves and stops. `drill
    recipes` lists the recipes; `drill study` trains several, with seeds.
    """
    _check_name(name)
    changes = [*(change or []), *([] if seed is None else [f"training.seed={seed}"])]
    if options.is_run_folder(recipe, changes):
        given = options.given_options(context)
        places = {"name": name, "runs": runs}
        elsewhere = " ".join(f"--{key} {place}" for key, place in places.items() if key in given)
        if elsewhere:
            raise SettingsError(
                f"{recipe} is resumed in its own folder",
                key=elsewhere,
                hint=f"to start another run: drill train {recipe}/recipe.toml {elsewhere}",
            )
        from drill.training.run.resume_checks import settings_to_resume

        _train(settings_to_resume(recipe, changes), Path(recipe), device, quiet)
        return
    from drill.training.settings import recipe as read_recipe

    label = Path(recipe).stem if recipe.endswith(".toml") else recipe
    _train(read_recipe(recipe, changes), runs / (name or label), device, quiet)


def _check_name(name: str | None) -> None:
    """A name must stay inside the folder of runs and not be empty."""
    if name is None:
        return
    path = Path(name)
    if not name.strip() or path.is_absolute() or not path.parts or ".." in path.parts:
        raise SettingsError("must be a name inside the folder of runs", key=f"--name {name!r}")


def finetune(
    run: options.Run,
    change: options.Set = None,
    name: Annotated[
        str | None, Option(help="The new folder next to RUN; RUN-finetune by default.")
    ] = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Finetune the best weights of a run of nt-asgd, asgd or sgd with averaged SGD.

    Stops when validation no longer improves.
    """
    _check_name(name)
    from drill.language_modeling.build import finetune_settings
    from drill.training.settings import resolve_settings

    settings = finetune_settings(run)
    if change:
        settings = resolve_settings(apply_overrides(settings.to_dict(), change))
    run = Path(os.path.abspath(run))  # `.` has neither a name nor a parent
    folder = run.parent / (name or f"{run.name}-finetune")
    _train(settings, folder, device, quiet)


def _train(settings: "Settings", folder: Path, device: str, quiet: bool) -> None:
    """Train; an interrupted run exits as its signal does, even if it has just finished."""
    from drill import tasks

    main = _is_main_process()
    with (
        note_if_interrupted(folder),
        counting("data", quiet) as counted,
        TrainingDisplay(quiet or not main) as display,
        _log_to(display),
    ):
        outcome = tasks.train(
            settings,
            folder,
            device=device,
            progress=display.show,
            data_progress=counted,
            on_start=display.say,
            pass_on_signals=False,
        )
    if main:
        _print_outcome(outcome, folder)
    if not outcome.finished or outcome.interrupted:
        raise Exit(128 + (outcome.signal or signal.SIGINT))


def _is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def note_if_interrupted(folder: Path) -> Iterator[None]:
    """On Ctrl-C before the first step, or pressed twice, say what is saved in ``folder``."""
    from drill.training.run.folder import RunFolder

    try:
        yield
    except KeyboardInterrupt:
        if _is_main_process():
            saved = RunFolder(folder).has_trained()
            note(
                f"stopped; {folder} is as last saved: the same command resumes"
                if saved
                else "stopped before training had anything to save"
            )
        raise Exit(130) from None


@contextmanager
def _log_to(display: TrainingDisplay) -> Iterator[None]:
    """Show the log of training (on a GPU: which LSTM kernels, CUDA graphs)."""
    from drill.training.loop import TRAINING_LOG

    log, handler = logging.getLogger(TRAINING_LOG), logging.Handler(logging.INFO)
    handler.emit = lambda record: display.say(record.getMessage())  # type: ignore[method-assign]
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _print_outcome(outcome: "Outcome", folder: Path) -> None:
    from drill.translation.evaluate import TranslationResult

    if not outcome.finished:
        note(
            f"stopped in epoch {outcome.epoch}; all is saved: the same command resumes, or "
            f"drill train {shlex.quote(str(folder))}"
        )
        return
    assert outcome.valid is not None
    assert outcome.test is not None
    if isinstance(outcome.test, TranslationResult):
        tested = f"BLEU {outcome.test.scores.bleu:.2f}  exact {outcome.test.exact:.1%}"
    else:
        tested = f"perplexity {outcome.test.perplexity:.2f}"
        if outcome.test.bits_per_byte is not None:
            tested += f", {outcome.test.bits_per_byte:.4f} bits per byte"
    limit = outcome.ended_by
    echo(
        f"{folder}: valid perplexity {outcome.valid.perplexity:.2f}  test {tested}  "
        f"(best of {outcome.epoch} epoch{'' if outcome.epoch == 1 else 's'}: {outcome.best_epoch}; "
        f"{duration(outcome.elapsed)} in total"
        f"{'' if limit == 'epochs' else f', ended by training.{limit}'})"
    )
