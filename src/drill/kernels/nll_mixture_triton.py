"""The passes of ``nll_mixture`` as Triton kernels, one launch each.

Imported only when asked for, so that the package needs no Triton.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK, WIDE_BLOCK, WARPS = 2048, 4096, 8
"""Rows are read twice, a block at a time; the second time caches hold them. Measured on an H200,
rows that stay in registers in between take twice as long."""
WIDE = 16384
"""Rows of more labels take the wide block."""
_MIX_COLUMNS = 512


@triton.jit
def _errors(
    logits,  # (R, padded); overwritten, the padding with 0
    targets,  # (R / experts,)
    losses,  # (R,), written
    labels,
    padded,
    experts,
    BLOCK: tl.constexpr,
):
    """One row: its log-sum-exp, then softmax - onehot over it.

    Loads are masked by the padded width only: a mask at a ragged column would make them narrow.
    """
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * padded
    label = tl.load(targets + row // experts)
    known = (label >= 0) & (label < labels)
    hit = tl.load(line + label, mask=known, other=float("nan")).to(tl.float32)
    target = tl.where(known, label, -1).to(tl.int32)
    tl.debug_barrier()  # the target's logit is read before any thread overwrites it
    lane = tl.arange(0, BLOCK)
    m = -float("inf")
    s = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, padded, BLOCK):
        column = start + lane
        x = tl.load(line + column, mask=column < padded, other=0.0).to(tl.float32)
        x = tl.where(column < labels, x, -float("inf"))
        higher = tl.maximum(m, tl.max(x, 0))
        # A row of -inf so far has no mass; -inf - -inf would make it NaN.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        s = s * tl.exp(m - base) + tl.exp(x - base)
        m = higher
    z = m + tl.log(tl.sum(s, 0))
    tl.debug_barrier()
    for start in range(0, padded, BLOCK):
        column = start + lane
        x = tl.load(line + column, mask=column < padded, other=0.0).to(tl.float32)
        p = tl.where(column < labels, tl.exp(x - z), 0.0)
        p = tl.where(column == target, p - 1.0, p)
        tl.store(line + column, p.to(logits.dtype.element_ty), mask=column < padded)
    tl.store(losses + row, z - hit)


@triton.jit
def _mix(
    log_prior,  # (tokens, K)
    each,  # (tokens * K,)
    targets,  # (tokens,)
    rows,  # (tokens * K, columns), rows ``stride`` apart
    scaled,  # (tokens * K, columns), rows ``scaled_stride`` apart, written
    losses,  # (tokens,), written
    gamma,  # (tokens, K), written
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
    place = token * experts + expert
    score = tl.load(log_prior + place, mask=own, other=-float("inf"))
    score -= tl.load(each + place, mask=own, other=0.0)
    peak = tl.max(score, 0)
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    total = peak + tl.log(tl.sum(tl.exp(score - peak), 0))
    ignored = tl.load(targets + token) == ignore_index
    share = tl.where(ignored, 0.0, tl.exp(score - total))
    tl.store(losses + token, tl.where(ignored, 0.0, -total))
    tl.store(gamma + place, share, mask=own)
    if HAS_SCALED:
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = own[:, None] & (column < columns)[None, :]
            x = tl.load(rows + place[:, None] * stride + column[None, :], mask=inside, other=0.0)
            x = x.to(tl.float32) * share[:, None]
            at = scaled + place[:, None] * scaled_stride + column[None, :]
            tl.store(at, x.to(scaled.dtype.element_ty), mask=inside)


class TritonPasses:
    """The passes as Triton kernels."""

    def errors(self, logits: Tensor, labels: int, targets: Tensor, each: Tensor) -> None:
        rows, padded = logits.shape
        _errors[(rows,)](
            logits,
            targets,
            each,
            labels,
            padded,
            rows // targets.shape[0],
            BLOCK=WIDE_BLOCK if padded > WIDE else BLOCK,
            num_warps=WARPS,
        )

    def mix(
        self,
        log_prior: Tensor,
        each: Tensor,
        targets: Tensor,
        ignore_index: int,
        rows: Tensor,
        scaled: Tensor | None,
        losses: Tensor,
        gamma: Tensor,
    ) -> None:
        tokens, experts = log_prior.shape
        _mix[(tokens,)](
            log_prior.contiguous(),
            each,
            targets,
            rows,
            scaled,
            losses,
            gamma,
            experts,
            rows.shape[1],
            rows.stride(0),
            0 if scaled is None else scaled.stride(0),
            ignore_index,
            HAS_SCALED=scaled is not None,
            EXPERTS=triton.next_power_of_2(experts),
            COLUMNS=min(_MIX_COLUMNS, triton.next_power_of_2(rows.shape[1])),
            num_warps=4,
        )
