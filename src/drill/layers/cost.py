"""What an output layer costs: its own parameters, and the arithmetic of a step and of inference.

FLOPs are counted by running the layer on the meta device. A multiplication and an addition are two
FLOPs. Only matrix products are counted; elementwise work is about d times smaller.

The work of two layers depends on the targets, and meta tensors have no values: a sampled softmax
is counted with all targets and samples distinct, an adaptive one with targets after Zipf's law.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from drill.kernels.loss.nll import nll
from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    DirectOutputConnection,
    DualNonlinear,
    FullSoftmax,
    Mixtape,
    MixtureOfSoftmaxes,
    OutputLayer,
    PiecewiseLinearSoftmax,
    SampledSoftmax,
    SigSoftmax,
    SoftcappedSoftmax,
    TiedSoftmax,
    factory_kwargs,
)
from drill.layers.wrappers.sampled import foldable

# name -> (g_out(E), g_in(h)), the maps of labels and contexts in the paper's symbols
FORMULAE = {
    "full": ("W", "h"),
    "tied": ("E", "h"),
    "bilinear": ("E W", "h"),
    "dual": ("act(E U)", "act(W h)"),
    "deep-residual": ("E^(depth)", "h"),
    "mixture": ("E", "tanh(W_e h)"),
    "sampled": ("E", "h"),
    "adaptive": ("E; E B_i", "h; A_i h"),
    "sigsoftmax": ("E", "h"),
    "plif": ("E", "h"),
    "softcap": ("E", "h"),
    "mixtape": ("E", "tanh(W_e h)"),
    "doc": ("E", "tanh(W_e h)"),
}


@dataclass(frozen=True)
class Cost:
    parameters: int  # the layer's own, beyond the label vectors it shares with the encoder
    train_flops: int  # one loss over the tokens, forward and backward
    inference_flops: int  # log-probabilities of every label, the labels already encoded
    folded: bool  # whether one nn.Linear on g_in(h) replaces the trained layer


def cost(layer: OutputLayer, tokens: int) -> Cost:
    """The cost of ``layer`` for ``tokens`` hidden states; the layer is copied first."""
    layer = copy.deepcopy(layer).to("meta").train()
    matrix = layer.matrix
    if isinstance(matrix, DeepResidual):
        matrix.impl = "reference"  # the products are the same, and the meta device has no Triton
    dtype = factory_kwargs(matrix.embedding)["dtype"]
    hidden = torch.empty(tokens, layer.hidden_size, dtype=dtype, device="meta", requires_grad=True)
    targets = torch.empty(tokens, dtype=torch.long, device="meta")
    return Cost(
        parameters=own_parameters(layer),
        train_flops=_flops(lambda: _loss(layer, hidden, targets).backward()),
        inference_flops=_flops(lambda: layer.log_probs(hidden)) - _flops(lambda: _encoded(layer)),
        folded=foldable(layer) is not None,
    )


def example_layers(
    vocabulary: int, width: int, hidden: int, *, depth: int, experts: int, joint: int
) -> dict[str, OutputLayer]:
    """One layer of every kind over one embedding (V, d) on the meta device, by its name.

    Layers that need d_h = d ignore ``hidden``.
    """
    with torch.device("meta"):
        embedding = nn.Embedding(vocabulary, width)
        tied = TiedSoftmax(embedding)
        return {
            "full": FullSoftmax(embedding, hidden),
            "tied": tied,
            "bilinear": Bilinear(embedding, hidden),
            "dual": DualNonlinear(embedding, hidden, joint),
            "deep-residual": DeepResidual(embedding, depth=depth),
            "mixture": MixtureOfSoftmaxes(tied, experts, hidden),
            "sampled": SampledSoftmax(tied),
            "adaptive": AdaptiveSoftmax(tied, sorted({max(1, vocabulary // 10), vocabulary // 2})),
            "sigsoftmax": SigSoftmax(tied),
            "plif": PiecewiseLinearSoftmax(tied),
            "softcap": SoftcappedSoftmax(tied),
            "mixtape": Mixtape(tied, hidden_size=hidden, gates=max(1, vocabulary // 10)),
            "doc": DirectOutputConnection(tied, [5, experts], [hidden, hidden]),
        }


def zipf_counts(layer: AdaptiveSoftmax, tokens: int) -> list[int]:
    """How many of ``tokens`` targets fall into each cluster if a label's rank is log-uniform."""
    V = layer.vocabulary_size
    bounds = pairwise([*layer.cutoffs, V])
    return [round(tokens * math.log((end + 1) / (start + 1), V + 1)) for start, end in bounds]


def _encoded(layer: OutputLayer) -> object:
    """What ``cached_labels`` computes once."""
    labels = layer.matrix.labels()
    return layer.softmaxes(labels) if isinstance(layer, AdaptiveSoftmax) else labels


def _loss(layer: OutputLayer, hidden: Tensor, targets: Tensor) -> Tensor:
    if not isinstance(layer, AdaptiveSoftmax):
        return layer.nll(hidden, targets, impl="reference", check=False)
    # The layer's own loss reads the targets to find their clusters.
    context = layer.layer.context(hidden)
    softmaxes = layer.softmaxes(layer.layer.weight)
    counts = [len(targets), *zipf_counts(layer, len(targets))]
    losses = [
        nll(s.map(context[:n]), s.weight, targets[:n], s.bias, impl="reference", check=False)
        for s, n in zip(softmaxes, counts, strict=True)
    ]
    return torch.stack(losses).sum()


def own_parameters(layer: OutputLayer) -> int:
    """Parameters of a layer without the embedding, which the model shares."""
    matrix = layer.matrix
    embedding = cast(nn.Module, matrix.embedding)
    shared = set() if isinstance(matrix, FullSoftmax) else {*embedding.parameters()}
    return sum(parameter.numel() for parameter in {*layer.parameters()} - shared)


def _flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()
