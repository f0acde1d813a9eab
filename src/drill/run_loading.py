"""From a run folder back to its settings, its vocabulary and its model, with which weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from drill.build_language_model import corpus, language_model
from drill.checkpoint import copy_into, fingerprint, load
from drill.config import OVER, TRANSLATION, Settings, saved
from drill.data import DataError, Ids, Vocabulary
from drill.machine import pick_device
from drill.models import LanguageModel
from drill.resuming import with_text
from drill.run_folder import RunFolder, RunFolderError
from drill.standing import under

Weights = Literal["averaged", "best", "last"]
"""``averaged``, of translators, where they are better than the best single ones."""

OF_SOME_MACHINES = ("persistent", "graph", "triton")
"""Kernels that run on some GPUs."""


@dataclass(frozen=True)
class Origin:
    """Which weights of a run a model has.

    weights      of which kind
    when         {"epoch": 12}, {"step": 8000} or, of a mean, {"steps": [7000, 8000]}; empty where
                 a file of weights does not tell
    fingerprint  equal for equal weights, bit for bit
    """

    weights: Weights
    when: Mapping[str, Any]
    fingerprint: str

    def row(self) -> dict[str, Any]:
        """What a row of evaluations.jsonl says of it."""
        when = {f"weights_{key}": value for key, value in self.when.items()}
        return {"weights": self.weights, **when, "weights_fingerprint": self.fingerprint}


@dataclass(frozen=True)
class Run:
    """A trained model and what it was trained on."""

    folder: RunFolder
    settings: Settings
    vocabulary: Vocabulary
    model: LanguageModel
    origin: Origin

    @property
    def weights(self) -> Weights:
        return self.origin.weights

    @cached_property
    def ids(self) -> Ids:
        """The encoded corpus; refuses one that is not the run's."""
        ids, vocabulary = corpus(with_text(self.settings, self.folder))
        if vocabulary != self.vocabulary:
            raise DataError(
                f"{self.folder.path}: was trained on another text than "
                f"{self.settings.data['corpus']} is now; restore the text"
            )
        return ids


def settings_of(run: RunFolder) -> Settings:
    if not run.path.is_dir() or not run.recipe.exists():
        raise RunFolderError(
            f"{run.path}: holds no run (no recipe.toml); name a folder of `drill train`"
        )
    return saved(run.recipe)


def vocabulary_of(run: RunFolder) -> Vocabulary:
    if not run.vocabulary.exists():
        raise RunFolderError(
            f"{run.vocabulary}: is missing, so nobody knows which word an id is; restore it from a "
            "copy, or remove the folder and train again"
        )
    return Vocabulary.load(run.vocabulary)


def task_of(folder: Path | str) -> str:
    """What the run of a folder was trained for."""
    return settings_of(RunFolder(folder)).task


def load_run(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> Run:
    """The model of a run in eval mode: the best weights, or the last where none are best yet."""
    run = RunFolder(folder)
    settings = settings_of(run)
    if settings.task == TRANSLATION:
        raise RunFolderError(
            f"{run.path}: holds a translator, not a language model; use `drill translate`, or "
            "load_translation in Python"
        )
    vocabulary = vocabulary_of(run)
    place = pick_device(device) if isinstance(device, str) else device
    model = language_model(by_any_kernels(settings), vocabulary, place)
    return Run(run, settings, vocabulary, model, load_weights(model, run, weights))


def by_any_kernels(settings: Settings) -> Settings:
    """The same without the kernels that the run was told to train by, where not every machine has
    them: what is to be used finds its own."""
    encoder, layer = _by_any(settings.encoder, "impl"), _by_any(settings.layer, "encoder")
    if OVER in layer:
        layer[OVER] = _by_any(layer[OVER], "encoder")
    return settings.changed(encoder=encoder, layer=layer)


def _by_any(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {**table, key: "auto"} if table.get(key) in OF_SOME_MACHINES else dict(table)


def load_weights(model: nn.Module, run: RunFolder, weights: Weights | None) -> Origin:
    """Load these, or the best there are, and set eval mode; gives which they are."""
    files: dict[Weights, Path] = {"averaged": run.averaged, "best": run.best, "last": run.last}
    there: list[Weights] = [name for name, path in files.items() if path.exists()]
    chosen: Weights = weights or [*there, "last"][0]
    path = files[chosen]
    tensors, numbers = load(path, _other_weights([name for name in there if name != chosen]))
    if chosen == "last":  # they lie among what a resume needs
        tensors = under("model/", tensors)
    copy_into(dict(model.named_parameters()), tensors, str(path))
    model.eval()
    when = {"averaged": "steps", "best": "epoch", "last": "step"}[chosen]
    at = {when: numbers[when]} if when in numbers else {}
    return Origin(chosen, at, fingerprint(tensors))


def _other_weights(there: Sequence[Weights]) -> str:
    """What can be done about weights that are damaged."""
    return " or ".join(["restore it from a copy", *(f"take --weights {each}" for each in there)])
