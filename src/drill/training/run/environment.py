"""environment.json: where a run was trained, and whether a run has ended.

The first start is the object itself; each resume adds an entry to its list ``resumed``, with the
step that it went on from.
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
from drill.training.run.folder import RunFolder
from drill.training.settings import Settings


def run_environment(
    run: RunFolder,
    settings: Settings,
    model: LanguageModel | Translator,
    device: torch.device,
    processes: World,
    kernels: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """The content of environment.json for a run that starts or resumes.

    Args:
        kernels: which kernels are used, if known.
        more: entries of a run that starts.
    """
    start = _start(settings, device, processes)
    if kernels:
        start["kernels"] = list(kernels)
    before = run.read_environment() if run.last.exists() or run.best.exists() else None
    if before is None:
        about = {
            "seed": settings.training["seed"],
            "parameters": model.parameter_count(),
            "vocabulary_size": model.layer.vocabulary_size,
        }
        return {**start, **about, **more}
    with run.reading_last():
        step = run.last_numbers()["step"] if run.last.exists() else 0
    # An earlier resume from this step was killed before it saved anything.
    saved = [each for each in before.get("resumed", []) if each.get("from_step") != step]
    return {**before, "resumed": [*saved, {**start, "from_step": step}]}


def has_ended(run: RunFolder, settings: Settings) -> bool:
    """Whether a run was tested and these settings ask for no more training."""
    if run.test_row() is None or not run.last.exists():
        return False
    last, asked = run.last_numbers(), settings.training
    updates, minutes = asked.get("max_steps"), asked.get("max_minutes")
    with run.reading_last():
        trained = last["elapsed"] - last["test_seconds"]
        stopper = last["stopper"]  # stopped by patience: more epochs change nothing
        return (
            last["epoch"] > asked["epochs"]
            or (updates is not None and last["step"] >= updates)
            or (minutes is not None and trained >= 60.0 * minutes)
            or (stopper is not None and stopper["triggered"])
        )


def _start(settings: Settings, device: torch.device, processes: World) -> dict[str, Any]:
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
