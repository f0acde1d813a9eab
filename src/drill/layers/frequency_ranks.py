"""Labels in order of falling frequency, for the layers that treat frequent labels differently."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drill.layers.base import MatrixLayer


class Ranking(nn.Module):
    """rank <-> label id: rank 0 is the most frequent label. Without ``counts`` an id is its rank.

    The order is part of the saved state, because what a layer learned depends on it.

    owner   name of the layer that asks, for its error messages
    layer   the matrix layer whose V labels are ranked
    counts  (V,) how often each label occurs in training; equal counts keep the order of the ids
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
            if not isinstance(counts, Tensor):  # on the CPU even while a layer is built on meta
                counts = _as_numbers(owner, counts)
            if counts.shape != (labels,):
                raise ValueError(
                    f"{owner}: counts {tuple(counts.shape)} do not match the {labels} labels; "
                    f"give one training count per label, shape ({labels},)"
                )
            if counts.is_complex():
                raise ValueError(f"{owner}: counts are real numbers, not {counts.dtype}")
            wrong = ~(counts >= 0)  # of NaN too
            if not counts.is_meta and wrong.any():
                first = int(wrong.nonzero()[0])
                raise ValueError(
                    f"{owner}: counts hold {counts[first].item()} at [{first}]; a count is at "
                    "least 0, and 0 for labels never seen"
                )
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
        """(V, ...), one row per label, put in order of rank."""
        return rows if self.ids is None else rows.index_select(0, self.ids)

    def by_label(self, columns: Tensor) -> Tensor:
        """(..., V) in order of rank, put in order of label ids."""
        return columns if self.ids is None else columns.index_select(-1, self._inverse(self.ids))

    def resize(self, labels: int) -> None:
        """New labels get the last ranks; labels that go leave the order of the others."""
        if self.ids is not None:
            ids, ranked = self.ids, self.ids.shape[0]
            fresh = torch.arange(ranked, max(ranked, labels), device=ids.device)
            self.ids = torch.cat([ids[ids < labels], fresh])

    def extra_repr(self) -> str:
        return "by id" if self.ids is None else "by counts"

    @staticmethod
    def _inverse(ids: Tensor) -> Tensor:
        # Made again for each use: one pass over V integers, and it cannot disagree with ``ids``.
        return torch.empty_like(ids).scatter_(0, ids, torch.arange(len(ids), device=ids.device))


def _as_numbers(owner: str, counts: Sequence[float]) -> Tensor:
    try:
        return torch.as_tensor(counts, device="cpu", dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{owner}: counts are a tensor or a list of numbers, one per label, "
            f"not {type(counts).__name__}"
        ) from None
