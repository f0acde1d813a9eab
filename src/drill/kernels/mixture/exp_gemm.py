"""A product fused with the exponential of its results, for the mixture loss: Hopper GPUs, bfloat16.

    E = exp(C W^T - c),   m the sums of its rows

(below C, W, c and m are rows, w, shifts and row_factor)

A pass over logits reads and writes them all. Here the product makes exponentials while it has the
logits in registers; those are never written. So c has to be known before them. It is the target's
logit, one dot product a row: then E is 1 at the target's place, which wants 1 - m, and the loss is
log m. Rows whose other logits rise so far above the target's, 60 nats, that m leaves the numbers
which the products take are made again, with their maximum as c. That is slow, all logits of a row
twice and 16 rows to a program: meant for a few. Targets behind a finite mask (-1e9), or a run that
diverges, pay it for each of their tokens; behind a mask of -inf nothing is made again.

Where a target is no label, or is masked by -inf, c is inf: E and m are 0.
"""

from functools import cache
from pathlib import Path

import torch
import triton
from torch import Tensor

from drill.kernels.mixture.exp_gemm_triton import finish_rows, pack_weight, target_logits
from drill.kernels.runtime.hopper import hopper_missing
from drill.kernels.runtime.nvrtc import CompileError, DriverError, Kernel, load_kernel

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 384
CLUSTER = 2
"""Blocks that share the stream of W. Of four, fewer fit on the device at once: 10 to 17% slower."""
STAGES = 18
ROWS, LABELS = 128, 160
"""Rows of a block; labels of a tile."""
INNER = 32
"""Columns of a stage: C and W are padded to a multiple."""
DEEPEST = 416
"""Columns whose registers leave room for the sums."""
_STAGE_BYTES = LABELS * INNER * 2
_SHARED = STAGES * (_STAGE_BYTES + 16) + ROWS * (LABELS * 2 + 16)
_COLUMNS, _PACKED, _FINISHED = 512, 32, 128


def depth_of(columns: int) -> int:
    """Columns as the kernel takes them, one of padding at least."""
    return columns // INNER * INNER + INNER


def exponentials_missing(device: torch.device, dtype: torch.dtype, columns: int) -> str | None:
    """Why the kernel cannot serve contexts and labels of this many columns; None where it can."""
    if obstacle := hopper_missing(device):
        return obstacle
    if dtype != torch.bfloat16:
        return f"it multiplies bfloat16, not {dtype}"
    if depth_of(columns) > DEEPEST:
        return f"it takes up to {DEEPEST - 1} columns with those of the bias, not {columns}"
    try:
        clusters = _clusters(depth_of(columns), device)
    except (CompileError, DriverError) as error:
        return str(error)
    if clusters == 0:
        return f"the part of the GPU that is ours (MPS, MIG) runs no {CLUSTER} blocks as a cluster"
    return None


def _kernel(depth: int, device: torch.device) -> Kernel:
    defines = {"DEPTH": depth, "CLUSTER": CLUSTER, "STAGES": STAGES}
    return load_kernel(SOURCE, SOURCE.stem, defines, _SHARED, device)


@cache
def _clusters(depth: int, device: torch.device) -> int:
    """As many as run at once; 0 on a part of a device that is too small for one."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if processors < CLUSTER:
        return 0
    with torch.cuda.device(device):
        return _kernel(depth, device).clusters_at_once(processors // CLUSTER * CLUSTER, THREADS)


class Exponentials:
    """Makes the gradients of a mixture's logits, chunk by chunk, for one W."""

    def __init__(self, w: Tensor, labels: int, columns: int, experts: int, height: int) -> None:
        """w (V padded, k and the bias) with ``columns`` that count; the rest are 0."""
        self.w, self.labels, self.experts = w.contiguous(), labels, experts
        self.depth = depth_of(columns)
        self.rows = w.new_empty((height, self.depth))
        self.tiles = triton.cdiv(w.shape[0], LABELS)  # the padding is written too, as zeros
        self.packed = w.new_empty(self.tiles * LABELS * self.depth)
        pack_weight[(self.packed.numel() // (_PACKED * self.depth), self.depth // INNER)](
            self.w,
            self.packed,
            labels,
            columns,
            self.w.shape[1],
            self.depth,
            LABELS=LABELS,
            SOME=_PACKED,
            num_warps=1,
        )

    def logit_gradients(
        self, contexts: Tensor, targets: Tensor, out: Tensor, losses: Tensor, row_factor: Tensor
    ) -> Tensor:
        """As ``ProductAndPass.logit_gradients``; returns the contexts with their 1."""
        count, depth = contexts.shape[0], self.depth
        rows = self.rows[:count]
        shifts = losses.new_empty(count)
        target_logits[(targets.shape[0],)](
            contexts,
            self.w,
            targets,
            rows,
            shifts,
            self.labels,
            self.experts,
            contexts.shape[1],
            self.w.shape[1],
            depth,
            EXPERTS=triton.next_power_of_2(self.experts),
            COLUMNS=_COLUMNS,
        )
        groups = triton.cdiv(count, CLUSTER * ROWS)
        line = groups * self.tiles
        clusters = min(line, self.clusters())
        parts = (self.tiles - 1) // (line // clusters) + 2  # of a group, at most
        sums = losses.new_empty((parts, count))
        self.multiply(rows, shifts, out, sums, clusters)
        finish_rows[(triton.cdiv(count, _FINISHED),)](
            sums,
            shifts,
            targets,
            rows,
            self.w,
            out,
            losses,
            row_factor,
            count,
            self.labels,
            out.shape[1],
            self.experts,
            depth,
            self.w.shape[1],
            self.tiles,
            clusters,
            line,
            GROUP=CLUSTER * ROWS,
            BLOCK=_FINISHED,
        )
        return rows[:, : self.w.shape[1]]

    def clusters(self) -> int:
        return _clusters(self.depth, self.w.device)

    def multiply(
        self, rows: Tensor, shifts: Tensor, out: Tensor, sums: Tensor, clusters: int
    ) -> None:
        _kernel(self.depth, self.w.device)(
            clusters * CLUSTER,
            THREADS,
            [rows, self.packed, shifts, out, sums, rows.shape[0], out.shape[1], self.tiles],
        )
