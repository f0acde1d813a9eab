"""Label vectors before and after the output layer: nearest labels, and norms by frequency.

E         the input embedding, (V, d)
g_out(E)  the vectors that the output layer multiplies with contexts, (V, k)

Both less their means over all labels: softmax ignores a vector that all labels share, but norms
and cosines do not.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from drill.language_modeling.evaluation.frequency_bands import EDGES, CountRange, band_ends
from drill.layers import LabelSource, OutputLayer, label_source

Neighbour = tuple[str, float]  # a label and its cosine


class LabelVectors(NamedTuple):
    """E and g_out(E), a row for each label, less the mean row."""

    embedding: Tensor
    output: Tensor


@dataclass(frozen=True)
class Neighbours:
    """A label, its count in training, and the labels of highest cosine."""

    label: str
    count: int | None
    embedding: Sequence[Neighbour]
    output: Sequence[Neighbour]


@dataclass(frozen=True)
class NormBand(CountRange):
    """Mean Euclidean norms of the labels of a band, ``types`` of them."""

    types: int
    embedding: float
    output: float


@torch.no_grad()
def label_vectors(embedding: nn.Embedding | LabelSource, layer: OutputLayer) -> LabelVectors:
    """The vectors of a model in eval mode; a wrapper has those of the layer that it wraps.

    Args:
        embedding: of the model's input.
        layer: its output layer.

    Returns:
        E and g_out(E), each less its mean, in float32.
    """
    matrices = (label_source.label_vectors(embedding).float(), layer.matrix.weight.float())
    return LabelVectors(*(matrix - matrix.mean(0) for matrix in matrices))


def nearest_labels(
    vectors: LabelVectors,
    label: int,
    name: Callable[[int], str],
    counts: Sequence[int] | NDArray[np.int64] | None = None,
    *,
    top: int = 10,
) -> Neighbours:
    """The labels nearest to a label in E and in g_out(E).

    Args:
        vectors: from ``label_vectors``.
        label: its id.
        name: the name of a label id.
        counts: (V,) occurrences in the training text.
        top: how many labels.

    Returns:
        Names and cosines, the label itself left out.
    """
    neighbours = []
    for matrix in vectors:
        cosine = F.cosine_similarity(matrix[label][None], matrix, dim=-1)
        cosine[label] = -torch.inf
        best = cosine.topk(min(top, len(cosine) - 1))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        neighbours.append([(name(i), round(c, 3)) for i, c in pairs])
    count = None if counts is None else int(counts[label])
    return Neighbours(name(label), count, neighbours[0], neighbours[1])


def label_norms(
    vectors: LabelVectors,
    counts: NDArray[np.int64],
    *,
    edges: Sequence[int] = EDGES,
    exclude: Collection[int] = (),
) -> list[NormBand]:
    """Mean norms of label vectors by how often labels occur in training.

    Args:
        vectors: from ``label_vectors``.
        counts: (V,) occurrences in the training text.
        edges: counts at which bands begin.
        exclude: ids that are left out, such as that of ``<eos>``.

    Returns:
        The bands that have labels.
    """
    norms = [each.norm(dim=-1).cpu().double().numpy() for each in vectors]
    return [
        NormBand(low, high, len(ids), *(float(each[ids].mean()) for each in norms))
        for low, high, ids in _bands(counts, edges, exclude)
    ]


def typical_labels(
    counts: NDArray[np.int64], *, edges: Sequence[int] = EDGES, exclude: Collection[int] = ()
) -> list[int]:
    """A label of each band: the one in the middle by count."""
    return [int(ids[len(ids) // 2]) for _, _, ids in _bands(counts, edges, exclude)]


def _bands(
    counts: NDArray[np.int64], edges: Sequence[int], exclude: Collection[int]
) -> list[tuple[int, int | None, NDArray[np.int64]]]:
    """(low, high, ids by rising count) of the bands that have labels."""
    order = np.argsort(counts, kind="stable")
    order = order[~np.isin(order, list(exclude))]
    ends = band_ends(edges, counts, exclude)
    parts = np.split(order, np.searchsorted(counts[order], [low for low, _ in ends[1:]]))
    return [(low, high, ids) for (low, high), ids in zip(ends, parts, strict=True) if len(ids)]
