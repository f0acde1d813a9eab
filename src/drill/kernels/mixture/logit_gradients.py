"""Errors of a mixture's logits, m (softmax - onehot): a product, and a pass over what it wrote."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from drill.kernels.mixture.passes import Passes

SLICE_ELEMENTS = {"cpu": 2**19, "cuda": 2**40}
"""Logits of a slice at most: what a product leaves in the cache and the pass finds there."""


class Errors(Protocol):
    """Makes the errors of a chunk's logits."""

    def errors(
        self,
        contexts: Tensor,  # (R, k)
        targets: Tensor,  # (tokens,)
        out: Tensor,  # (R, V padded), written: mass * (softmax - onehot), 0 in the padding
        losses: Tensor,  # (R,), written; NaN where a target is no label
        mass: Tensor,  # (R,), written
    ) -> Tensor:
        """The contexts in the products' dtype, beside them 1 where w has the bias."""


class ProductAndPass:
    """Logits by a product, then their errors in the same place."""

    def __init__(
        self, passes: Passes, w: Tensor, labels: int, experts: int, room: Tensor | None
    ) -> None:
        self.passes, self.w, self.labels, self.experts = passes, w, labels, experts
        self.room = room  # (R, columns of w) where w has the bias
        self.in_cache = at_most(SLICE_ELEMENTS, w, experts * w.shape[0])

    def errors(
        self, contexts: Tensor, targets: Tensor, out: Tensor, losses: Tensor, mass: Tensor
    ) -> Tensor:
        if self.room is None:
            rows = contexts.to(out.dtype)
        else:
            rows = self.room[: contexts.shape[0]]
            self.passes.widen(contexts, None, 0, rows)
        for few in spans(targets.shape[0], self.in_cache):
            part = slice(few.start * self.experts, few.stop * self.experts)
            torch.mm(rows[part], self.w.t(), out=out[part])
            self.passes.errors(out[part], self.labels, targets[few], losses[part], mass[part])
        return rows


def spans(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(count, start + step)) for start in range(0, count, step))


def at_most(elements: dict[str, int], tensor: Tensor, each: int) -> int:
    """Tokens of ``each`` elements on the tensor's device, at least one."""
    return max(1, elements.get(tensor.device.type, elements["cuda"]) // each)
