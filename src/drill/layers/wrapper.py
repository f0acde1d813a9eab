"""What the layers over a matrix layer share: the wrapper, frequency ranks, label smoothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drill.kernels.loss.nll import token_losses
from drill.kernels.runtime.checks import invalid, require, require_type
from drill.layers.base import MatrixLayer, OutputLayer

MOST_ROWS = 256
"""Most tokens whose (rows, V) log-probabilities are in memory at once."""


class WrappingLayer(OutputLayer):
    """An output layer over a :class:`MatrixLayer`: another loss over the same labels.

    Whatever concerns the labels alone is delegated to the wrapped layer.
    """

    def __init__(self, layer: MatrixLayer) -> None:
        super().__init__()
        expected = "a MatrixLayer (full, tied, bilinear, dual, deep-residual)"
        require_type(layer, MatrixLayer, type(self).__name__, "layer", expected)
        self.layer = layer
        self.hidden_size = layer.hidden_size

    @property
    def vocabulary_size(self) -> int:
        return self.layer.vocabulary_size

    @property
    def label_weight(self) -> Tensor:
        """E, (V, d): the wrapped layer's."""
        return self.layer.label_weight

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

    def check_start(self) -> None:
        self.layer.check_start()

    def label_kernel_summary(self) -> list[str]:
        return self.layer.label_kernel_summary()

    def cached_labels(self) -> AbstractContextManager[None]:
        return self.layer.cached_labels()

    def shared_labels(self) -> AbstractContextManager[None]:
        """As the wrapped layer's: encodes all V labels, also for a sampled softmax."""
        return self.layer.shared_labels()


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
        labels = layer.vocabulary_size
        ids: Tensor | None = None
        if counts is not None:
            if not isinstance(counts, Tensor):
                counts = _as_tensor(owner, counts)
            shape = tuple(counts.shape)
            require(shape == (labels,), owner, "counts", f"one per label, ({labels},)", shape)
            require(not counts.is_complex(), owner, "counts", "real numbers", counts.dtype)
            wrong = ~(counts >= 0)  # NaN, too
            if not counts.is_meta and wrong.any():
                first = int(wrong.nonzero()[0])
                raise invalid(owner, f"counts[{first}]", "at least 0", counts[first].item())
            ids = torch.argsort(counts, descending=True, stable=True)
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


def _as_tensor(owner: str, counts: Sequence[float]) -> Tensor:
    try:
        # On the CPU, also while a layer is built on the meta device.
        return torch.as_tensor(counts, device="cpu", dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{owner}: counts must be a list of numbers, got {type(counts).__name__}"
        ) from None


def smoothed_nll(
    log_probs: Callable[..., Tensor],  # (*inputs, weight) -> (rows, V)
    inputs: tuple[Tensor, ...],  # each (..., anything), one row per token
    weight: Tensor,  # (V, k), the last argument of log_probs
    targets: Tensor,  # (...)
    *,
    ignore_index: int,
    label_smoothing: float,
    memory: int,
    copies: int,  # (rows, V) tensors that log_probs and its gradient need at once
) -> Tensor:  # (...), 0 where ignored
    """(1 - s) * -log p(target) + s * mean over labels of -log p, a few rows at a time.

    For layers whose log-probabilities are no single matrix product. Each block of rows is computed
    again in backward, so ``memory`` bounds it, down to one row.
    """
    height = max(1, min(MOST_ROWS, memory // (4 * copies * weight.shape[0])))
    flat = targets.reshape(-1)
    rows = [x.reshape(-1, *x.shape[targets.dim() :]) for x in inputs]

    def block(targets: Tensor, *parts: Tensor) -> Tensor:
        # Log-probabilities are logits of themselves: log_softmax does not change them.
        return token_losses(log_probs(*parts), targets, ignore_index, label_smoothing)

    # At least one block: a batch without tokens still gives every parameter a gradient.
    losses = [
        checkpoint(
            block,
            flat[i : i + height],
            *(x[i : i + height] for x in rows),
            weight,
            use_reentrant=False,
        )
        for i in range(0, max(1, flat.shape[0]), height)
    ]
    return torch.cat(losses).view(targets.shape)
