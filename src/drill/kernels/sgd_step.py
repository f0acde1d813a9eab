"""Clipping, weight decay, a step of SGD and the running average, in two launches for all tensors.

r = min(1, clip / (|g| + 1e-6));   w <- w - rate (r g + decay w);   a <- a + share (w - a)

The same as ``clip_grad_norm_`` and an optimiser one after the other, which go over everything five
times. For float32 on an NVIDIA GPU.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from drill.kernels.nvrtc import compiled

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


def supported(tensors: Sequence[Tensor]) -> bool:
    """Whether ``sgd_step`` can change these."""
    return 0 < len(tensors) <= MOST and all(
        t.is_cuda and t.dtype == torch.float32 and t.is_contiguous() and not torch.version.hip
        for t in tensors
    )


def sgd_step(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor] | None,
    numbers: Tensor,  # (2,), float32 on the device: rate and share
    *,
    clip: float | None,
    decay: float,
) -> None:
    """Change weights and averages in place; ``numbers`` are read when the launch runs."""
    if not len(weights) == len(gradients) <= MOST:
        raise ValueError(
            f"sgd_step: {len(weights)} tensors have {len(gradients)} gradients; every one needs "
            f"its own, and {MOST} is the most at once"
        )
    device = weights[0].device
    given = [gradient.contiguous() for gradient in gradients]
    table = _Tensors()
    chunks = 0
    for i, (weight, gradient) in enumerate(zip(weights, given, strict=True)):
        table.weights[i], table.gradients[i] = weight.data_ptr(), gradient.data_ptr()
        table.averages[i] = None if averages is None else averages[i].data_ptr()
        table.sizes[i], table.first[i] = weight.numel(), chunks
        chunks += -(-weight.numel() // CHUNK)
    table.count = len(weights)
    table.first[len(weights)] = chunks
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(chunks, BLOCKS_PER_PROCESSOR * processors))
    defines = {"MOST": MOST}
    partial = torch.empty(blocks, device=device)
    if clip is not None:
        squares = compiled(SOURCE, "squares", defines, 0, device)
        squares(blocks, THREADS, [table, partial], together=False)
    update = compiled(SOURCE, "update", defines, 0, device)
    amounts = [ctypes.c_float(clip or 0.0), ctypes.c_float(decay)]
    update(blocks, THREADS, [table, partial, blocks, numbers, *amounts], together=False)
