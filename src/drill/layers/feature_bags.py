"""Label vectors from bags of features, such as character n-grams or the words of a gloss."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.runtime.checks import require
from drill.layers.checks import check_integer

Bags = Sequence[Sequence[int]]
"""The features of one label, by kind."""


class FeatureBags(nn.Module):
    """E' = A C: a label is a weighted sum of the vectors of its features. A label source.

        e = 1/sqrt(k) sum_j 1/sqrt(n_j) sum_{f in bag j} c_f        k bags that are not empty

    The squares of the weights of a label add up to 1, so e starts with the variance of c, and a
    step of gradient descent moves e as far as it would move a row of an embedding, or further.

        source = FeatureBags([[[0, 1], [4]], [[1, 2], []]], features=5, embedding_dim=400)
        layer = DeepResidual(source, depth=2)

    Args:
        labels: the ids of the features of every label, in bags.
        features: how many features there are.
        embedding_dim: d, the width of c and e.
    """

    ids: Tensor  # of features, label after label
    starts: Tensor  # (V + 1,), where those of a label start
    weights: Tensor  # as ids: the entries of A

    def __init__(self, labels: Sequence[Bags], features: int, embedding_dim: int) -> None:
        super().__init__()
        name = type(self).__name__
        self.features = check_integer(name, "features", features)
        self.embedding_dim = check_integer(name, "embedding_dim", embedding_dim)
        require(len(labels) > 0, name, "labels", "at least one", len(labels))
        self.embedding = nn.Parameter(torch.empty(features, embedding_dim))
        nn.init.normal_(self.embedding)
        self._set(*_entries(labels))

    def _set(self, ids: Tensor, starts: Tensor, weights: Tensor) -> None:
        """Set A, and A^T for the backward pass."""
        given = ids.cpu().numpy()
        inside = len(given) == 0 or 0 <= given.min() <= given.max() < self.features
        require(inside, type(self).__name__, "labels", f"ids below {self.features}", "another")
        order = np.argsort(given, kind="stable")
        of_label = np.repeat(np.arange(len(starts) - 1), np.diff(starts.cpu().numpy()))
        ends = np.cumsum(np.bincount(given, minlength=self.features))
        transposed = torch.from_numpy(of_label[order]), torch.from_numpy(_starts(ends))
        parts = {"ids": ids, "starts": starts, "weights": weights}
        parts |= {"of_feature": transposed[0], "feature_starts": transposed[1]}
        parts["feature_weights"] = weights[torch.from_numpy(order).to(weights.device)]
        for key, value in parts.items():
            self.register_buffer(key, value.to(weights.device), persistent=False)

    @property
    def num_embeddings(self) -> int:
        return len(self.starts) - 1

    def extend(self, labels: Sequence[Bags]) -> None:
        """Append new labels; call ``layer.resize(source.num_embeddings)`` after."""
        pairs = zip(_entries(labels), self._a(), strict=True)
        ids, starts, weights = (new.to(old) for new, old in pairs)
        starts = torch.cat([self.starts, self.starts[-1] + starts[1:]])
        self._set(torch.cat([self.ids, ids]), starts, torch.cat([self.weights, weights]))

    def truncate(self, labels: int) -> None:
        """Keep the first ``labels``; call ``layer.resize(labels)`` after."""
        require(0 < labels <= self.num_embeddings, "FeatureBags", "labels", "in use", labels)
        end = int(self.starts[labels])
        self._set(self.ids[:end], self.starts[: labels + 1], self.weights[:end])

    def _a(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.ids, self.starts, self.weights

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """E' (V, d), or its ``rows`` (R, d)."""
        if rows is not None and not torch.is_grad_enabled():
            return self._rows(rows)
        transposed = self.of_feature, self.feature_starts, self.feature_weights
        found: Tensor = cast(Any, _Product).apply(self.embedding, *self._a(), *transposed)
        return found if rows is None else F.embedding(rows, found)

    def _rows(self, rows: Tensor) -> Tensor:
        """Some rows, without the others: a text is read word by word in generation."""
        first, sizes = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        ends = sizes.cumsum(0)
        entries = torch.arange(int(sizes.sum()), device=rows.device)
        entries += (first - ends + sizes).repeat_interleave(sizes)
        starts = F.pad(ends, (1, 0))
        return _product(self.embedding, self.ids[entries], starts, self.weights[entries])

    def extra_repr(self) -> str:
        sizes = f"labels={self.num_embeddings}, features={self.features}"
        return f"{sizes}, embedding_dim={self.embedding_dim}"


class _Product(torch.autograd.Function):
    """A C for a sparse A. The gradient A^T G is a product of the same kind.

    embedding_bag's own backward sorts the ids at every step and needs memory for each.
    """

    @staticmethod
    def forward(ctx: Any, C: Tensor, *both: Tensor) -> Tensor:
        ctx.save_for_backward(*both[3:])
        return _product(C, *both[:3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _product(grads[0].contiguous(), *ctx.saved_tensors), *[None] * 6


def _product(rows: Tensor, ids: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    weights = weights.to(rows.dtype)
    return F.embedding_bag(
        ids, rows, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def _entries(labels: Sequence[Bags]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, starts and weights of the features of labels."""
    ids: list[int] = []
    weights: list[float] = []
    for bags in labels:
        filled = [bag for bag in bags if bag]
        for bag in filled:
            ids += bag
            weights += [(len(filled) * len(bag)) ** -0.5] * len(bag)
    sizes = [sum(map(len, bags)) for bags in labels]
    starts = torch.from_numpy(_starts(np.cumsum(sizes)))
    # On the CPU, also while a model is built on the meta device.
    values = torch.tensor(weights, dtype=torch.float32, device="cpu")
    return torch.tensor(ids, dtype=torch.int64, device="cpu"), starts, values


def _starts(ends: Any) -> Any:
    return np.concatenate([[0], ends]).astype(np.int64)
