"""Checkpoints: tensors and numbers in one safetensors file, written atomically, checked when read.

The numbers are JSON in the file's header, with a checksum of every tensor and of themselves.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from drill.errors import CheckpointError
from drill.files import atomic_write

T = TypeVar("T")

FORMAT = 3  # another layout takes another number
HINT = "restore it from a copy, or train under another --name"


def save(path: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Write ``path`` atomically. Equal tensors and numbers make equal files, byte for byte."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    checksums = {name: _checksum(tensor) for name, tensor in plain.items()}
    header = {"format": FORMAT, "checksums": checksums, "numbers": numbers}
    header["checksum"] = _header_checksum(checksums, numbers)
    # One entry of metadata: the library writes several in a random order.
    atomic_write(path, safetensors.torch.save(plain, {"drill": json.dumps(header)}))


def load(path: Path, hint: str = HINT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and numbers that ``save`` wrote; CheckpointError with a hint for anything else."""
    tensors, numbers, saved = _read(path, hint, tensors=True)
    checksums = {name: _checksum(tensor) for name, tensor in tensors.items()}
    damaged = sorted({name for name, _ in checksums.items() ^ saved.items()})
    if damaged:
        raise _damaged(path, f"wrong checksum of {_some(damaged)}", hint)
    return tensors, numbers


def load_numbers(path: Path) -> dict[str, Any]:
    """The numbers of ``load``, from the file's header only."""
    _, numbers, _ = _read(path, HINT, tensors=False)
    return numbers


def load_into(model: nn.Module, path: Path) -> dict[str, Any]:
    """Copy the tensors of ``path`` into the parameters of ``model``; returns the numbers.

    In place, so tied weights and optimizers stay valid.
    """
    tensors, numbers = load(path, "restore it from a copy")
    copy_into(model, tensors, str(path))
    return numbers


@torch.no_grad()
def copy_into(model: nn.Module, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Copy weights by name; CheckpointError about ``origin`` if one does not fit."""
    parameters = dict(model.named_parameters())
    shapes = [{n: _shape(t) for n, t in side.items()} for side in (parameters, tensors)]
    misfits = sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})
    if misfits:
        raise CheckpointError(
            f"{origin}: does not fit the model (other names or shapes: {_some(misfits)}); use the "
            "recipe and the vocabulary it was trained with"
        )
    for name, parameter in parameters.items():
        parameter.copy_(sharded_as(parameter, tensors[name]))


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def fingerprint_in(path: Path, prefix: str = "") -> str:
    """16 digits, equal for equal tensors of equal names, from the header of a file.

    Of the tensors whose names start with ``prefix`` alone, and without it.
    """
    _, _, checksums = _read(path, HINT, tensors=False)
    text = json.dumps(strip_prefix(prefix, checksums), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(
    path: Path, hint: str, *, tensors: bool
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, int]]:
    """Tensors if asked for, not checked yet; numbers; the checksums that tensors should have."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint; train first")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            text = file.metadata()["drill"]
            names = list(file.keys()) if tensors else []
            loaded = {name: file.get_tensor(name) for name in names}
        header = json.loads(text)
        layout, numbers, checksums = header["format"], header["numbers"], header["checksums"]
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}", hint) from None
    if layout != FORMAT:
        raise CheckpointError(
            f"{path}: has format {layout}, this version of drill reads {FORMAT}; use the version "
            "that wrote it"
        )
    if header.get("checksum") != _header_checksum(checksums, numbers):
        raise _damaged(path, "wrong checksum of its numbers", hint)
    return loaded, numbers, checksums


def _checksum(tensor: Tensor) -> int:
    values: Any = tensor.reshape(-1).view(torch.uint8).numpy()  # any dtype, bfloat16 too
    # The same bytes mean something else in another shape or dtype.
    return zlib.crc32(values, zlib.crc32(_shape(tensor).encode()))


def _header_checksum(checksums: Mapping[str, int], numbers: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps([checksums, numbers]).encode())


def _damaged(path: Path, fault: str, hint: str) -> CheckpointError:
    return CheckpointError(f"{path}: is damaged or no checkpoint of drill ({fault}); {hint}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def copied(model: nn.Module, first: bool = True) -> dict[str, Tensor]:
    """A copy of the weights in the ``first`` process; of a sharded model all of them call it."""
    weights = {}
    for name, p in model.named_parameters():
        weight = p.detach()
        gathered = full_tensor(weight)
        if first:
            weights[name] = weight.clone() if gathered is weight else gathered
    return weights


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that FSDP has sharded, gathered on the CPU; any other as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather().cpu()


def sharded_as(parameter: Tensor, value: Tensor) -> Tensor:
    """This process's part of ``value`` if the parameter is sharded, else ``value``."""
    if not hasattr(parameter, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    layout = (parameter.device_mesh, parameter.placements)
    return distribute_tensor(value.to(parameter.device), *layout, src_data_rank=None)


def strip_prefix(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {name[len(prefix) :]: v for name, v in values.items() if name.startswith(prefix)}


def split_tensors(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a ``state_dict``, and all else, which JSON has to hold."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}
