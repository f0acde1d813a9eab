"""Where label vectors come from: an embedding table, or an encoder over descriptions."""

from typing import Any, Protocol, TypedDict, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.loss.checks import check_range
from drill.layers.checks import check_integer


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
    ``layer.resize``.

    Args:
        encoder: maps rows of ``descriptions`` to vectors (R, d); trained with the layer.
        descriptions: (V, ...), one row per label, such as padded token ids of a dictionary entry.
        embedding_dim: d.
    """

    descriptions: Tensor

    def __init__(self, encoder: nn.Module, descriptions: Tensor, embedding_dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding_dim = check_integer("Descriptions", "embedding_dim", embedding_dim)
        self.register_buffer("descriptions", descriptions)

    @property
    def num_embeddings(self) -> int:
        return self.descriptions.shape[0]

    def extend(self, descriptions: Tensor) -> None:
        """Append descriptions of new labels; call ``layer.resize(source.num_embeddings)`` after."""
        dtype = self.descriptions.dtype
        whole = torch.can_cast(descriptions.dtype, dtype)
        require(whole, "Descriptions", "new rows", f"of {dtype}", descriptions.dtype, TypeError)
        self.descriptions = torch.cat([self.descriptions, descriptions.to(self.descriptions)])

    def forward(self, rows: Tensor | None = None) -> Tensor:
        descriptions = self.descriptions if rows is None else self.descriptions[rows]
        vectors = cast(Tensor, self.encoder(descriptions))
        expected, shape = (len(descriptions), self.embedding_dim), tuple(vectors.shape)
        require(shape == expected, "Descriptions", "the encoder's output", str(expected), shape)
        return vectors


def label_width(name: str, source: Any) -> int:
    """d, the width of a label vector; TypeError unless ``source`` is a label source."""
    bag = isinstance(source, nn.EmbeddingBag)  # has no row for each label
    if bag or not isinstance(source, nn.Module) or not isinstance(source, LabelSource):
        raise TypeError(
            f"{name}: embedding must be an nn.Embedding or a LabelSource such as Descriptions, "
            f"got {type(source).__name__}"
        )
    return source.embedding_dim


class FactoryKwargs(TypedDict):
    device: torch.device | None
    dtype: torch.dtype | None


def factory_kwargs(source: nn.Embedding | LabelSource) -> FactoryKwargs:
    """Where and in what precision a layer over these label vectors makes its parameters.

    Args:
        source: the label vectors.

    Returns:
        ``device`` and ``dtype``, as keyword arguments of modules and tensors.
    """
    floats = (p for p in cast(nn.Module, source).parameters() if p.is_floating_point())
    first = next(floats, None)
    if first is None:
        return FactoryKwargs(device=None, dtype=None)
    return FactoryKwargs(device=first.device, dtype=first.dtype)


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
    whole = rows.dim() == 1 and rows.dtype != torch.bool and not rows.is_floating_point()
    given = rows.dtype, tuple(rows.shape)
    require(whole, name, "rows", "label ids of shape (R,)", given, TypeError)
    rows = rows.long()
    if check:
        check_range(name, rows, label_count(source), what="rows")
    return rows


def resize_rows(
    name: str, source: nn.Embedding | LabelSource, new_size: int, vectors: Tensor | None
) -> None:
    """Resize ``source`` to ``new_size`` rows; new ones are ``vectors`` or the mean."""
    new_size = check_integer(name, "the number of labels", new_size)
    old_size = label_count(source)
    added = max(0, new_size - old_size)
    width = source.embedding_dim
    if vectors is not None:
        shape = tuple(vectors.shape)
        require(shape == (added, width), name, "vectors", f"of shape {(added, width)}", shape)
    if not isinstance(source, nn.Embedding):
        if new_size != old_size:
            raise ValueError(
                f"{name}: the label source has {old_size} labels, not {new_size}; call its "
                "extend(...) first (it cannot lose labels), then layer.resize(its num_embeddings)"
            )
        return
    if new_size != old_size:
        old = source.weight.detach()
        new = old.mean(0, keepdim=True).expand(added, width) if vectors is None else vectors
        refill(source.weight, torch.cat([old[:new_size], new.to(old)]))
    source.num_embeddings = new_size
    if source.padding_idx is not None and source.padding_idx >= new_size:
        source.padding_idx = None  # its row is gone


def resize_entries(parameter: Tensor, new_size: int) -> None:
    """Resize a Parameter (V,) in place; new entries are the mean of the old ones."""
    old = parameter.detach()
    if len(old) != new_size:
        finite = old[old.isfinite()]  # not the -inf of masked labels
        mean = finite.mean() if len(finite) else old.new_zeros(())
        refill(parameter, torch.cat([old[:new_size], mean.expand(max(0, new_size - len(old)))]))


def refill(parameter: Tensor, data: Tensor) -> None:
    """Replace a Parameter's data by data of another shape; modules that share it stay tied."""
    # While an older graph exists, autograd expects gradients of the old shape; it forgets that
    # shape only when the dtype changes.
    other = torch.float32 if data.dtype != torch.float32 else torch.float16
    parameter.grad = None
    parameter.data = data.new_empty(0, dtype=other)
    parameter.data = data
