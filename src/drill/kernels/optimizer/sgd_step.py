"""Clipping, weight decay, a step of SGD and the running average, in two launches for all tensors.

r = min(1, clip / (|g| + 1e-6));   w <- w - rate (r g + decay w);   a <- a + share (w - a)

The same as ``clip_grad_norm_`` and an optimiser one after the other, which go over everything five
times. For float32 on an NVIDIA GPU.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from drill.kernels.runtime import nvrtc
from drill.kernels.runtime.nvrtc import CompileError, Kernel, compiled

SOURCE = Path(__file__).with_name("sgd_step.cu")
MOST = 96  # tensors of a launch: their addresses are its arguments
CHUNK, THREADS = 4096, 256  # as in the source
BLOCKS_PER_PROCESSOR = 4


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p * MOST),
        ("gradients", ctypes.c_void_p * MOST),
        ("averages", ctypes.c_void_p * MOST),
        ("sizes", ctypes.c_longlong * MOST),
        ("first", ctypes.c_int * (MOST + 1)),
        ("count", ctypes.c_int),
    )


def supported(tensors: Sequence[Tensor]) -> str | None:
    """Why ``sgd_step`` cannot change these; None where it can."""
    if not tensors:
        return "there is no parameter"
    for tensor in tensors:
        if not tensor.is_cuda or torch.version.hip:
            return f"parameters are not all on an NVIDIA GPU, one is on {tensor.device}"
        if tensor.device != tensors[0].device:
            return f"parameters are on {tensors[0].device} and {tensor.device}"
        if tensor.dtype != torch.float32:
            return f"parameters are not all float32, one is {tensor.dtype}"
        if not tensor.is_contiguous():
            return f"the entries of a parameter {tuple(tensor.shape)} are not in order in memory"
    return nvrtc.missing() or _not_compiled(tensors[0].device)


@cache
def _not_compiled(device: torch.device) -> str | None:
    """Why the kernels do not compile or load there; None where they do, now and from now on."""
    try:
        for name in ("squares", "update"):
            _kernel(name, device)
    except CompileError as error:
        return str(error)
    return None


def _kernel(name: str, device: torch.device) -> Kernel:
    return compiled(SOURCE, name, {"MOST": MOST}, 0, device)


def sgd_step(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor] | None,
    numbers: Tensor,  # (2,), float32 on the device: rate and share
    *,
    clip: float | None,
    decay: float,
) -> None:
    """Change weights and averages in place; ``numbers`` are read when the launch runs.

    More tensors than one launch takes go in groups: the norm is that of all of them.
    """
    device = weights[0].device
    given = [gradient.contiguous() for gradient in gradients]
    tables = [
        _table(weights[own], given[own], None if averages is None else averages[own])
        for own in (slice(start, start + MOST) for start in range(0, len(weights), MOST))
    ]
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    most = BLOCKS_PER_PROCESSOR * processors
    blocks = [max(1, min(table.first[table.count], most)) for table in tables]
    parts = sum(blocks)
    partial = torch.empty(parts, dtype=torch.float32, device=device)
    with torch.cuda.device_of(weights[0]):
        if clip is not None:
            squares = _kernel("squares", device)
            starts = accumulate(blocks[:-1], initial=0)
            for table, count, start in zip(tables, blocks, starts, strict=True):
                squares(count, THREADS, [table, partial[start:]], together=False)
        update = _kernel("update", device)
        amounts = [ctypes.c_float(clip or 0.0), ctypes.c_float(decay)]
        for table, count in zip(tables, blocks, strict=True):
            update(count, THREADS, [table, partial, parts, numbers, *amounts], together=False)
    increment_version([*weights, *(averages or [])])  # a kernel writes past torch's count


def _table(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], averages: Sequence[Tensor] | None
) -> _Tensors:
    """Addresses, sizes and the first chunk of each tensor of a launch."""
    table = _Tensors()
    chunks = 0
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        table.weights[i], table.gradients[i] = weight.data_ptr(), gradient.data_ptr()
        table.averages[i] = None if averages is None else averages[i].data_ptr()
        table.sizes[i], table.first[i] = weight.numel(), chunks
        chunks += -(-weight.numel() // CHUNK)
    table.count = len(weights)
    table.first[len(weights)] = chunks
    return table
