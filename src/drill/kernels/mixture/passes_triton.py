"""The passes of ``mixture_nll`` as Triton kernels, one launch each.

Imported only when asked for, so that the package needs no Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.mixture.passes import BEYOND_TF32

BLOCK, WARPS = 2048, 4
"""Of a row of logits. Whole rows would not stay in the caches, so a block is read once."""
_HEADROOM = 20.0
"""How far a logit may lie above the one that stands for the maximum: exp(20) times the number of
labels is far from where float32 and bfloat16 end, and so is its inverse."""
_ROWS, _COLUMNS = 4, 512


@triton.jit
def _errors(
    logits,  # (R, padded); overwritten, the padding with 0
    targets,  # (R / experts,)
    losses,  # (R,), written
    mass,  # (R,), written
    labels,
    padded,
    experts,
    HEADROOM: tl.constexpr,
    NORMALISED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: e = exp(x - c) over it, its sum m, then e - m at the target's place.

    c is the maximum of the blocks so far, give or take HEADROOM. Where a block rises above that,
    what was written before is shrunk to the new measure; a row seldom has such a block beyond its
    first. The digits of e are relative, so c costs none.

    float16 has not the range of e. There NORMALISED reads a row twice for softmax - onehot itself,
    whose mass is 1.
    """
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * padded
    label = tl.load(targets + row // experts)
    known = (label >= 0) & (label < labels)
    hit = tl.load(line + label, mask=known, other=float("nan")).to(tl.float32)
    tl.debug_barrier()  # the target's logit is read before any thread overwrites it
    lane = tl.arange(0, BLOCK)
    c = tl.full((), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    whole = labels // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        at = line + start + lane
        x = tl.load(at).to(tl.float32)
        c, s = _raise(c, s, x, line, start, HEADROOM, NORMALISED, BLOCK)
        e = tl.exp(x - _finite(c))
        s += e
        if not NORMALISED:
            tl.store(at, e.to(logits.dtype.element_ty))
    if whole < padded:
        # Masked by the padded width only: a mask at a ragged column would make loads narrow.
        column = whole + lane
        x = tl.load(line + column, mask=column < padded, other=0.0).to(tl.float32)
        x = tl.where(column < labels, x, -float("inf"))
        c, s = _raise(c, s, x, line, whole, HEADROOM, NORMALISED, BLOCK)
        e = tl.exp(x - _finite(c))
        s += e
        if not NORMALISED:
            tl.store(line + column, e.to(logits.dtype.element_ty), mask=column < padded)
    m = tl.sum(s, 0)
    z = c + tl.log(m)
    tl.store(losses + row, z - hit)
    tl.debug_barrier()  # nothing that follows overtakes the stores above
    if NORMALISED:
        target = tl.where(known, label, -1).to(tl.int32)
        for start in range(0, padded, BLOCK):
            column = start + lane
            x = tl.load(line + column, mask=column < padded, other=0.0).to(tl.float32)
            p = tl.where(column < labels, tl.exp(x - z), 0.0)
            p = tl.where(column == target, p - 1.0, p)
            tl.store(line + column, p.to(logits.dtype.element_ty), mask=column < padded)
        tl.store(mass + row, 1.0)
    else:
        error = tl.exp(hit - _finite(c)) - m
        tl.store(line + label, error.to(logits.dtype.element_ty), mask=known)
        tl.store(mass + row, m)


@triton.jit
def _finite(c):
    """A row of -inf so far has no mass; -inf - -inf would make it NaN."""
    return tl.where(c == -float("inf"), 0.0, c)


@triton.jit
def _raise(
    c, s, x, line, start, HEADROOM: tl.constexpr, NORMALISED: tl.constexpr, BLOCK: tl.constexpr
):
    """c and s as they serve the block x, and in their measure what lies before ``start``."""
    peak = tl.max(x, 0)
    if peak > c + HEADROOM:
        shrink = tl.exp(c - peak)
        c = peak
        s *= shrink
        if not NORMALISED:
            tl.debug_barrier()
            for before in range(0, start, BLOCK):
                at = line + before + tl.arange(0, BLOCK)
                e = tl.load(at).to(tl.float32) * shrink
                tl.store(at, e.to(line.dtype.element_ty))
            tl.debug_barrier()
    return c, s


@triton.jit
def _mix(
    log_prior,  # (tokens, K)
    each,  # (tokens * K,)
    mass,  # (tokens * K,)
    targets,  # (tokens,)
    rows,  # (tokens * K, columns), rows ``stride`` apart
    scaled,  # (tokens * K, columns), rows ``scaled_stride`` apart, written
    losses,  # (tokens,), written
    gamma,  # (tokens, K), written
    share,  # (tokens, K), written
    experts,
    columns,
    stride,
    scaled_stride,
    ignore_index,
    HAS_SCALED: tl.constexpr,
    EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One token: its loss, the experts' shares in it, their contexts times these."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    own = expert < experts
    offset = token * experts + expert
    score = tl.load(log_prior + offset, mask=own, other=-float("inf"))
    score -= tl.load(each + offset, mask=own, other=0.0)
    peak = tl.max(score, 0)
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    total = peak + tl.log(tl.sum(tl.exp(score - peak), 0))
    ignored = tl.load(targets + token) == ignore_index
    tl.store(losses + token, tl.where(ignored, 0.0, -total))
    nobody = ignored | (total == -float("inf"))  # -inf - -inf would be NaN
    posterior = tl.where(nobody, 0.0, tl.exp(score - total))
    tl.store(gamma + offset, posterior, mask=own)
    r = posterior / tl.load(mass + offset, mask=own, other=1.0)
    r = tl.where(nobody, 0.0, r)
    tl.store(share + offset, r, mask=own)
    if HAS_SCALED:
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = own[:, None] & (column < columns)[None, :]
            x = tl.load(rows + offset[:, None] * stride + column[None, :], mask=inside, other=0.0)
            x = x.to(tl.float32) * r[:, None]
            at = scaled + offset[:, None] * scaled_stride + column[None, :]
            tl.store(at, x.to(scaled.dtype.element_ty), mask=inside)


@triton.jit
def _widen(
    source,  # (rows, width)
    bias,  # (rows,)
    out,  # (height, columns), written
    rows,
    height,
    width,
    columns,
    HAS_BIAS: tl.constexpr,
    DIGITS: tl.constexpr,
    CUT: tl.constexpr,  # last bits of each digit that are 0
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A few rows with 1 or the bias appended, digit by digit."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = row < rows
    inside = (row < height)[:, None] & (column < columns)[None, :]
    at = source + row.to(tl.int64)[:, None] * width + column[None, :]
    x = tl.load(at, mask=own[:, None] & (column < width)[None, :], other=0.0)
    x = x.to(tl.float32)
    if HAS_BIAS:
        rest = tl.load(bias + row, mask=own, other=0.0).to(tl.float32)
        for digit in tl.static_range(DIGITS):
            high = rest.to(out.dtype.element_ty).to(tl.float32)
            if CUT > 0:
                bits = high.to(tl.int32, bitcast=True) >> CUT << CUT
                high = bits.to(tl.float32, bitcast=True)
            x = tl.where((column == width + digit)[None, :], high[:, None], x)
            rest -= high
            rest = tl.where(tl.abs(rest) < float("inf"), rest, 0.0)  # -inf is the first column's
    else:
        x = tl.where((column < width)[None, :], x, 1.0)
    to = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(to, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scale(
    sums,  # (rows, columns), rows ``stride`` apart
    factor,  # (rows,), ``factor_stride`` apart
    out,  # (rows, columns), written
    rows,
    columns,
    stride,
    factor_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A few rows times their factors."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = row < rows
    inside = own[:, None] & (column < columns)[None, :]
    f = tl.load(factor + row * factor_stride, mask=own, other=0.0)
    x = tl.load(sums + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
    x = x.to(tl.float32) * f[:, None]
    tl.store(
        out + row[:, None] * columns + column[None, :], x.to(out.dtype.element_ty), mask=inside
    )


class TritonPasses:
    """The passes as Triton kernels."""

    def widen(self, rows: Tensor, bias: Tensor | None, digits: int, out: Tensor) -> None:
        height, columns = out.shape
        _widen[_tiles(height, columns)](
            rows.contiguous(),
            None if bias is None else bias.contiguous(),
            out,
            rows.shape[0],
            height,
            rows.shape[1],
            columns,
            HAS_BIAS=bias is not None,
            DIGITS=digits,
            CUT=BEYOND_TF32 if digits > 1 and out.dtype == torch.float32 else 0,
            ROWS=_ROWS,
            COLUMNS=_columns(columns),
            num_warps=4,
        )

    def errors(
        self, logits: Tensor, labels: int, targets: Tensor, losses: Tensor, mass: Tensor
    ) -> None:
        rows, padded = logits.shape
        assert padded <= labels // BLOCK * BLOCK + BLOCK  # what is not whole blocks is one
        _errors[(rows,)](
            logits,
            targets,
            losses,
            mass,
            labels,
            padded,
            rows // targets.shape[0],
            HEADROOM=_HEADROOM,
            NORMALISED=logits.dtype == torch.float16,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )

    def mix(
        self,
        log_prior: Tensor,
        each: Tensor,
        mass: Tensor,
        targets: Tensor,
        ignore_index: int,
        rows: Tensor,
        scaled: Tensor | None,
        losses: Tensor,
        gamma: Tensor,
        share: Tensor,
    ) -> None:
        tokens, experts = log_prior.shape
        _mix[(tokens,)](
            log_prior.contiguous(),
            each,
            mass,
            targets,
            rows,
            scaled,
            losses,
            gamma,
            share,
            experts,
            rows.shape[1],
            rows.stride(0),
            0 if scaled is None else scaled.stride(0),
            ignore_index,
            HAS_SCALED=scaled is not None,
            EXPERTS=triton.next_power_of_2(experts),
            COLUMNS=_columns(rows.shape[1]),
            num_warps=4,
        )

    def scale(self, sums: Tensor, factor: Tensor, out: Tensor) -> None:
        assert sums.stride(1) == 1
        if out.numel() == 0:
            return
        _scale[_tiles(*out.shape)](
            sums,
            factor,
            out,
            *out.shape,
            sums.stride(0),
            factor.stride(0) if factor.dim() else 0,
            ROWS=_ROWS,
            COLUMNS=_columns(out.shape[1]),
            num_warps=4,
        )


def _columns(columns: int) -> int:
    return min(_COLUMNS, triton.next_power_of_2(columns))


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    return triton.cdiv(rows, _ROWS), triton.cdiv(columns, _columns(columns))
