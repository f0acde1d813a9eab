"""The two passes of ``chunked`` as Triton kernels: each reads a chunk of logits once.

Rows of logits are masked where their padding ends, not at a ragged number of labels, which would
make loads and stores two bytes wide. What lies in the padding never counts.

Imported only when asked for, so that the package needs no Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.loss.head import NllOptions
from drill.kernels.loss.passes import Sums, TorchEngine

_REDUCE_ROWS, _REDUCE_BLOCK = 4, 8192
_ROWS, _COLUMNS = 4, 1024
_PROGRAMS = 4096
"""Programs wanted for the gradient pass; several blocks of rows share one when there are more."""


@triton.jit
def _log_sigmoid(z):
    return tl.minimum(z, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(z)))


@triton.jit
def _reduce(
    logits,  # (R, C), rows ``stride`` apart
    bias,  # (C,)
    targets,  # (R,)
    peak,  # (R,)
    mass,  # (R,)
    hit,  # (R,)
    total,  # (R,)
    losses,  # (R,), written by WHOLE, as is peak with the log-sum-exp
    rows,
    columns,
    stride,
    left,
    ignore_index,
    smoothing,
    WHOLE: tl.constexpr,
    FIRST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    SIGSOFTMAX: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few rows: running maximum, sum of exponentials, target's logit, sum of logits."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = row < rows
    line = row.to(tl.int64) * stride
    m = tl.full((ROWS,), -float("inf"), tl.float32)
    s = tl.zeros((ROWS,), tl.float32)
    added = tl.zeros((ROWS,), tl.float32)
    if not FIRST:
        m = tl.load(peak + row, mask=own, other=0.0)
        s = tl.load(mass + row, mask=own, other=0.0)
        if HAS_TOTAL:
            added = tl.load(total + row, mask=own, other=0.0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = own[:, None] & (column < columns)[None, :]
        room = own[:, None] & (column < stride)[None, :]
        x = tl.load(logits + line[:, None] + column[None, :], mask=room, other=0.0).to(tl.float32)
        if HAS_BIAS:
            if start + BLOCK <= columns:  # nothing to mask, so this load is wide too
                b = tl.load(bias + column)
            else:
                b = tl.load(bias + column, mask=column < columns, other=0.0)
            x += b.to(tl.float32)[None, :]
        if SIGSOFTMAX:
            x += _log_sigmoid(x)
        x = tl.where(inside, x, -float("inf"))
        higher = tl.maximum(m, tl.max(x, 1))
        # A row of -inf so far has no mass; -inf - -inf would make it NaN.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        s = s * tl.exp(m - base) + tl.sum(tl.exp(x - base[:, None]), 1)
        m = higher
        if HAS_TOTAL:
            added += tl.sum(tl.where(inside, x, 0.0), 1)
    label = tl.load(targets + row, mask=own, other=0).to(tl.int64)
    target = label - left
    known = own & (target >= 0) & (target < columns)
    t = tl.load(logits + line + target, mask=known, other=float("nan")).to(tl.float32)
    if HAS_BIAS:
        t += tl.load(bias + target, mask=known, other=0.0).to(tl.float32)
    if SIGSOFTMAX:
        t += _log_sigmoid(t)
    if WHOLE:
        z = m + tl.log(s)
        loss = z - t
        if HAS_TOTAL:
            loss = (1.0 - smoothing) * loss + smoothing * (z - added / columns)
        tl.store(peak + row, z, mask=own)
        tl.store(losses + row, tl.where(label == ignore_index, 0.0, loss), mask=own)
    else:
        tl.store(peak + row, m, mask=own)
        tl.store(mass + row, s, mask=own)
        if HAS_TOTAL:
            tl.store(total + row, added, mask=own)
        if FIRST:
            tl.store(hit + row, t, mask=own)  # NaN until the target's chunk comes, if ever
        else:
            tl.store(hit + row, t, mask=known)


@triton.jit
def _average(
    losses,  # (N,)
    targets,  # (N,)
    out,  # (2,): mean, 1 / count
    rows,
    ignore_index,
    BLOCK: tl.constexpr,
):
    """One program, so the sum has one order and repeats bit by bit."""
    summed = tl.zeros((BLOCK,), tl.float32)
    counted = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < rows
        summed += tl.load(losses + row, mask=inside, other=0.0)
        target = tl.load(targets + row, mask=inside, other=0)
        counted += (inside & (target != ignore_index)).to(tl.int32)
    share = 1.0 / tl.maximum(tl.sum(counted, 0), 1).to(tl.float32)
    tl.store(out, tl.sum(summed, 0) * share)
    tl.store(out + 1, share)


@triton.jit
def _differentiate(
    logits,  # (R, C), rows ``stride`` apart; overwritten, the padding with 0
    bias,  # (C,)
    targets,  # (R,)
    lse,  # (R,)
    scale,  # (R,)
    partial,  # (splits, C) sums over the rows of one split
    rows,
    columns,
    stride,
    left,
    ignore_index,
    uniform,  # smoothing / V
    certain,  # 1 - smoothing
    rows_per_split,
    scale_stride,
    HAS_BIAS: tl.constexpr,
    HAS_PARTIAL: tl.constexpr,
    SIGSOFTMAX: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A strip of COLUMNS labels over the rows of one split."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1)
    inside = column < columns
    b = tl.zeros((COLUMNS,), tl.float32)
    if HAS_BIAS:
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = split * rows_per_split
    for start in range(first, tl.minimum(rows, first + rows_per_split), ROWS):
        row = start + tl.arange(0, ROWS)
        valid = row < rows
        at = logits + row.to(tl.int64)[:, None] * stride + column[None, :]
        room = valid[:, None] & (column < stride)[None, :]
        x = tl.load(at, mask=room, other=0.0).to(tl.float32) + b[None, :]
        z = tl.load(lse + row, mask=valid, other=0.0)
        label = tl.load(targets + row, mask=valid, other=0).to(tl.int64)
        g = tl.load(scale + row * scale_stride, mask=valid & (label != ignore_index), other=0.0)
        target = label - left
        if SIGSOFTMAX:
            slope = 2.0 - tl.sigmoid(x)
            x += _log_sigmoid(x)
        p = tl.exp(x - z[:, None]) - uniform
        p = tl.where(column[None, :] == target[:, None], p - certain, p)
        if SIGSOFTMAX:
            p *= slope
        p = tl.where(valid[:, None] & inside[None, :], p * g[:, None], 0.0)
        tl.store(at, p.to(logits.dtype.element_ty), mask=room)
        if HAS_PARTIAL:
            summed += p
    if HAS_PARTIAL:
        at = partial + split.to(tl.int64) * columns + column
        tl.store(at, tl.sum(summed, 0), mask=inside)


class TritonEngine(TorchEngine):
    """The passes as Triton kernels; ``finish`` is PyTorch's."""

    def reduce(
        self,
        logits: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        left: int,
        sums: Sums,
        settings: NllOptions,
        first: bool,
    ) -> None:
        self._reduce(logits, bias, targets, (*sums, None), left, settings, first=first)

    def whole(
        self, logits: Tensor, bias: Tensor | None, targets: Tensor, settings: NllOptions
    ) -> tuple[Tensor, Tensor]:
        # Not two halves of one tensor: what an operator returns must share no memory.
        losses, lse = (logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(2))
        # With smoothing the kernel keeps its sum of logits, but stores none.
        outputs = (lse, None, None, lse if settings.smoothing else None, losses)
        self._reduce(logits, bias, targets, outputs, 0, settings, first=True)
        return losses, lse

    def _reduce(
        self,
        logits: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        outputs: tuple[Tensor | None, ...],  # peak, mass, hit, total, losses
        left: int,
        settings: NllOptions,
        first: bool,
    ) -> None:
        rows, columns = logits.shape
        if rows == 0:
            return
        height = _REDUCE_ROWS if bias is not None else 1  # rows share what they read of the bias
        _reduce[(triton.cdiv(rows, height),)](
            logits,
            bias,
            targets,
            *outputs,
            rows,
            columns,
            logits.stride(0),
            left,
            settings.ignore_index,
            settings.smoothing,
            WHOLE=outputs[4] is not None,
            FIRST=first,
            HAS_BIAS=bias is not None,
            HAS_TOTAL=outputs[3] is not None,
            SIGSOFTMAX=settings.sigsoftmax,
            ROWS=height,
            BLOCK=min(_REDUCE_BLOCK // height, triton.next_power_of_2(columns)),
            num_warps=8,
        )

    def gather(
        self, losses: Tensor, targets: Tensor, settings: NllOptions, reduction: str
    ) -> tuple[Tensor, Tensor | None]:
        if reduction != "mean":
            return super().gather(losses, targets, settings, reduction)
        out = losses.new_empty(2)
        rows, ignore_index = targets.shape[0], settings.ignore_index
        _average[(1,)](losses, targets, out, rows, ignore_index, BLOCK=1024, num_warps=8)
        return out[0], out[1]

    def differentiate(
        self,
        logits: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        left: int,
        lse: Tensor,
        scale: Tensor,
        settings: NllOptions,
        labels: int,
        summed: bool,
    ) -> Tensor | None:
        rows, columns = logits.shape
        if rows == 0:
            return lse.new_zeros(columns) if summed else None
        strips = triton.cdiv(columns, _COLUMNS)
        blocks = triton.cdiv(rows, _ROWS)
        splits = min(blocks, max(1, _PROGRAMS // strips))
        rows_per_split = triton.cdiv(blocks, splits) * _ROWS
        splits = triton.cdiv(rows, rows_per_split)
        partial = lse.new_empty(splits, columns) if summed else None
        _differentiate[(strips, splits)](
            logits,
            bias,
            targets,
            lse,
            scale,
            partial,
            rows,
            columns,
            logits.stride(0),
            left,
            settings.ignore_index,
            settings.smoothing / labels,
            1.0 - settings.smoothing,
            rows_per_split,
            scale.stride(0),
            HAS_BIAS=bias is not None,
            HAS_PARTIAL=summed,
            SIGSOFTMAX=settings.sigsoftmax,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        return None if partial is None else partial.sum(0)
