"""``drill.train`` and ``drill.load``: a recipe is trained in a run folder, and loaded from it.

outcome = drill.train(drill.Recipe("demo-drill", ["training.epochs=20"]), "runs/my")
run = drill.load("runs/my")
"""

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from drill.data.optional_packages import check_packages
from drill.data.subwords import OnProgress
from drill.language_modeling.build import dry_run
from drill.language_modeling.run import LanguageModelRun, load_language_model, start_language_model
from drill.training.build import build_optimizer
from drill.training.device import pick_device
from drill.training.distributed import World, init_distributed
from drill.training.loop import Outcome, fit
from drill.training.progress import Progress, ProgressLines
from drill.training.run.environment import record_start
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import check_resume
from drill.training.run.summary import sizes
from drill.training.run.weights import Weights, settings_of, task_of
from drill.training.settings import TRANSLATION, Settings, recipe
from drill.training.signals import reraise_signal
from drill.translation.build import dry_run as dry_run_translation
from drill.translation.build import packages_of
from drill.translation.run import TranslationRun, load_translator, start_translator


def train(
    settings: Settings | str,
    folder: Path | str,
    *,
    device: torch.device | str = "auto",
    progress: Callable[[Progress], None] | None = None,
    data_progress: OnProgress | None = None,
    on_start: Callable[[str], None] | None = None,
    quiet: bool = False,
    pass_on_signals: bool = True,
) -> Outcome:
    """Train in ``folder``, from the beginning or from where a run of these settings stopped.

    Ctrl-C saves everything, then raises KeyboardInterrupt with where the run stopped. SIGTERM saves
    and then ends the process.

    Args:
        settings: a recipe, or the name or file of one.
        folder: where the run is written.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        progress: called with a ``Progress`` a few times a second, and after each validation.
        data_progress: called with how much is done, and of how much, while a translator's subwords
            are learnt and its pairs encoded.
        on_start: called with a summary once all settings are checked, and with the sizes once the
            data is read.
        quiet: show warnings only. Otherwise, without ``progress`` and ``on_start``, lines go to
            stderr.
        pass_on_signals: False returns an unfinished outcome when interrupted.

    Returns:
        Scores of the validation and test text, and how the run ended.
    """
    if isinstance(settings, str):
        settings = recipe(settings)
    device = pick_device(device)
    if progress is None and on_start is None and not quiet:
        lines = ProgressLines()
        progress, on_start = lines.show, lines.say
    if device.type == "cuda":
        torch.cuda.set_device(device)
    run = RunFolder(folder)
    with init_distributed(device) as world:
        if not world.is_main:
            data_progress = on_start = None
        with run.locked() if world.is_main else nullcontext():
            given = (settings, run, build_optimizer(settings), device, world)
            if settings.task == TRANSLATION:
                start = start_translator(*given, data_progress, on_start)
            else:
                start = start_language_model(*given, on_start)
            if on_start is not None:
                on_start(sizes(settings, start))
            record_start(start, settings)
            outcome = fit(start.task, progress)
    if outcome.interrupted and pass_on_signals:
        reraise_signal(outcome.signal, _interrupted(outcome, run))
    return outcome


def load(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> LanguageModelRun | TranslationRun:
    """The run in ``folder`` with its model in eval mode.

    Args:
        folder: a run folder.
        weights: "averaged", "best" or "last"; by default the first of these that there are.
        device: "auto", "cpu", "cuda", "cuda:1", ...

    Returns:
        A language model, with ``perplexity``, ``generate`` and ``score``, or a translator, with
        ``translate`` and ``bleu``.
    """
    load_task = load_translator if task_of(folder) == TRANSLATION else load_language_model
    return load_task(folder, weights, device)


def check_recipe(settings: Settings, folder: Path | str) -> None:
    """Raise what ``train`` would raise before it reads a text."""
    run = RunFolder(folder)
    begun = check_resume(settings, run)
    if not begun and settings.init_from is not None:
        settings_of(RunFolder(settings.init_from))
    if settings.task == TRANSLATION:
        check_packages(f"the recipe {settings.recipe} needs", *packages_of(settings))
        dry_run_translation(settings, World(), settings.subwords["size"])
    else:
        dry_run(settings, begun)


def _interrupted(outcome: Outcome, run: RunFolder) -> str:
    if outcome.finished:
        return f"{run.path}: has finished; the same call of train gives its outcome"
    return (
        f"{run.path}: stopped in epoch {outcome.epoch}; all is saved: the same call of train "
        f"resumes, or drill train {shlex.quote(str(run.path))}"
    )
