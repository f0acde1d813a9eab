"""Where lines begin, worked out once for a model and found again by its weights.

Kept in memory while the model lives and, where a file is named, there for the next process. A state
belongs to what it was made of: the weights bit for bit, the settings of every module, the versions
of drill and torch, the machine, its threads and its precision. For all else it is made anew. What
no key can tell is not kept: nothing of a model with hooks, and no file of classes that are neither
drill's nor torch's. Whoever edits drill itself deletes the file, which is always safe.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drill import __version__
from drill.errors import CheckpointError
from drill.language_modeling.fingerprint import weights_fingerprint
from drill.language_modeling.line_start import LINES, LONGEST, line_start
from drill.layers.module_hooks import hooked
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.training.precision import current_precision, evaluating
from drill.training.run import checkpoint

LAYOUT = 2  # of the file, and of how a state is made

MACHINES = 8
"""States that a file holds at most: those of one model on several devices, or with other threads,
which round otherwise and would replace each other's."""

logger = logging.getLogger("drill")


class _Key(NamedTuple):
    weights: str  # the model's fingerprint
    all: str  # a hash of that and of all else


class _Kept(NamedTuple):
    key: _Key
    state: State


_in_memory: WeakKeyDictionary[LanguageModel, _Kept] = WeakKeyDictionary()


def kept_start(name: str, model: LanguageModel, end: int, file: Path | str | None = None) -> State:
    """``line_start``, made where neither memory nor ``file`` has it; the file then keeps it.

    A file that is damaged or of other weights is replaced; one that cannot be written costs the
    next process the time of making it again.
    """
    if any(map(hooked, model.modules())):
        return _made(name, model, end)
    path = Path(file) if file is not None and _of_known_classes(model) else None
    key = _key(model, end)
    kept = _in_memory.get(model)
    if kept is None or kept.key != key:
        state = None if path is None else _read(path, key).get(key.all)
        if state is None:
            state = _made(name, model, end)
            if path is not None:
                _write(path, key, state)
        device = next(model.parameters()).device
        state = tuple(tuple(part.to(device) for part in layer) for layer in state)
        kept = _in_memory[model] = _Kept(key, state)
    return tuple(tuple(part.clone() for part in layer) for layer in kept.state)


def _made(name: str, model: LanguageModel, end: int) -> State:
    with evaluating(model), model.layer.cached_labels():
        return line_start(name, model, end)


def _of_known_classes(model: LanguageModel) -> bool:
    """Whether the versions of drill and torch tell what its modules compute."""
    rooms = {type(module).__module__.partition(".")[0] for module in model.modules()}
    return rooms <= {"drill", "torch"}


def _key(model: LanguageModel, end: int) -> _Key:
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    machine = {
        "drill": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "precision": current_precision(device),
        "autocast": str(torch.get_autocast_dtype(device.type))
        if torch.is_autocast_enabled(device.type)
        else None,
    }
    made = {"layout": LAYOUT, "lines": LINES, "longest": LONGEST, "end": end}
    weights = weights_fingerprint(model)
    told = json.dumps({"weights": weights, **made, **machine})
    return _Key(weights, hashlib.sha256(told.encode()).hexdigest())


def _read(path: Path, key: _Key) -> dict[str, State]:
    """The states of these weights, each under its whole key."""
    if not path.is_file():
        return {}
    try:
        tensors, numbers = checkpoint.load(path)
        return _states(tensors) if numbers.get("weights") == key.weights else {}
    except (CheckpointError, ValueError) as error:
        logger.debug("%s: is made again (%s)", path, error)
        return {}


def _write(path: Path, key: _Key, state: State) -> None:
    others = list(_read(path, key).items())[-(MACHINES - 1) :]
    tensors = {
        f"{name}/{i}/{j}": part
        for name, each in [*others, (key.all, state)]
        for i, layer in enumerate(each)
        for j, part in enumerate(layer)
    }
    try:
        checkpoint.save(path, tensors, {"weights": key.weights})
    except CheckpointError as error:  # of a run that others may only read
        logger.debug("%s", error)


def _states(tensors: Mapping[str, Tensor]) -> dict[str, State]:
    found: dict[str, dict[int, dict[int, Tensor]]] = {}
    for name, part in tensors.items():
        key, i, j = name.split("/")
        found.setdefault(key, {}).setdefault(int(i), {})[int(j)] = part
    return {
        key: tuple(tuple(layers[i][j] for j in sorted(layers[i])) for i in sorted(layers))
        for key, layers in found.items()
    }
