"""The passes over a chunk of logits and over the tokens, in plain PyTorch."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.kernels.loss.head import NllOptions


class Sums(NamedTuple):
    """Running sums over each token's row of logits, all (N,) in the exact dtype."""

    peak: Tensor  # running maximum
    mass: Tensor  # running sum of exp(logit - peak)
    hit: Tensor  # logit of the target; NaN until its chunk comes
    total: Tensor | None  # running sum of logits, for label smoothing only

    def rows(self, rows: slice) -> "Sums":
        return Sums(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]


def empty_sums(rows: Tensor, exact: torch.dtype, smoothing: float) -> Sums:
    peak, mass, hit, total = rows.new_empty((4, rows.shape[0]), dtype=exact)
    return Sums(peak, mass, hit, total if smoothing else None)


class TorchEngine:
    """The passes in plain PyTorch, for the chunks of one call; ``TritonEngine`` has the same.

    Rows of a chunk may be padded. The memory between them is theirs: passes may write there.
    """

    def __init__(self) -> None:
        self._room: Tensor | None = None

    def _room_for(self, wide: Tensor, logits: Tensor) -> Tensor:
        """A buffer of the same size for all chunks: on a CPU, allocation costs more than exp."""
        if wide is not logits:
            return wide
        if self._room is None or self._room.numel() < wide.numel():
            self._room = wide.new_empty(wide.numel())
        return self._room[: wide.numel()].view(wide.shape)

    def reduce(
        self,
        logits: Tensor,  # (R, C), without bias
        bias: Tensor | None,  # (C,)
        targets: Tensor,  # (R,)
        left: int,
        sums: Sums,  # (R,) each, written
        settings: NllOptions,
        first: bool,
    ) -> None:
        """Add one chunk to the sums; for the ``first`` of a row they are empty."""
        peak, mass, hit, total = sums
        if first:
            peak.fill_(-torch.inf)
            mass.zero_()
            hit.fill_(torch.nan)
            if total is not None:
                total.zero_()
        wide = logits.to(peak.dtype)
        if bias is not None:
            wide = wide + bias
        if settings.sigsoftmax:
            wide = wide + F.logsigmoid(wide)
        column, inside = target_column(targets, left, logits.shape[1])
        hit.copy_(torch.where(inside, wide.gather(1, column[:, None])[:, 0], hit))
        if total is not None:
            total.add_(wide.sum(1))
        higher = torch.maximum(peak, wide.amax(1))
        # A row of -inf so far has no mass; -inf - -inf would make it NaN.
        base = torch.where(higher == -torch.inf, 0, higher)
        shifted = torch.sub(wide, base[:, None], out=self._room_for(wide, logits))
        mass.mul_((peak - base).exp_()).add_(shifted.exp_().sum(1))
        peak.copy_(higher)

    def finish(
        self, sums: Sums, targets: Tensor, settings: NllOptions, labels: int
    ) -> tuple[Tensor, Tensor]:
        """Losses (N,), 0 where ignored, and log-sum-exp (N,)."""
        smoothing = settings.smoothing
        lse = sums.mass.log().add_(sums.peak)
        losses = lse - sums.hit
        if sums.total is not None:
            losses = (1 - smoothing) * losses + smoothing * (lse - sums.total / labels)
        return torch.where(targets == settings.ignore_index, 0, losses), lse

    def whole(
        self, logits: Tensor, bias: Tensor | None, targets: Tensor, settings: NllOptions
    ) -> tuple[Tensor, Tensor]:
        """``reduce`` and ``finish`` of a chunk with all labels."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        sums = empty_sums(logits, exact, settings.smoothing)
        self.reduce(logits, bias, targets, 0, sums, settings, first=True)
        return self.finish(sums, targets, settings, logits.shape[1])

    def gather(
        self, losses: Tensor, targets: Tensor, settings: NllOptions, reduction: str
    ) -> tuple[Tensor, Tensor | None]:
        """The reduced loss and, for the mean, the weight of each token that is not ignored."""
        if reduction == "none":
            return losses, None
        if reduction == "sum":
            return losses.sum(), None
        share = (targets != settings.ignore_index).sum().clamp(min=1).to(losses.dtype).reciprocal()
        return losses.sum() * share, share

    def differentiate(
        self,
        logits: Tensor,  # (R, C), without bias; becomes d loss / d logits
        bias: Tensor | None,  # (C,)
        targets: Tensor,  # (R,)
        left: int,
        lse: Tensor,  # (R,)
        scale: Tensor,  # (R,) gradient of each token's loss, stride 0 or 1
        settings: NllOptions,
        labels: int,
        summed: bool,
    ) -> Tensor | None:  # (C,) sum over rows, if asked for
        """(softmax - (1 - smoothing) onehot - smoothing / V) * scale, in place; 0 where ignored.

        Of sigsoftmax times the slope of the scores.
        """
        smoothing = settings.smoothing
        wide = logits.to(lse.dtype)  # the same tensor when it is wide already
        if bias is not None:
            wide = wide.add_(bias) if wide is logits else wide + bias
        slope = add_log_sigmoid(wide) if settings.sigsoftmax else None
        wide.sub_(lse[:, None]).exp_()
        if smoothing:
            wide.sub_(smoothing / labels)
        column, inside = target_column(targets, left, logits.shape[1])
        wide.scatter_add_(1, column[:, None], inside[:, None].to(wide.dtype) * (smoothing - 1))
        wide.mul_(torch.where(targets == settings.ignore_index, 0, scale)[:, None])
        if slope is not None:
            wide.mul_(slope)
        if wide is not logits:
            logits.copy_(wide)
        return wide.sum(0) if summed else None


def add_log_sigmoid(z: Tensor) -> Tensor:
    """z += log sigmoid(z), the scores of sigsoftmax; gives their slope, 2 - sigmoid(z)."""
    log_sigmoid = F.logsigmoid(z)
    z.add_(log_sigmoid)
    return log_sigmoid.exp_().neg_().add_(2)


def target_column(targets: Tensor, left: int, width: int) -> tuple[Tensor, Tensor]:
    """The column of each target (R,) in a chunk, 0 if it is not there, and whether it is there."""
    inside = (targets >= left) & (targets < left + width)
    return torch.where(inside, targets - left, 0).long(), inside
