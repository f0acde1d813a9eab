"""environment.json: where a run was trained.

The first start is the object itself; each resume adds an entry to its list ``resumed``, with the
step that it went on from.
"""

import datetime
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from drill import __version__
from drill.training.build import kernel_error
from drill.training.device import device_name
from drill.training.loop import TRAINING_LOG, Task
from drill.training.precision import autocast_dtype, resolve_precision
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import has_ended
from drill.training.settings import Settings

logger = logging.getLogger("drill")
training_log = logging.getLogger(TRAINING_LOG)


@dataclass(frozen=True)
class Start:
    """A task that can train, and what is written and shown before."""

    task: Task
    save: Callable[[], object]  # writes the files of the task
    size: str  # of the corpus, such as "929,589 tokens, 10,000 words"
    remarks: tuple[str | None, ...]  # for the user
    environment: dict[str, Any] = field(default_factory=dict)  # of a run that starts
    warning: str | None = None  # for the user, also with -q


def record_start(start: Start, settings: Settings) -> None:
    """Log its warning, on a GPU how it is trained; describe it in its folder at the first write."""
    task = start.task
    run, device, model = task.run, task.device, task.model
    if not task.world.is_main or has_ended(run, settings):
        return
    if start.warning is not None:
        logger.warning(start.warning)
    try:
        used = task.kernels(autocast_dtype(settings.training["precision"], device))
    except ValueError as error:
        raise kernel_error(settings, error) from None
    if device.type == "cuda":
        training_log.info("training on %s: %s", device, "; ".join(used))
    precision = resolve_precision(settings.training["precision"], device)
    this_start = {
        "drill": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "tf32": precision != "float32" and device.type == "cuda",
        "world_size": task.world.size,
        "command": sys.argv,
        "working_folder": str(Path.cwd()),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernels": used,
    }
    extra = start.environment | {
        "seed": settings.training["seed"],
        "parameters": model.parameter_count(),
        "vocabulary_size": model.layer.vocabulary_size,
    }
    environment = _environment(run, this_start, extra)

    def describe() -> None:
        start.save()
        run.write_json(run.environment, environment)
        run.write_text(run.recipe, settings.to_toml())

    run.before_first_write(describe)


def _environment(run: RunFolder, start: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """The content of environment.json; a new run has ``extra`` too, a resume does not."""
    environment = run.read_environment() if run.last.exists() or run.best.exists() else None
    if environment is None:
        return {**start, **extra}
    step = run.last_numbers()["step"] if run.last.exists() else 0
    # An earlier resume from this step was killed before it saved anything.
    resumes = [entry for entry in environment.get("resumed", []) if entry.get("from_step") != step]
    return {**environment, "resumed": [*resumes, {**start, "from_step": step}]}


def commit() -> str | None:
    """The commit of the source, with a plus where files differ from it; None outside a checkout.

    The environment variable DRILL_COMMIT replaces it, for copies without a history.
    """
    if "DRILL_COMMIT" in os.environ:
        return os.environ["DRILL_COMMIT"]
    package = str(Path(__file__).parents[2])

    def git(*words: str) -> str:
        result = subprocess.run(
            ["git", "-C", package, *words], capture_output=True, text=True, check=True
        )
        return result.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # else a user's repository around an install
        name = git("rev-parse", "--short", "HEAD")
        return name + ("+" if git("status", "--porcelain", "--untracked-files=no", package) else "")
    except (OSError, subprocess.CalledProcessError):
        return None
