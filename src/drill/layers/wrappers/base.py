"""What the layers over a matrix layer share: the wrapper, frequency ranks, a loss by blocks."""

import abc
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drill.kernels.loss.checks import check_head
from drill.kernels.loss.nll import reduce_losses, token_losses
from drill.kernels.runtime.checks import require_type
from drill.layers.base import MatrixLayer, NotFoldable, OutputLayer
from drill.layers.checks import check_counts
from drill.layers.losses import LossOptions, nll_with_lowered_target

MOST_ROWS = 256
"""Most tokens whose (rows, V) log-probabilities are in memory at once."""


class WrappingLayer(OutputLayer):
    """An output layer over a :class:`MatrixLayer`: another loss over the same labels.

    Whatever concerns the labels alone is delegated to the wrapped layer.

    Args:
        layer: the layer to wrap.
    """

    def __init__(self, layer: MatrixLayer) -> None:
        super().__init__()
        expected = "a MatrixLayer (full, tied, bilinear, dual, deep-residual)"
        require_type(layer, MatrixLayer, type(self).__name__, "layer", expected)
        self.layer = layer
        self.hidden_size = layer.hidden_size

    @property
    def matrix(self) -> MatrixLayer:
        return self.layer

    @property
    def bias(self) -> nn.Parameter | None:
        """b, (V,): the wrapped layer's."""
        return self.layer.bias

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        """g_out: the wrapped layer's encoded labels, (V, k) or those of ``rows`` (R, k)."""
        return self.layer.labels(rows, check)

    def context(self, hidden: Tensor) -> Tensor:
        """g_in: the wrapped layer's contexts, (..., d_h) -> (..., k)."""
        return self.layer.context(hidden)

    @property
    def weight(self) -> Tensor:
        raise NotFoldable(
            f"{type(self).__name__} is more than a product with one weight; call "
            "layer.nll(hidden, targets)"
        )

    def fold(self) -> nn.Linear:
        raise NotFoldable(
            f"{type(self).__name__} equals no nn.Linear; in eval mode without gradients its labels "
            "are encoded once"
        )

    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        """As the wrapped layer's; new labels get the last frequency ranks."""
        self.layer.resize(new_size, vectors)
        for part in self.children():
            if isinstance(part, Ranking):
                part.resize(new_size)


