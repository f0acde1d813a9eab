"""What is asked of a run folder before training begins in it or goes on."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drill.data import NAMES, PARALLEL_NAMES, DataError
from drill.errors import RunFolderError
from drill.training.distributed import World
from drill.training.run.environment import has_ended
from drill.training.run.folder import RunFolder
from drill.training.settings import LANGUAGE_MODEL, TRANSLATION, Settings, recipe, saved

OVER_ALL_EPOCHS = ("linear", "cosine", "one-cycle")  # schedules that end with the run
CORPUS_NAMES = {LANGUAGE_MODEL: NAMES, TRANSLATION: PARALLEL_NAMES}

logger = logging.getLogger("drill")


def settings_to_go_on(folder: Path | str, changes: Sequence[str] = ()) -> Settings:
    """Those of the run in a folder, wherever it is called from, changed by ``table.key=value``."""
    run = RunFolder(folder)
    if not run.recipe.exists():
        raise RunFolderError(
            f"{run.path}: is a folder without a run (no recipe.toml); name that of a run to go on "
            "with it, or a recipe to begin one: `drill recipes` lists them"
        )
    run.check_files()
    settings = recipe(str(run.recipe), changes)
    found = with_text(settings, run)
    return settings if located(settings) == found else found


def check_resume(settings: Settings, run: RunFolder) -> bool:
    """Refuse to train among files of another kind, or over a run of other settings.

    Gives whether there is something to keep in the folder.
    """
    begun = run.last.exists() or run.best.exists()
    run.check_files()
    _check_foreign_files(run)
    if begun and run.recipe.exists():
        _check_same_settings(settings, run)
    return begun


def has_begun(settings: Settings, run: RunFolder, processes: World) -> bool:
    """Whether there is something to keep in the folder; refuses settings that would spoil it."""
    begun = check_resume(settings, run)
    if begun and run.recipe.exists():
        _check_keeps_results(settings, run, processes.first)
        if processes.first and not has_ended(run, settings):
            _tell_of_the_schedule(settings, run)
    return begun


def _check_foreign_files(run: RunFolder) -> None:
    """No run begins among files of another kind; what a killed run has left is none of them."""
    held = run.foreign_files()
    if held:
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise RunFolderError(
            f"{run.path}: holds no run, but {held[0]}{more}; give this one another --name, or "
            "empty the folder"
        )


def _check_same_settings(settings: Settings, run: RunFolder) -> None:
    changes = located(saved(run.recipe), run).differences(located(settings))
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise RunFolderError(
            f"{run.path}: holds a run with other settings ({'; '.join(changes[:3])}{more}); set "
            "them as that run has them to go on, give this one another --name, or remove the folder"
        )


def _check_keeps_results(settings: Settings, run: RunFolder, first: bool) -> None:
    """What a finished run found is not trained over, nor does a lower limit end a longer run.

    One that has ended gives what it found, whatever less is asked for: nothing is lost by that,
    and the command that began it may have asked for less than a later one.
    """
    if not run.last.exists():
        if run.best.exists() and any(row["kind"] == "test" for row in run.rows()):
            raise RunFolderError(
                f"{run.path}: holds a finished run whose last/ is gone, so it cannot go on; give "
                "this one another --name, or remove the folder"
            )
        return
    own = saved(run.recipe)
    for limit, trained in _trained(run).items():
        asked, held = settings.training.get(limit), own.training.get(limit)
        if asked is None or trained <= asked or (held is not None and held <= asked):
            continue
        trained, unit = round(trained, 2) or trained, limit.removeprefix("max_")
        if not has_ended(run, settings):
            of_its = "" if held is None else f" of its {held}"
            raise RunFolderError(
                f"{run.path}: has trained {trained}{of_its} {unit}, more than the {asked} asked "
                f"for; say --set training.{limit}={'none' if held is None else held} to go on, or "
                "give this one another --name"
            )
        if first:
            logger.warning(
                f"{run.path}: is trained already, for {trained} {unit} and not the {asked} asked "
                f"for, and this is what they came to; a larger training.{limit} goes on"
            )
        return


def _trained(run: RunFolder) -> dict[str, float]:
    """How far a run is, by the name of the limit that would end it there."""
    done = [row["epoch"] for row in run.rows() if row["kind"] == "epoch"]
    at = run.last_numbers()
    with run.reading_last():
        minutes = (at["elapsed"] - at.get("test_seconds", 0.0)) / 60.0
        return {
            "epochs": max(done, default=0),
            "max_steps": at["step"],
            "max_minutes": minutes,
        }


def _tell_of_the_schedule(settings: Settings, run: RunFolder) -> None:
    """A schedule that ends with the run changes with the run's end."""
    schedule = settings.optimizer.get("schedule")
    if schedule not in OVER_ALL_EPOCHS:
        return
    held = saved(run.recipe).training
    for limit in ("epochs", "max_steps", "max_minutes"):
        before, now = held.get(limit), settings.training.get(limit)
        if before != now:
            like = f", and the run is not one of {now} {limit.removeprefix('max_')} from the start"
            logger.warning(
                f"{run.path}: training.{limit} {before or 'none'} -> {now or 'none'} changes its "
                f"{schedule} schedule too: the learning rate jumps here{like if now else ''}"
            )


def located(settings: Settings, run: RunFolder | None = None) -> Settings:
    """Settings with absolute paths to their text and start, so that they hold in every folder.

    A relative path of a run starts in the folder it was trained in. Where that has no such text
    (the run was moved with it, or is too old to tell), and for new settings, it starts here.
    """
    folders = [None if run is None else run.working_folder(), "."]

    def place(path: str) -> str:
        places = [os.path.abspath(Path(each, path)) for each in folders if each is not None]
        return next(filter(os.path.exists, places), places[0])

    if settings.init_from is not None:
        settings = replace(settings, init_from=os.path.realpath(place(settings.init_from)))
    corpus = settings.data["corpus"]
    if corpus in CORPUS_NAMES[settings.task]:
        return settings
    return settings.changed(data={"corpus": place(corpus)})


def with_text(settings: Settings, run: RunFolder) -> Settings:
    """``located`` settings of a run whose text must be there."""
    found = located(settings, run)
    corpus = found.data["corpus"]
    if corpus not in CORPUS_NAMES[settings.task] and not Path(corpus).exists():
        raise DataError(
            f"{run.path}: the text it was trained on is gone from {corpus}; put it back, or go to "
            f"the folder in which it is {settings.data['corpus']}"
        )
    return found
