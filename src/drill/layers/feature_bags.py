"""Label vectors from bags of features, such as character n-grams or the words of a gloss."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.errors import require
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
        device, ids, starts, weights = weights.device, ids.cpu(), starts.cpu(), weights.cpu()
        outside = ids[(ids < 0) | (ids >= self.features)].tolist()
        require(not outside, "FeatureBags", "labels", f"ids below {self.features}", outside[:1])
        order = ids.argsort(stable=True)
        of_label = torch.arange(len(starts) - 1, device="cpu").repeat_interleave(starts.diff())
        parts = {"ids": ids, "starts": starts, "weights": weights}
        parts |= {"of_feature": of_label[order], "feature_weights": weights[order]}
        parts["feature_starts"] = _starts(ids.bincount(minlength=self.features))
        for key, value in parts.items():
            self.register_buffer(key, value.to(device), persistent=False)

    @property
    def num_embeddings(self) -> int:
        return len(self.starts) - 1

    def extend(self, labels: Sequence[Bags]) -> None:
        """Append new labels; call ``layer.resize(source.num_embeddings)`` after."""
        ids, starts, weights = _entries(labels)
        starts = torch.cat([self.starts, self.starts[-1] + starts[1:].to(self.starts)])
        ids = torch.cat([self.ids, ids.to(self.ids)])
        self._set(ids, starts, torch.cat([self.weights, weights.to(self.weights)]))

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """E' (V, d), or its ``rows`` (R, d)."""
        if rows is not None and not torch.is_grad_enabled():
            return self._rows(rows)
        A = self.ids, self.starts, self.weights
        A_transposed = self.of_feature, self.feature_starts, self.feature_weights
        E: Tensor = cast(Any, _Product).apply(self.embedding, *A, *A_transposed)
        return E if rows is None else F.embedding(rows, E)

    def _rows(self, rows: Tensor) -> Tensor:
        """Some rows, without the others: a text is read word by word in generation."""
        first, sizes = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        starts = _starts(sizes)
        entries = torch.arange(int(sizes.sum()), device=rows.device)
        entries += (first - starts[:-1]).repeat_interleave(sizes)
        return _product(self.embedding, self.ids[entries], starts, self.weights[entries])

    def extra_repr(self) -> str:
        sizes = f"labels={self.num_embeddings}, features={self.features}"
        return f"{sizes}, embedding_dim={self.embedding_dim}"


class _Product(torch.autograd.Function):
    """A C for a sparse A. The gradient A^T G is a product of the same kind.

    embedding_bag's own backward sorts the ids at every step and needs memory for each.
    """

    @staticmethod
    def forward(ctx: Any, C: Tensor, *A_and_transposed: Tensor) -> Tensor:
        ctx.save_for_backward(*A_and_transposed[3:])
        return _product(C, *A_and_transposed[:3])

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
    with torch.device("cpu"):  # also while a model is built on the meta device
        starts = _starts(torch.tensor(sizes, dtype=torch.int64))
        values = torch.tensor(weights, dtype=torch.float32)
        return torch.tensor(ids, dtype=torch.int64), starts, values


def _starts(sizes: Tensor) -> Tensor:
    return F.pad(sizes.cumsum(0), (1, 0))
