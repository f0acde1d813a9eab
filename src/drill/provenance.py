"""Where a run comes from: `environment.json`, and when it may change.

It is written when a run begins. Every later life of the run adds what it ran on to the list
``resumed``; a command that trains nothing any more leaves it alone, so the first commit, command
and start stay those of the training.
"""

import datetime
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from drill import __version__
from drill.config import Settings, saved
from drill.machine import commit, device_name
from drill.models import LanguageModel
from drill.parallel import World
from drill.precision import effective
from drill.run_folder import RunFolder
from drill.translator import Translator

LIMITS = ("epochs", "updates", "max_minutes")  # settings that say when a run has ended


def keep_environment(
    run: RunFolder,
    settings: Settings,
    model: LanguageModel | Translator,
    device: torch.device,
    processes: World,
    ways: Sequence[str] = (),
    **more: Any,
) -> None:
    """Tell of a run that begins or goes on, and the ``ways`` it is trained in where they are known;
    not of one that ``has_ended``."""
    life = _life(settings, device, processes)
    if ways:
        life["ways"] = list(ways)
    told = run.read_environment() if run.last.exists() or run.best.exists() else None
    if told is None:
        about = {
            "seed": settings.training["seed"],
            "parameters": model.parameter_count(),
            "vocabulary_size": model.layer.vocabulary_size,
        }
        run.write_json(run.environment, {**life, **about, **more})
    else:
        run.write_json(run.environment, {**told, "resumed": [*told.get("resumed", []), life]})


def has_ended(run: RunFolder, settings: Settings) -> bool:
    """Whether a run was tested and these settings ask for no more training: nothing may change."""
    rows = run.rows()
    if not rows or rows[-1]["kind"] != "test":
        return False
    if not (run.last.exists() and run.recipe.exists()):  # it starts over
        return False
    before = saved(run.recipe).training
    moved = [key for key in LIMITS if settings.training.get(key) != before.get(key)]
    if moved != ["epochs"]:
        return not moved
    done = max(row["epoch"] for row in rows if row["kind"] != "test")
    stopped_early = done < before["epochs"]  # by patience: more epochs do not wake it
    return stopped_early or settings.training["epochs"] <= done


def _life(settings: Settings, device: torch.device, processes: World) -> dict[str, Any]:
    precision = effective(settings.training["precision"], device)
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
