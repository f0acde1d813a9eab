"""The passes of ``mixture_nll`` around its products, in plain PyTorch.

Shapes: K experts, V labels, k width; R = K times the tokens of a chunk.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

BEYOND_TF32 = 13
"""Last bits of a float32 that tf32 has not."""


class TorchPasses:
    """Passes over what the products read and write; ``TritonPasses`` has the same.

    Every one fills what it is given.
    """

    def widen(self, rows: Tensor, bias: Tensor | None, digits: int, out: Tensor) -> None:
        """rows (n, k) become out (n and more, k and more), an operand with room for a bias.

        Of contexts (bias None) the room is 1. Of labels its first ``digits`` columns sum to the
        bias (n,) of float32, all else is 0. So the products add the bias and sum its gradient.
        Several columns of float32 have the bits of tf32 each: no product rounds them.
        """
        count, width = rows.shape
        out[:count, :width] = rows
        if bias is None:
            out[:count, width:] = 1
            return
        out[count:], out[:count, width:] = 0, 0
        cut = digits > 1 and out.dtype == torch.float32
        for column in range(width, width + digits):
            out[:count, column] = _to_tf32(bias) if cut else bias
            # A masked label: -inf is the first column's.
            bias = (bias - out[:count, column]).nan_to_num(0.0, 0.0, 0.0)

    def logit_gradients(
        self, logits: Tensor, labels: int, targets: Tensor, losses: Tensor, row_factor: Tensor
    ) -> None:
        """logits (R, V padded with 0) become row_factor * (softmax - onehot), the padding stays 0.

        ``row_factor`` (R,), some number above 0 a row, is written and so are the losses (R,), NaN
        where a target (tokens,) is no label.
        """
        logits, experts = logits[:, :labels], losses.shape[0] // targets.shape[0]
        wide = torch.promote_types(logits.dtype, torch.float32)
        log_p = torch.log_softmax(logits, 1, dtype=wide)
        known = ((targets >= 0) & (targets < labels)).repeat_interleave(experts)
        column = torch.where(known, targets.repeat_interleave(experts), 0)[:, None]
        hit = torch.where(known, log_p.gather(1, column)[:, 0], torch.nan)
        gradients = log_p.exp_().scatter_add_(1, column, -known[:, None].to(wide))
        logits.copy_(gradients)
        losses.copy_(-hit)
        row_factor.fill_(1)

    def mix(
        self,
        log_prior: Tensor,  # (tokens, K)
        expert_losses: Tensor,  # (R,)
        row_factor: Tensor,  # (R,)
        targets: Tensor,  # (tokens,)
        ignore_index: int,
        rows: Tensor,  # (R, columns)
        scaled: Tensor | None,  # (R, columns), becomes gamma / row_factor * rows
        losses: Tensor,  # (tokens,), written; 0 where ignored
        gamma: Tensor,  # (tokens, K), written; 0 where ignored, or where the target is masked
        share: Tensor,  # (tokens, K), written: gamma / row_factor
    ) -> None:
        """The losses of the mixture and the experts' shares in them."""
        scores = log_prior - expert_losses.view(log_prior.shape)
        total = torch.logsumexp(scores, 1)
        ignored = targets == ignore_index
        losses.copy_(torch.where(ignored, 0, -total))
        nobody = (ignored | (total == -torch.inf))[:, None]
        gamma.copy_(torch.where(nobody, 0, (scores - total[:, None]).exp()))
        share.copy_(torch.where(nobody, 0, gamma / row_factor.view(gamma.shape)))
        if scaled is not None:
            scaled.copy_(rows * share.view(-1, 1))


def _to_tf32(x: Tensor) -> Tensor:
    """The float32 numbers x, cut to the bits of tf32."""
    return (x.view(torch.int32) >> BEYOND_TF32 << BEYOND_TF32).view(torch.float32)


# -- gradients of the logits, m (softmax - onehot) ----------------------------------------------

SLICE_ELEMENTS = {"cpu": 2**19, "cuda": 2**40}
"""Logits of a slice at most: what a product leaves in the cache and the pass finds there."""


class ProductAndPass:
    """Logits by a product, then their gradients in their place; ``Exponentials`` has the same."""

    def __init__(
        self, passes: TorchPasses, w: Tensor, labels: int, experts: int, room: Tensor | None
    ) -> None:
        self.passes, self.w, self.labels, self.experts = passes, w, labels, experts
        self.room = room  # (R, columns of w) where w has the bias
        self.in_cache = at_most(SLICE_ELEMENTS, w, experts * w.shape[0])

    def logit_gradients(
        self,
        contexts: Tensor,  # (R, k)
        targets: Tensor,  # (tokens,)
        out: Tensor,  # (R, V padded), written: row_factor * (softmax - onehot), 0 in the padding
        losses: Tensor,  # (R,), written; NaN where a target is no label
        row_factor: Tensor,  # (R,), written
    ) -> Tensor:
        """The contexts in the products' dtype, followed by 1 where w has the bias."""
        if self.room is None:
            rows = contexts.to(out.dtype)
        else:
            rows = self.room[: contexts.shape[0]]
            self.passes.widen(contexts, None, 0, rows)
        for few in spans(targets.shape[0], self.in_cache):
            part = slice(few.start * self.experts, few.stop * self.experts)
            torch.mm(rows[part], self.w.t(), out=out[part])
            written = losses[part], row_factor[part]
            self.passes.logit_gradients(out[part], self.labels, targets[few], *written)
        return rows


def spans(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(count, start + step)) for start in range(0, count, step))


def at_most(elements: dict[str, int], tensor: Tensor, each: int) -> int:
    """Tokens of ``each`` elements on the tensor's device, at least one."""
    return max(1, elements.get(tensor.device.type, elements["cuda"]) // each)
