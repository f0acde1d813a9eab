"""Training in a run folder: whatever settings ask for, begun or gone on with."""

import shlex
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from drill.data.extras import refuse_lacking
from drill.language_modeling.build import rehearse
from drill.language_modeling.run import train_language_model
from drill.training.device import pick_device
from drill.training.distributed import World, world
from drill.training.loop import Outcome
from drill.training.progress import Progress, ProgressLines
from drill.training.run.environment import forget_idle_lives
from drill.training.run.folder import RunFolder
from drill.training.run.resume import refuse_spoiling
from drill.training.run.weights import settings_of
from drill.training.settings import TRANSLATION, Settings
from drill.training.signals import pass_on
from drill.translation.build import packages_of, rehearse_translation
from drill.translation.run import train_translation


def train_run(
    settings: Settings,
    folder: Path | str,
    *,
    device: torch.device | str = "auto",
    progress: Callable[[Progress], None] | None = None,
    data_progress: Any = None,
    opened: Callable[[str], None] | None = None,
    quiet: bool = False,
    pass_on_signals: bool = True,
) -> Outcome:
    """Train in ``folder``, from the beginning or from where a run of these settings stopped.

    The outcome is that of ``train`` or, for a translator, that of ``train_translator``.

    progress  is told how far training is, a few times a second
    opened    is told what will be trained, once all settings are checked, and of what size, once
              the data is read
    quiet     says nothing; else, where both of these are None, lines on stderr do

    Ctrl-C saves everything and is a KeyboardInterrupt then, which says where the run stopped and
    how it goes on; SIGTERM saves and then ends the process, as ever. Without ``pass_on_signals``
    an unfinished outcome tells of them, which has no test: that is for callers who look at it.
    """
    place = pick_device(device) if isinstance(device, str) else device
    if progress is None and opened is None and not quiet:
        lines = ProgressLines()
        progress, opened = lines.show, lines.say
    if place.type == "cuda":
        torch.cuda.set_device(place)
    run = RunFolder(folder)
    train_task: Callable[..., Outcome] = train_language_model
    if settings.task == TRANSLATION:
        train_task = train_translation
    with world(place) as processes:
        told = (progress, data_progress, opened if processes.first else None)
        with run.locked() if processes.first else nullcontext():
            outcome = train_task(settings, run, place, processes, *told)
            if processes.first:
                forget_idle_lives(run)
    if outcome.interrupted and pass_on_signals:
        pass_on(outcome.signal, _interrupted(outcome, run))
    return outcome


def refuse_faults(settings: Settings, folder: Path | str, made: Collection[Path] = ()) -> None:
    """What ``train_run`` would refuse before it reads a text: of several runs, before the first.

    ``made`` are folders that will be there by then.
    """
    run = RunFolder(folder)
    if not refuse_spoiling(settings, run) and settings.start is not None:
        start = Path(settings.start)
        if start.resolve() not in {each.resolve() for each in made}:
            settings_of(RunFolder(start))
    if settings.task == TRANSLATION:
        refuse_lacking(f"the recipe {settings.recipe} needs", *packages_of(settings))
        rehearse_translation(settings, World(), settings.subwords["size"])
    else:
        rehearse(settings)


def _interrupted(outcome: Outcome, run: RunFolder) -> str:
    if outcome.finished:
        return f"{run.path}: has ended all the same; the same call of train_run gives its outcome"
    return (
        f"{run.path}: stopped in epoch {outcome.epoch}; all is saved: the same call of train_run "
        f"goes on, or drill train {shlex.quote(str(run.path))}"
    )
