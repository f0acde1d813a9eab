"""Checkpoints: tensors and numbers in one safetensors file, written whole, checked when read.

The numbers are JSON in the file's header, beside a checksum of every tensor. One file, so a rename
puts all of it into place: a checkpoint is the old one or the new one, never a mixture.
"""

import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from drill.data.files import write_whole

FORMAT = 1  # another layout takes another number


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; one sentence with the place and the mend."""


def save(path: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Write ``path``, whole or not at all: what stood there before stays until then."""
    held = {name: _plain(tensor) for name, tensor in tensors.items()}
    note = {
        "format": FORMAT,
        "checksums": {name: _checksum(tensor) for name, tensor in held.items()},
        "numbers": numbers,
    }
    content = safetensors.torch.save(held, {"drill": json.dumps(note)})
    try:
        write_whole(path, lambda stream: _write(stream, content))
        _settle(path.parent)
    except OSError as error:
        room = f" ({len(content) / 2**20:,.0f} MiB are needed)" if _is_full(error) else ""
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror or error}){room}; make room or choose "
            "another folder, then run the same command: it goes on from the checkpoint before"
        ) from None


def load(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``save`` wrote: tensors, numbers. Anything else raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint; train first")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            note = json.loads((file.metadata() or {})["drill"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        numbers, wanted, layout = note["numbers"], note["checksums"], note["format"]
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: is damaged or no checkpoint of drill ({type(error).__name__}: {error}); "
            "restore it from a copy, or remove it to start over"
        ) from None
    if layout != FORMAT:
        raise CheckpointError(
            f"{path}: has format {layout}, this version of drill reads {FORMAT}; use the version "
            "that wrote it"
        )
    for name, tensor in tensors.items():
        if wanted.get(name) != _checksum(tensor):
            raise CheckpointError(
                f"{path}: the values of {name} are damaged (wrong checksum); restore it from a "
                "copy, or remove it to start over"
            )
    return tensors, numbers


def load_into(model: torch.nn.Module, path: Path) -> dict[str, Any]:
    """Copy the tensors of ``path`` into the parameters of ``model``; gives the numbers.

    Storages stay, so ties and optimisers stay valid. Names and shapes must agree.
    """
    tensors, numbers = load(path)
    copy_into(dict(model.named_parameters()), tensors, str(path))
    return numbers


@torch.no_grad()
def copy_into(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], place: str) -> None:
    """Copy values by name; ``place`` is what an error calls their origin."""
    lacking, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if lacking or extra:
        raise CheckpointError(
            f"{place}: does not fit the model: it lacks {_some(lacking)} and has beyond it "
            f"{_some(extra)}; use the recipe it was trained with"
        )
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise CheckpointError(
                f"{place}: {name} has shape {tuple(found[name].shape)}, the model's has "
                f"{tuple(tensor.shape)}; use the recipe and the vocabulary it was trained with"
            )
    for name, tensor in wanted.items():
        tensor.copy_(found[name])


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _checksum(tensor: Tensor) -> int:
    values: Any = tensor.reshape(-1).view(torch.uint8).numpy()  # any dtype, bfloat16 too
    return zlib.crc32(values)


def _write(stream: Any, content: bytes) -> None:
    stream.write(content)


def _settle(folder: Path) -> None:
    """Have the rename on disk too, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _some(names: list[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
