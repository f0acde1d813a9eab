"""Where a run comes from: `environment.json`, and when it may change.

It is written when a run begins. Every time it is resumed, it adds what it ran on to the list
``resumed``, and the step it went on from. One that has trained nothing goes again: at its end or,
where it was killed, with the next command. So all that stands there is of the training.
"""

import datetime
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from drill import __version__
from drill.models.language_model import LanguageModel
from drill.models.translator import Translator
from drill.training.device import commit, device_name
from drill.training.distributed import World
from drill.training.precision import resolve_precision
from drill.training.run.folder import RunFolder, fitting
from drill.training.settings import Settings, saved


def keep_environment(
    run: RunFolder,
    settings: Settings,
    model: LanguageModel | Translator,
    device: torch.device,
    processes: World,
    kernels: Sequence[str] = (),
    **more: Any,
) -> None:
    """Tell of a run that begins or goes on, and the ``ways`` it is trained in where they are known;
    not of one that ``has_ended``."""
    life = _life(settings, device, processes)
    if kernels:
        life["kernels"] = list(kernels)
    forget_idle_lives(run)
    told = run.read_environment() if run.last.exists() or run.best.exists() else None
    if told is None:
        about = {
            "seed": settings.training["seed"],
            "parameters": model.parameter_count(),
            "vocabulary_size": model.layer.vocabulary_size,
        }
        run.write_json(run.environment, {**life, **about, **more})
    else:
        life["from_step"] = _step(run) if run.last.exists() else 0
        run.write_json(run.environment, {**told, "resumed": [*told.get("resumed", []), life]})


def forget_idle_lives(run: RunFolder) -> None:
    """Take those out of environment.json that have not come beyond the step they went on from."""
    told = run.read_environment() if run.last.exists() else None
    lives = [] if told is None else told.pop("resumed", [])
    if told is None or not lives:
        return
    step = _step(run)
    left = [life for life in lives if life.get("from_step") != step]  # older ones do not tell
    if len(left) < len(lives):
        run.write_json(run.environment, {**told, "resumed": left} if left else told)


def _step(run: RunFolder) -> int:
    with fitting(run):
        return int(run.last_numbers()["step"])


def has_ended(run: RunFolder, settings: Settings) -> bool:
    """Whether a run was tested and these settings ask for no more training: nothing may change.

    How far it is the checkpoint says. recipe.toml does not: a command that asked for more may have
    been killed between writing it and training.
    """
    if run.test_row() is None or not run.last.exists():
        return False
    at, asked = run.last_numbers(), settings.training
    updates, minutes = asked.get("max_steps"), asked.get("max_minutes")
    with fitting(run):
        trained = at["elapsed"] - at.get("test_seconds", 0.0)
        stopper = at.get("stopper")  # more epochs do not wake who was stopped by patience
        return (
            at["epoch"] > asked["epochs"]
            or (updates is not None and at["step"] >= updates)
            or (minutes is not None and trained >= 60.0 * minutes)
            or (stopper is not None and stopper["triggered"])
        )


def leave_ended(run: RunFolder, settings: Settings) -> bool:
    """``has_ended``, and then recipe.toml asks for what was trained: a killed command may have
    asked for more."""
    if not has_ended(run, settings):
        return False
    if not (run.recipe.exists() and has_ended(run, saved(run.recipe))):
        run.write_text(run.recipe, settings.to_toml())
    return True


def _life(settings: Settings, device: torch.device, processes: World) -> dict[str, Any]:
    precision = resolve_precision(settings.training["precision"], device)
    return {
        "drill": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "tf32": precision != "float32" and device.type == "cuda",
        "world_size": processes.size,
        "command": sys.argv,
        "working_folder": str(Path.cwd()),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
