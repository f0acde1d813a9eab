"""Where lines begin, worked out once for a model and found again by its weights.

Kept in memory while the model lives and, where a file is named, there for the next process. A state
belongs to what it was made of: the weights bit for bit, the settings of every module, the machine
and its precision. For all else it is made anew, so none is ever stale and a file can be deleted.
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

from drill import checkpoint
from drill.encoders.base import State
from drill.evaluation.fingerprint import weights_fingerprint
from drill.evaluation.line_start import LINES, LONGEST, line_start
from drill.evaluation.perplexity import evaluating
from drill.models import LanguageModel
from drill.precision import current_precision

LAYOUT = 1  # of the file, and of how a state is made

logger = logging.getLogger("drill")


class _Kept(NamedTuple):
    key: str
    state: State


_in_memory: WeakKeyDictionary[LanguageModel, _Kept] = WeakKeyDictionary()


def kept_start(name: str, model: LanguageModel, end: int, file: Path | str | None = None) -> State:
    """``line_start``, made where neither memory nor ``file`` has it; the file then keeps it.

    A file that is damaged or of other weights is replaced; one that cannot be written costs the
    next process the time of making it again.
    """
    key = _key(model, end)
    kept = _in_memory.get(model)
    if kept is None or kept.key != key:
        state = None if file is None else _read(Path(file), key)
        if state is None:
            with evaluating(model), model.layer.cached_labels():
                state = line_start(name, model, end)
            if file is not None:
                _write(Path(file), key, state)
        device = next(model.parameters()).device
        state = tuple(tuple(part.to(device) for part in layer) for layer in state)
        kept = _in_memory[model] = _Kept(key, state)
    return tuple(tuple(part.clone() for part in layer) for layer in kept.state)


def _key(model: LanguageModel, end: int) -> str:
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    machine = {
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
    told = json.dumps({"weights": weights_fingerprint(model), **made, **machine})
    return hashlib.sha256(told.encode()).hexdigest()


def _read(path: Path, key: str) -> State | None:
    if not path.is_file():
        return None
    try:
        tensors, numbers = checkpoint.load(path)
        return _state(tensors) if numbers.get("key") == key else None
    except (checkpoint.CheckpointError, LookupError) as error:
        logger.debug("%s: is made again (%s)", path, error)
        return None


def _write(path: Path, key: str, state: State) -> None:
    tensors = {f"{i}/{j}": part for i, layer in enumerate(state) for j, part in enumerate(layer)}
    try:
        checkpoint.save(path, tensors, {"key": key})
    except checkpoint.CheckpointError as error:  # of a run that others may only read
        logger.debug("%s", error)


def _state(tensors: Mapping[str, Tensor]) -> State:
    layers: dict[int, dict[int, Tensor]] = {}
    for name, part in tensors.items():
        i, j = map(int, name.split("/"))
        layers.setdefault(i, {})[j] = part
    return tuple(tuple(layers[i][j] for j in sorted(layers[i])) for i in sorted(layers))
