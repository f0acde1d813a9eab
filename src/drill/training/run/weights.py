"""From a run folder back to its settings and its weights."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from drill.errors import CheckpointError, RunFolderError, check_value
from drill.files import check_run
from drill.training.run.checkpoint import copy_into, fingerprint_in, load, strip_prefix
from drill.training.run.folder import RunFolder
from drill.training.settings import INNER, LANGUAGE_MODEL, TRANSLATION, Settings, read_settings

logger = logging.getLogger("drill")

Weights = Literal["averaged", "best", "last"]
"""``averaged``, of translators, where they are better than the best single ones."""


GPU_IMPLS = ("persistent", "graph", "triton")
"""Values of ``impl`` that run on some GPUs only."""


@dataclass(frozen=True)
class WeightsInfo:
    """Which weights of a run a model has."""

    weights: Weights
    when: Mapping[str, Any]  # {"epoch": 12}, {"step": 8000} or, of a mean, {"steps": [7000, 8000]}
    fingerprint: str  # equal for equal weights, bit for bit

    def row(self) -> dict[str, Any]:
        when = {f"weights_{key}": value for key, value in self.when.items()}
        return {"weights": self.weights, **when, "weights_fingerprint": self.fingerprint}


def settings_of(run: RunFolder, task: str | None = None) -> Settings:
    """The settings of a run; RunFolderError if it is not one of ``task``."""
    check_run(run.path)
    settings = read_settings(run.recipe)
    if task not in (None, settings.task):
        kinds = {LANGUAGE_MODEL: "language model", TRANSLATION: "translator"}
        raise RunFolderError(f"{run.path}: is a {kinds[settings.task]}, not a {kinds[task]}")
    return settings


def task_of(folder: Path | str) -> str:
    return settings_of(RunFolder(folder)).task


def by_any_kernels(settings: Settings) -> Settings:
    """Settings with ``impl=auto`` instead of a kernel that not every machine has."""
    encoder, layer = _by_any(settings.encoder), _by_any(settings.layer)
    if INNER in layer:
        layer[INNER] = _by_any(layer[INNER])
    return settings.changed(encoder=encoder, layer=layer)


def _by_any(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, "impl": "auto"} if table.get("impl") in GPU_IMPLS else dict(table)


def read_weights(run: RunFolder, weights: Weights | None) -> tuple[dict[str, Tensor], WeightsInfo]:
    """The weights of a run, and which they are: by default averaged, best or last ones."""
    files: dict[Weights, Path] = {"averaged": run.averaged, "best": run.best, "last": run.last}
    there: list[Weights] = [name for name, path in files.items() if path.exists()]
    if not there:
        raise CheckpointError(f"{run.path}: has no checkpoint yet; `drill train {run.path}`")
    check_value(weights in (None, *files), "weights", f"one of {', '.join(files)}", weights)
    chosen = weights or there[0]
    if weights is None and chosen == "last":
        logger.warning("%s: has no best weights; these are the last ones", run.path)
    others = [f"take --weights {name}" for name in there if name != chosen]
    if chosen not in there:
        fault = f"has no {chosen} weights"
        raise CheckpointError(fault, key=str(run.path), hint=" or ".join(others))
    path = files[chosen]
    tensors, numbers = load(path, " or ".join(["restore it from a copy", *others]))
    prefix = "model/" if chosen == "last" else ""  # which also has the optimizer's state
    when = {"averaged": "steps", "best": "epoch", "last": "step"}[chosen]
    step = {when: numbers[when]} if when in numbers else {}
    return strip_prefix(prefix, tensors), WeightsInfo(chosen, step, fingerprint_in(path, prefix))


def fill(model: nn.Module, tensors: Mapping[str, Tensor], run: RunFolder) -> None:
    """Copy the weights of a run into a model and set eval mode."""
    copy_into(model, tensors, str(run.path))
    model.eval()