class ScoreLayer(WrappingLayer):
    """p(y | h) = softmax(scores), where the scores (..., V) are more than one product.

    A layer defines what it reads of each token, the scores from that, and how far a smaller logit
    lowers the score of a target. The loss takes a few tokens at a time: see ``blockwise_nll``.
    """

    static_shapes = True

    copies: int
    """How many (N, V) tensors the scores and their gradient need at once."""

    @abc.abstractmethod
    def inputs(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """What the scores depend on, each (..., anything): one row per token."""

    @abc.abstractmethod
    def scores(self, inputs: tuple[Tensor, ...], weight: Tensor) -> Tensor:
        """(..., V) from ``inputs`` and the encoded labels (V, k), in at least float32."""

    @abc.abstractmethod
    def score_drop(
        self, epsilon: float, inputs: tuple[Tensor, ...], weight: Tensor, targets: Tensor
    ) -> Tensor:
        """(...): how far a change of w_y by epsilon |w_y| can lower the score of a target y."""

    def _read(self, hidden: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, weight = self.inputs(hidden), self.layer.weight
        check_head(type(self).__name__, inputs[0], weight, self.layer.bias)
        return inputs, weight

    def logits(self, hidden: Tensor) -> Tensor:
        return self.scores(*self._read(hidden))

    def log_probs(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.logits(hidden), dim=-1)

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        losses = blockwise_nll(self.scores, *self._read(hidden), targets, options, self.copies)
        return reduce_losses(losses, targets, options.reduction, options.ignore_index)

    def checked_adversarial_nll(
        self, hidden: Tensor, targets: Tensor, epsilon: float, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        inputs, weight = self._read(hidden)
        losses = blockwise_nll(self.scores, inputs, weight, targets, options, self.copies)
        with torch.no_grad():
            drop = self.score_drop(epsilon, inputs, weight, targets)
        return losses, nll_with_lowered_target(losses, drop)

    def kernel_summary(self, tokens: int) -> list[str]:
        mib = 4 * self.copies * tokens * self.vocabulary_size / 2**20
        line = f"loss PyTorch (blocks of tokens if {mib:.0f} MiB are over the memory limit)"
        return [*super().kernel_summary(tokens), line]


class Ranking(nn.Module):
    """Frequency ranks of the labels: rank 0 is the most frequent one.

    The order is part of the saved state, because what a layer learned depends on it.

    Args:
        owner: name of the layer that uses the ranks, for error messages.
        layer: the matrix layer whose V labels are ranked.
        counts: (V,) how often each label occurs in training; ties in the order of ids. None: a
            label's id is its rank.
    """

    ids: Tensor | None  # (V,) rank -> label id

    def __init__(
        self, owner: str, layer: MatrixLayer, counts: Tensor | Sequence[float] | None
    ) -> None:
        super().__init__()
        self.owner = owner
        ids: Tensor | None = None
        if counts is not None:
            seen = check_counts(owner, counts, layer.vocabulary_size)
            ids = torch.argsort(seen, descending=True, stable=True)
            ids = ids.to(next(layer.parameters(), ids).device)
        self.register_buffer("ids", ids)

    def check(self, labels: int) -> None:
        if self.ids is not None and self.ids.shape[0] != labels:
            raise ValueError(
                f"{self.owner}: {self.ids.shape[0]} labels are ranked, but the wrapped layer has "
                f"{labels}; call resize({labels}) on the {self.owner}, not on the layer inside"
            )

    def labels_of(self, ranks: Tensor) -> Tensor:
        """The label ids at these ranks."""
        return ranks if self.ids is None else self.ids[ranks]

    def ranks_of(self, labels: Tensor) -> Tensor:
        """The ranks of these label ids."""
        return labels if self.ids is None else self._inverse(self.ids)[labels]

    def by_rank(self, rows: Tensor) -> Tensor:
        """(V, ...) with one row per label, in order of rank."""
        return rows if self.ids is None else rows.index_select(0, self.ids)

    def by_label(self, columns: Tensor) -> Tensor:
        """(..., V) in order of rank -> in order of label ids."""
        return columns if self.ids is None else columns.index_select(-1, self._inverse(self.ids))

    def resize(self, labels: int) -> None:
        """New labels get the last ranks; the order of the remaining ones does not change."""
        if self.ids is not None:
            ids, ranked = self.ids, self.ids.shape[0]
            fresh = torch.arange(ranked, max(ranked, labels), device=ids.device)
            self.ids = torch.cat([ids[ids < labels], fresh])

    def extra_repr(self) -> str:
        return "by id" if self.ids is None else "by counts"

    @staticmethod
    def _inverse(ids: Tensor) -> Tensor:
        # Not stored: it is one pass over V integers, and cannot disagree with ``ids``.
        return torch.empty_like(ids).scatter_(0, ids, torch.arange(len(ids), device=ids.device))


def blockwise_nll(
    scores: Callable[[tuple[Tensor, ...], Tensor], Tensor],  # (inputs, weight) -> (rows, V)
    inputs: tuple[Tensor, ...],  # each (..., anything), one row per token
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
    options: LossOptions,  # but for the reduction
    copies: int,  # (rows, V) tensors that scores and their gradient need at once
) -> Tensor:  # (...), 0 where ignored
    """(1 - s) * -log p(target) + s * mean over labels of -log p, with p = softmax(scores).

    For layers whose scores are no single matrix product. If all tokens together would need more
    than ``memory``, a few rows are computed at a time, and again in backward; so ``memory`` bounds
    it, down to one row. "reference" always computes all at once, "chunked" always in blocks.
    """
    flat = targets.reshape(-1)
    rows = [x.reshape(-1, *x.shape[targets.dim() :]) for x in inputs]

    def block(targets: Tensor, weight: Tensor, *parts: Tensor) -> Tensor:
        smoothing = options.label_smoothing
        return token_losses(scores(parts, weight), targets, options.ignore_index, smoothing)

    impl, memory = options.impl, options.memory
    row = 4 * copies * weight.shape[0]  # bytes
    if impl == "reference" or (impl == "auto" and row * flat.shape[0] <= memory):
        return block(flat, weight, *rows).view(targets.shape)
    height = max(1, min(MOST_ROWS, memory // row))
    # At least one block: a batch without tokens still gives every parameter a gradient.
    losses = [
        checkpoint(
            block,
            flat[i : i + height],
            weight,
            *(x[i : i + height] for x in rows),
            use_reentrant=False,
            preserve_rng_state=False,  # scores draw nothing; a CUDA graph cannot read the state
        )
        for i in range(0, max(1, flat.shape[0]), height)
    ]
    return torch.cat(losses).view(targets.shape)
