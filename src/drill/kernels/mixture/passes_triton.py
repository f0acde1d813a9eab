"""The passes of ``mixture_nll`` as Triton kernels.

Imported only when asked for, so that the package needs no Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.loss.head import NllOptions
from drill.kernels.loss.passes_triton import TritonEngine
from drill.kernels.mixture.passes import BEYOND_TF32, TorchPasses

_ROWS, _COLUMNS = 4, 512
_ALL_TARGETS = NllOptions(torch.iinfo(torch.int64).min, 0.0, torch.float32, "triton", memory=0)
"""None is ignored: ``mix`` leaves out those that are."""


@triton.jit
def _mix(
    log_prior,  # (tokens, K)
    expert_losses,  # (tokens * K,)
    row_factor,  # (tokens * K,)
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
    score -= tl.load(expert_losses + offset, mask=own, other=0.0)
    peak = tl.max(score, 0)
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    total = peak + tl.log(tl.sum(tl.exp(score - peak), 0))
    ignored = tl.load(targets + token) == ignore_index
    tl.store(losses + token, tl.where(ignored, 0.0, -total))
    nobody = ignored | (total == -float("inf"))  # -inf - -inf would be NaN
    posterior = tl.where(nobody, 0.0, tl.exp(score - total))
    tl.store(gamma + offset, posterior, mask=own)
    r = posterior / tl.load(row_factor + offset, mask=own, other=1.0)
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


class TritonPasses(TorchPasses):
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

    def logit_gradients(
        self, logits: Tensor, labels: int, targets: Tensor, losses: Tensor, row_factor: Tensor
    ) -> None:
        """By the loss's passes: the first reads the logits, the second replaces them."""
        logits, rows = logits[:, :labels], logits.shape[0]
        targets = targets.repeat_interleave(rows // targets.shape[0])
        passes, scale = TritonEngine(), row_factor.new_ones(()).expand(rows)
        found, lse = passes.whole(logits, None, targets, _ALL_TARGETS)
        passes.differentiate(logits, None, targets, 0, lse, scale, _ALL_TARGETS, labels, False)
        losses.copy_(found)
        row_factor.fill_(1)

    def mix(
        self,
        log_prior: Tensor,
        expert_losses: Tensor,
        row_factor: Tensor,
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
            expert_losses,
            row_factor,
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


def _columns(columns: int) -> int:
    return min(_COLUMNS, triton.next_power_of_2(columns))


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    return triton.cdiv(rows, _ROWS), triton.cdiv(columns, _columns(columns))
