"""DRILL, the deep residual output layer (Pappas & Henderson, ICML 2019).

    E^(0) = E
    E^(i) = f^(i)(E^(i-1)) [+ E^(i-1)] + E,    f^(i)(X) = drop(act(X U^(i) + b^(i)))
    p(y | h) = softmax(E^(depth) h + b)

E (V, d) is the model's embedding: V labels, one row each. The brackets are ``residual_between``.
"""

from collections.abc import Sequence
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from drill.kernels.label_encoder.encode_labels import (
    EncoderImplementation,
    encode_maps,
    resolve_encoder,
)
from drill.kernels.runtime.dispatch import compute_dtype
from drill.layers.base import MatrixLayer
from drill.layers.checks import at_least_zero, one_of, positive, same_width, switch
from drill.layers.label_map import LabelMap, MapOptions
from drill.layers.label_source import LabelSource, label_width, placement


def encode(
    E: Tensor,  # (V, d)
    maps: Sequence[LabelMap],  # f^(1) .. f^(depth)
    residual: bool = True,
    residual_between: bool = False,
) -> Tensor:  # (V, d_h)
    """E^(depth) of the equation above, in plain PyTorch."""
    X = E
    for i, f in enumerate(maps):
        Y = f(X, f.draw_mask(X))
        if residual_between and i > 0:
            Y = Y + X
        if residual:
            Y = Y + E
        X = Y
    return X


class DeepResidual(MatrixLayer):
    """A deep map of the labels with a residual connection to the embedding after each map.

    Depth 0 is weight tying. Adds depth*(d*d + d) + V parameters. After training, ``fold()`` makes
    it a plain ``nn.Linear``.

    Args:
        embedding: the model's nn.Embedding (V, d), shared, or a label source.
        hidden_size: d_h; d by default. With ``residual=False`` U^(1) maps d to d_h.
        depth: number of maps; the paper uses 4 for language models and 2 for translation.
        activation: sigmoid, relu, tanh, gelu or none.
        dropout: dropout probability of each map.
        locked: variational dropout: one mask over the d dimensions for all labels, drawn for every
            map and call. False: standard dropout.
        dropout_at: "input" of each map, as in the published code, or "output", as in the equation.
        residual: add E after every map.
        residual_between: also add E^(i-1), from the second map on.
        init_range: U is initialised uniformly in +-init_range.
        zero_start: initialise the last map with zeros, so that training starts at weight tying;
            for activation tanh, gelu or none, which are 0 there and have a gradient.
        map_bias: use the b^(i).
        bias: use the output bias b.
        impl: "reference" (``encode``), "triton" (fused kernels, CUDA) or "auto".
    """

    scales_with_embedding = True

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        hidden_size: int | None = None,
        *,
        depth: int = 4,
        activation: str = "sigmoid",
        dropout: float = 0.0,
        locked: bool = True,
        dropout_at: str = "input",
        residual: bool = True,
        residual_between: bool = False,
        init_range: float = 0.1,
        zero_start: bool = False,
        map_bias: bool = True,
        bias: bool = True,
        impl: EncoderImplementation = "auto",
    ) -> None:
        name = type(self).__name__
        d = label_width(name, embedding)
        d_h = d if hidden_size is None else positive(name, "hidden_size", hidden_size)
        depth = at_least_zero(name, "depth", depth)
        place = placement(embedding)
        options = MapOptions(
            name, activation, dropout, locked, dropout_at, init_range, map_bias, place
        )
        if depth == 0 and d_h != d:
            raise ValueError(f"{name}: hidden_size is {d_h}, but depth 0 is weight tying: give {d}")
        if switch(name, "residual", residual):
            same_width(name, "hidden_size", d_h, "the embedding's width", d)
        super().__init__(embedding, d_h, bias, joint_size=d_h)
        self.depth = depth
        self.residual = residual
        self.residual_between = switch(name, "residual_between", residual_between)
        self.impl: Any = one_of(name, "impl", impl, get_args(EncoderImplementation))
        maps = [LabelMap(d if i == 0 else d_h, d_h, options) for i in range(depth)]
        if switch(name, "zero_start", zero_start) and depth > 0:
            if not residual or residual_between:
                raise ValueError(
                    f"{name}: zero_start needs residual=True and residual_between=False, so that a "
                    "last map of zeros leaves the embedding itself"
                )
            one_of(f"{name}: zero_start", "activation", activation, ("tanh", "gelu", "none"))
            for parameter in maps[-1].parameters():
                nn.init.zeros_(parameter)
        self.maps = cast(Sequence[LabelMap], nn.ModuleList(maps))

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        E = self.label_rows(rows, check)
        options = {"residual": self.residual, "residual_between": self.residual_between}
        fused = encode_maps(E, self.maps, self.hidden_size, self.impl, **options)
        if fused is not None:
            return fused
        labels = encode(E, self.maps, **options)
        return labels.to(compute_dtype(E)) if self.maps else E  # autocast widens a sum with E

    def label_kernel_summary(self) -> list[str]:
        if self.depth == 0:
            return []
        E = torch.empty((0, self.embedding.embedding_dim), **placement(self.embedding))
        impl, reason = resolve_encoder(E, self.maps, self.hidden_size, self.impl)
        return [f"labels {impl} ({reason})"]

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, depth={self.depth}, residual={self.residual}, "
            f"residual_between={self.residual_between}, impl={self.impl!r}"
        )
