"""Where label vectors come from: an embedding table, or an encoder over descriptions."""

from typing import Any, Protocol, TypedDict, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.loss.checks import check_range
from drill.layers.checks import positive


@runtime_checkable
class LabelSource(Protocol):
    """A module that returns label vectors: ``source(rows)`` is (R, d), ``source()`` is (V, d)."""

    num_embeddings: int
    embedding_dim: int

    def __call__(self, rows: Tensor | None = None) -> Tensor: ...


class Descriptions(nn.Module):
    """E' = encoder(descriptions): label vectors from an encoder of texts (the paper's E').

        source = Descriptions(encoder, token_ids, embedding_dim=400)
        layer = DeepResidual(source, depth=2)

    A new label gets its vector from its description: ``extend`` adds rows, then call
    ``layer.resize``; ``truncate`` drops the last ones.

    Args:
        encoder: maps rows of ``descriptions`` to vectors (R, d); trained with the layer.
        descriptions: (V, ...), one row per label, such as padded token ids of a dictionary entry.
        embedding_dim: d.
    """

    descriptions: Tensor

    def __init__(self, encoder: nn.Module, descriptions: Tensor, embedding_dim: int) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise TypeError(
                f"Descriptions: encoder is an nn.Module, not {type(encoder).__name__}; a function "
                "goes into the forward of one"
            )
        _check_tensor("Descriptions: descriptions are", descriptions)
        embedding_dim = positive("Descriptions", "embedding_dim", embedding_dim)
        if descriptions.dim() < 1 or descriptions.shape[0] < 1:
            raise ValueError(
                f"Descriptions: one row per label is needed, not {tuple(descriptions.shape)}"
            )
        self.encoder = encoder
        self.embedding_dim = embedding_dim
        self.register_buffer("descriptions", descriptions)

    @property
    def num_embeddings(self) -> int:
        return self.descriptions.shape[0]

    def extend(self, descriptions: Tensor) -> None:
        """Append descriptions of new labels; call ``layer.resize(source.num_embeddings)`` after."""
        _check_tensor("Descriptions: new rows are", descriptions)
        if not torch.can_cast(descriptions.dtype, self.descriptions.dtype):
            raise TypeError(
                f"Descriptions: new rows are {descriptions.dtype}, but the old ones "
                f"{self.descriptions.dtype}; convert with .to()"
            )
        if descriptions.dim() < 1 or descriptions.shape[1:] != self.descriptions.shape[1:]:
            raise ValueError(
                f"Descriptions: new rows have shape {tuple(descriptions.shape[1:])}, but the old "
                f"ones {tuple(self.descriptions.shape[1:])}; pad or cut them"
            )
        self.descriptions = torch.cat([self.descriptions, descriptions.to(self.descriptions)])

    def truncate(self, labels: int) -> None:
        """Keep the descriptions of the first ``labels``; call ``layer.resize(labels)`` after."""
        positive("Descriptions", "the number of labels", labels)
        if labels > self.num_embeddings:
            raise ValueError(
                f"Descriptions: there are only {self.num_embeddings} rows, not {labels}; add new "
                "ones with extend"
            )
        self.descriptions = self.descriptions[:labels].clone()  # a view would keep the memory

    def forward(self, rows: Tensor | None = None) -> Tensor:
        chosen = self.descriptions if rows is None else self.descriptions[rows]
        vectors = cast(Tensor, self.encoder(chosen))
        if vectors.shape != (chosen.shape[0], self.embedding_dim):
            raise ValueError(
                f"Descriptions: the encoder returned {tuple(vectors.shape)} for {chosen.shape[0]} "
                f"labels, not ({chosen.shape[0]}, {self.embedding_dim})"
            )
        return vectors


