"""Whether a run can resume with given settings, and where its text is."""

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
    """The settings of the run in a folder, changed by ``table.key=value``, to resume it.

    Paths are those of the run, whatever the current folder is.
    """
    run = RunFolder(folder)
    if not run.recipe.exists():
        raise RunFolderError(
            f"{run.path}: is a folder without a run (no recipe.toml); name a run folder to resume, "
            "or a recipe: `drill recipes` lists them"
        )
    run.check_files()
    settings = recipe(str(run.recipe), changes)
    found = with_text(settings, run)
    return settings if located(settings) == found else found


def check_resume(settings: Settings, run: RunFolder) -> bool:
    """Raise RunFolderError for a folder with foreign files or a run of other settings.

    Returns:
        Whether the folder has weights to resume from or to use.
    """
    begun = run.last.exists() or run.best.exists()
    run.check_files()
    _check_foreign_files(run)
    if begun and run.recipe.exists():
        _check_same_settings(settings, run)
    return begun


def has_begun(settings: Settings, run: RunFolder, processes: World) -> bool:
    """``check_resume``, and neither results of the run are lost nor its limits lowered."""
    begun = check_resume(settings, run)
    if begun and run.recipe.exists():
        _check_keeps_results(settings, run, processes.first)
        if processes.first and not has_ended(run, settings):
            _warn_schedule_changes(settings, run)
    return begun


def _check_foreign_files(run: RunFolder) -> None:
    found = run.foreign_files()
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise RunFolderError(
            f"{run.path}: holds no run, but {found[0]}{more}; give this one another --name, or "
            "empty the folder"
        )


def _check_same_settings(settings: Settings, run: RunFolder) -> None:
    changes = located(saved(run.recipe), run).differences(located(settings))
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise RunFolderError(
            f"{run.path}: holds a run with other settings ({'; '.join(changes[:3])}{more}); set "
            "them as in that run to resume, give this one another --name, or remove the folder"
        )


def _check_keeps_results(settings: Settings, run: RunFolder, first: bool) -> None:
    """Raise if a finished run would be overwritten, or a longer run ended by a lower limit.

    A run that has ended only returns its result, so a lower limit is no error then.
    """
    if not run.last.exists():
        if run.best.exists() and any(row["kind"] == "test" for row in run.rows()):
            raise RunFolderError(
                f"{run.path}: holds a finished run whose last/ is gone, so it cannot resume; give "
                "this one another --name, or remove the folder"
            )
        return
    own = saved(run.recipe)
    for limit, trained in _trained(run).items():
        asked, before = settings.training.get(limit), own.training.get(limit)
        if asked is None or trained <= asked or (before is not None and before <= asked):
            continue
        trained, unit = round(trained, 2) or trained, limit.removeprefix("max_")
        if not has_ended(run, settings):
            of_its = "" if before is None else f" of its {before}"
            raise RunFolderError(
                f"{run.path}: has trained {trained}{of_its} {unit}, more than the {asked} asked "
                f"for; use --set training.{limit}={'none' if before is None else before} to "
                "resume, or give this one another --name"
            )
        if first:
            logger.warning(
                f"{run.path}: is already trained for {trained} {unit}, more than the {asked} asked "
                f"for: this is its result; a larger training.{limit} resumes it"
            )
        return


def _trained(run: RunFolder) -> dict[str, float]:
    """How far a run is, in the unit of each limit."""
    done = [row["epoch"] for row in run.rows() if row["kind"] == "epoch"]
    last = run.last_numbers()
    with run.reading_last():
        minutes = (last["elapsed"] - last.get("test_seconds", 0.0)) / 60.0
        return {
            "epochs": max(done, default=0),
            "max_steps": last["step"],
            "max_minutes": minutes,
        }


def _warn_schedule_changes(settings: Settings, run: RunFolder) -> None:
    """A schedule that ends with the run changes with the run's end."""
    schedule = settings.optimizer.get("schedule")
    if schedule not in OVER_ALL_EPOCHS:
        return
    own = saved(run.recipe).training
    for limit in ("epochs", "max_steps", "max_minutes"):
        before, now = own.get(limit), settings.training.get(limit)
        if before != now:
            like = f", and the run is not one of {now} {limit.removeprefix('max_')} from the start"
            logger.warning(
                f"{run.path}: training.{limit} {before or 'none'} -> {now or 'none'} changes its "
                f"{schedule} schedule too: the learning rate jumps here{like if now else ''}"
            )


def located(settings: Settings, run: RunFolder | None = None) -> Settings:
    """Settings with absolute paths to the text and to ``init_from``.

    A relative path of a run is looked for in the folder it was trained in, then in the current
    folder; one of new settings in the current folder.
    """
    folders = [None if run is None else run.working_folder(), "."]

    def absolute(path: str) -> str:
        paths = [os.path.abspath(Path(each, path)) for each in folders if each is not None]
        return next(filter(os.path.exists, paths), paths[0])

    if settings.init_from is not None:
        settings = replace(settings, init_from=os.path.realpath(absolute(settings.init_from)))
    corpus = settings.data["corpus"]
    if corpus in CORPUS_NAMES[settings.task]:
        return settings
    return settings.changed(data={"corpus": absolute(corpus)})


def with_text(settings: Settings, run: RunFolder) -> Settings:
    """``located`` settings of a run; DataError if its text is gone."""
    found = located(settings, run)
    corpus = found.data["corpus"]
    if corpus not in CORPUS_NAMES[settings.task] and not Path(corpus).exists():
        raise DataError(
            f"{run.path}: the text it was trained on is gone from {corpus}; put it back, or go to "
            f"the folder in which it is {settings.data['corpus']}"
        )
    return found
