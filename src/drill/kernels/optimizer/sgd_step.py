"""Clipping, weight decay, a step of SGD and the running average, in two kernels.

r = min(1, clip / (|g| + 1e-6));   w <- w - rate (r g + decay w);   a <- a + share (w - a)

|g| is the norm over all groups of parameters; rate, share and decay are those of a group. The same
as ``clip_grad_norm_`` and an optimizer one after the other, which go over everything five times.
For float32 on an NVIDIA GPU.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from drill.kernels.runtime import nvrtc
from drill.kernels.runtime.nvrtc import CompileError, Kernel, load_kernel

SOURCE = Path(__file__).with_name("sgd_step.cu")
MOST = 96  # tensors of a launch: their addresses are its arguments
CHUNK, THREADS = 4096, 256  # as in the source
BLOCKS_PER_PROCESSOR = 4


class Group(NamedTuple):
    """Parameters that share their numbers."""

    weights: Sequence[Tensor]
    gradients: Sequence[Tensor]
    averages: Sequence[Tensor] | None
    numbers: Tensor  # (2,), float32 on the device: rate and share
    decay: float


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p * MOST),
        ("gradients", ctypes.c_void_p * MOST),
        ("averages", ctypes.c_void_p * MOST),
        ("sizes", ctypes.c_longlong * MOST),
        ("first", ctypes.c_int * (MOST + 1)),
        ("count", ctypes.c_int),
    )


def unsupported_reason(tensors: Sequence[Tensor]) -> str | None:
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
    return nvrtc.unavailable_reason() or _not_compiled(tensors[0].device)


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
    return load_kernel(SOURCE, name, {"MOST": MOST}, 0, device)


def sgd_step(groups: Sequence[Group], *, clip: float | None) -> None:
    """Change weights and averages in place; ``numbers`` are read when the launch runs.

    Every group has a launch, and another for every ``MOST`` tensors: the norm is that of all.
    """
    first = groups[0].weights[0]
    device = first.device
    given = [[gradient.contiguous() for gradient in group.gradients] for group in groups]
    launches = [
        (_table(group.weights[own], gradients[own], group.averages and group.averages[own]), group)
        for group, gradients in zip(groups, given, strict=True)
        for own in (slice(start, start + MOST) for start in range(0, len(group.weights), MOST))
    ]
    tables = [table for table, _ in launches]
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    most = BLOCKS_PER_PROCESSOR * processors
    blocks = [max(1, min(table.first[table.count], most)) for table in tables]
    parts = sum(blocks)
    partial = torch.empty(parts, dtype=torch.float32, device=device)
    with torch.cuda.device_of(first):
        if clip is not None:
            squares = _kernel("squares", device)
            starts = accumulate(blocks[:-1], initial=0)
            for table, count, start in zip(tables, blocks, starts, strict=True):
                squares(count, THREADS, [table, partial[start:]])
        update = _kernel("update", device)
        for (table, group), count in zip(launches, blocks, strict=True):
            amounts = [ctypes.c_float(clip or 0.0), ctypes.c_float(group.decay)]
            arguments = [table, partial, parts, group.numbers, *amounts]
            update(count, THREADS, arguments)
    for group in groups:  # a kernel writes past torch's count
        increment_version([*group.weights, *(group.averages or [])])


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