def label_width(name: str, source: Any) -> int:
    """d, the width of a label vector; TypeError unless ``source`` is a label source."""
    if isinstance(source, nn.EmbeddingBag):
        raise TypeError(
            f"{name}: an nn.EmbeddingBag has no row for each label; give an nn.Embedding, or the "
            "bag as the encoder of Descriptions"
        )
    if not isinstance(source, nn.Module) or not isinstance(source, LabelSource):
        raise TypeError(
            f"{name}: the first argument is the model's nn.Embedding or a label source with "
            f"num_embeddings and embedding_dim, not {type(source).__name__}"
        )
    return source.embedding_dim


class Placement(TypedDict):
    device: torch.device | None
    dtype: torch.dtype | None


def placement(source: nn.Embedding | LabelSource) -> Placement:
    """Device and dtype of the label vectors, and so of the parameters of a layer over them."""
    floats = (p for p in cast(nn.Module, source).parameters() if p.is_floating_point())
    first = next(floats, None)
    if first is None:
        return Placement(device=None, dtype=None)
    return Placement(device=first.device, dtype=first.dtype)


def label_count(source: nn.Embedding | LabelSource) -> int:
    # The weight may have been replaced by a larger one, which num_embeddings does not show.
    return source.weight.shape[0] if isinstance(source, nn.Embedding) else source.num_embeddings


def label_vectors(source: nn.Embedding | LabelSource, rows: Tensor | None = None) -> Tensor:
    """E (V, d), or its ``rows`` (R, d)."""
    if not isinstance(source, nn.Embedding):
        return source(rows)
    return source.weight if rows is None else F.embedding(rows, source.weight)


def checked_rows(
    name: str, source: nn.Embedding | LabelSource, rows: Tensor, check: bool
) -> Tensor:
    """``rows`` (R,) as int64; with ``check`` IndexError unless each is a label."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"{name}: rows are a tensor of label ids, not {type(rows).__name__}")
    whole = not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)
    if not whole or rows.dim() != 1:
        raise TypeError(
            f"{name}: rows are label ids of shape (R,), not {rows.dtype} {tuple(rows.shape)}"
        )
    device = placement(source)["device"]
    if device is not None and rows.device != device:
        raise ValueError(
            f"{name}: rows are on {rows.device} but the label vectors on {device}; "
            "move one with .to()"
        )
    rows = rows.long()
    if check:
        check_range(name, rows, label_count(source), what="rows")
    return rows


def resize_rows(
    name: str, source: nn.Embedding | LabelSource, new_size: int, vectors: Tensor | None
) -> None:
    """Resize ``source`` to ``new_size`` rows; new ones are ``vectors`` or the mean."""
    new_size = positive(name, "the number of labels", new_size)
    old_size = label_count(source)
    added = max(0, new_size - old_size)
    width = source.embedding_dim
    if vectors is not None:
        _check_tensor(f"{name}: vectors are", vectors)
    if vectors is not None and vectors.shape != (added, width):
        raise ValueError(
            f"{name}: from {old_size} to {new_size} labels needs vectors of shape "
            f"({added}, {width}), not {tuple(vectors.shape)}"
        )
    if not isinstance(source, nn.Embedding):
        if new_size != old_size:
            method = "extend" if new_size > old_size else "truncate"
            raise ValueError(
                f"{name}: the label source has {old_size} labels, not {new_size}; resize it first "
                f"(Descriptions: {method}), then the layer"
            )
        return
    if new_size != old_size:
        old = source.weight.detach()
        new = old.mean(0, keepdim=True).expand(added, width) if vectors is None else vectors
        refill(source.weight, torch.cat([old[:new_size], new.to(old)]))
    source.num_embeddings = new_size
    if source.padding_idx is not None and source.padding_idx >= new_size:
        source.padding_idx = None  # its row is gone


def _check_tensor(what: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} a tensor, not {type(value).__name__}; make one with torch.tensor")


def refill(parameter: Tensor, data: Tensor) -> None:
    """Replace a Parameter's data by data of another shape; modules that share it stay tied."""
    # While an older graph exists, autograd expects gradients of the old shape; it forgets that
    # shape only when the dtype changes.
    other = torch.float32 if data.dtype != torch.float32 else torch.float16
    parameter.grad = None
    parameter.data = data.new_empty(0, dtype=other)
    parameter.data = data
