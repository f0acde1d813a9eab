"""Whether a run has ended or can resume with given settings, and where its text is."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drill.data import DataError
from drill.data.catalog import PARALLEL_NAMES, TEXT_NAMES
from drill.errors import RunFolderError
from drill.files import check_run
from drill.training.options import ended_by, used_limits
from drill.training.run.folder import RunFolder
from drill.training.settings import (
    LANGUAGE_MODEL,
    TRANSLATION,
    Settings,
    read_settings,
    recipe,
)

logger = logging.getLogger("drill")

CORPUS_NAMES = {LANGUAGE_MODEL: TEXT_NAMES, TRANSLATION: PARALLEL_NAMES}


def settings_to_resume(folder: Path | str, changes: Sequence[str] = ()) -> Settings:
    """The settings of the run in a folder, to resume it with ``drill.train``.

    Args:
        folder: of the run.
        changes: ``table.key=value`` each.

    Returns:
        The settings. Paths are those of the run, whatever the current folder is.
    """
    run = RunFolder(folder)
    check_run(run.path)
    settings = recipe(str(run.recipe), changes)
    absolute = with_text(settings, run)
    return settings if located(settings) == absolute else absolute


def check_resume(settings: Settings, run: RunFolder) -> bool:
    """Whether the folder has weights to resume from or to use; RunFolderError if it cannot train.

    It has a run of other settings, or one whose result would be lost.
    """
    begun = run.last.exists() or run.best.exists()
    if not begun or not run.recipe.exists():
        return begun
    saved = read_settings(run.recipe)
    changes = located(saved, run).differences(located(settings))
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise RunFolderError(
            f"{run.path}: holds a run with other settings ({'; '.join(changes[:3])}{more}); "
            f"resume it by drill train {run.path}, give this one another --name, or remove the "
            "folder"
        )
    _check_limits(settings, saved, run)
    return True


def _check_limits(settings: Settings, saved: Settings, run: RunFolder) -> None:
    """Raise if a finished run would be overwritten, or a longer run ended by a lower limit.

    A run that has ended only returns its result, so a lower limit is a warning then.
    """
    if not run.last.exists():
        if run.test_row() is not None:
            raise RunFolderError(
                f"{run.path}: holds a finished run whose last/ is gone, so it cannot resume; give "
                "this one another --name, or remove the folder"
            )
        return
    ended = has_ended(run, settings)
    for limit, used in _used(run)[0].items():
        new, old = settings.training[limit], saved.training[limit]
        if new is not None and used > new and (old is None or old > new):
            used_up = f"{run.path}: has already used {used:g} {limit.removeprefix('max_')}"
            if not ended:
                raise RunFolderError(
                    f"{used_up}; set training.{limit} above that to resume, or give this one "
                    "another --name"
                )
            logger.warning("%s, above training.%s=%g: nothing is trained", used_up, limit, new)


def has_ended(run: RunFolder, settings: Settings) -> bool:
    """Whether a run is tested and at a limit of these settings, so that it trains no further."""
    if run.test_row() is None or not run.last.exists():
        return False
    return ended_by(settings.training, *_used(run)) is not None


def _used(run: RunFolder) -> tuple[dict[str, float], bool]:
    """How much of every limit the last checkpoint has used; whether patience has ended the run."""
    last = run.last_numbers()
    used = used_limits(last["epoch"], last["step"], last["elapsed"] / 60.0)
    return used, last["stopper"] is not None and last["stopper"]["triggered"]


def located(settings: Settings, run: RunFolder | None = None) -> Settings:
    """Settings with absolute paths to the text and to ``init_from``.

    A relative path of a run is looked for in the folder it was trained in, then in the current
    folder; one of new settings in the current folder.
    """
    folders = [None if run is None else run.working_folder(), "."]

    def absolute(path: str) -> str:
        paths = [os.path.abspath(Path(folder, path)) for folder in folders if folder is not None]
        return next(filter(os.path.exists, paths), paths[0])

    if settings.init_from is not None:
        settings = replace(settings, init_from=os.path.realpath(absolute(settings.init_from)))
    corpus = settings.data["corpus"]
    if corpus in CORPUS_NAMES[settings.task]:
        return settings
    return settings.changed(data={"corpus": absolute(corpus)})


def with_text(settings: Settings, run: RunFolder) -> Settings:
    """``located`` settings of a run; DataError if its text is gone."""
    absolute = located(settings, run)
    corpus = absolute.data["corpus"]
    if corpus not in CORPUS_NAMES[settings.task] and not Path(corpus).exists():
        raise DataError(
            f"{run.path}: the text it was trained on is gone from {corpus}; put it back, or go to "
            f"the folder in which it is {settings.data['corpus']}"
        )
    return absolute
