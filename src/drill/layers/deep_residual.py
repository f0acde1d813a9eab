"""DRILL, the deep residual output layer (Pappas & Henderson, ICML 2019).

E^(0) = E
E^(i) = drop(act(E^(i-1) U^(i) + b^(i))) [+ E^(i-1)] + E        i = 1..depth
p(y | h) = softmax(E^(depth) h + b)
"""

from collections.abc import Sequence
from typing import cast, get_args

import torch
from torch import Tensor, nn

from drill.kernels.label_encoder.encode_labels import (
    Built,
    EncoderImplementation,
    choose_encoder,
    encode_labels,
    fused_missing,
    gains_beside,
)
from drill.kernels.runtime.dispatch import Choice, compute_dtype, tell_once
from drill.kernels.runtime.overlap import beside, recurrence_begun
from drill.layers.argument_checks import at_least_zero, one_of, positive, same_width, switch
from drill.layers.base import MatrixLayer
from drill.layers.label_map import LabelMap, MapOptions
from drill.layers.label_source import LabelSource, label_width, placement
from drill.layers.module_hooks import hooked


class DeepResidual(MatrixLayer):
    """The paper's layer: a deep map of the labels with a residual to the embedding at each step.

    Takes depth*(d*d + d) + V parameters; depth is the dial from weight tying (0) towards a full
    softmax. Trains deep and folds flat: ``fold()`` is a plain linear head.

    embedding         the model's nn.Embedding (V, d), shared, or a label source
    hidden_size       d_h; d unless ``residual`` is off, then U^(1) maps d to d_h
    depth             number of maps; the paper uses 4 (language models) and 2 (translation)
    activation        sigmoid, relu, tanh, gelu or none, after every map
    dropout, locked   locked: one mask over the d dimensions shared by all labels, fresh for every
                      map and call; otherwise standard dropout
    dropout_at        "input" of each map (what produced the published numbers) or its "output"
                      before the residual (the paper's equation)
    residual          add E after every map
    residual_between  also add E^(i-1), from the second map on
    init_range        U starts uniform in +-init_range
    map_bias, bias    the b^(i); the output bias b
    encoder           how labels are encoded: "reference" (the loop in ``labels``), "triton" (fused,
                      CUDA) or "auto"; inside torch.compile, which fuses the loop itself, always
                      the loop
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
        map_bias: bool = True,
        bias: bool = True,
        encoder: EncoderImplementation = "auto",
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
            raise ValueError(
                f"{name}: hidden_size is {d_h}, but depth 0 is weight tying and needs the "
                f"embedding's width {d}; make them equal, or take Bilinear"
            )
        if switch(name, "residual", residual):
            same_width(name, "hidden_size", d_h, "the embedding's width", d)
        super().__init__(embedding, d_h, bias, joint_size=d_h)
        self.depth = depth
        self.residual = residual
        self.residual_between = switch(name, "residual_between", residual_between)
        self.encoder = one_of(name, "encoder", encoder, get_args(EncoderImplementation))
        maps = [LabelMap(d if i == 0 else d_h, d_h, options) for i in range(depth)]
        self.maps = cast(Sequence[LabelMap], nn.ModuleList(maps))

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        E = self.label_rows(rows, check)  # (V, d)
        if self._resolve(E) == "triton":
            return self._fused(E)
        X = E
        for i, f in enumerate(self.maps):
            Y = f(X, f.draw_mask(X))  # (V, d_h)
            if self.residual_between and i > 0:
                Y = Y + X
            if self.residual:
                Y = Y + E
            X = Y
        return X.to(compute_dtype(E)) if self.maps else E  # autocast widens a sum with E

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, depth={self.depth}, residual={self.residual}, "
            f"residual_between={self.residual_between}, encoder={self.encoder!r}"
        )

    def label_ways(self) -> list[str]:
        if self.depth == 0:
            return []
        E = torch.empty((0, self.embedding.embedding_dim), **placement(self.embedding))
        impl, reason = self._choose(E)
        return [f"labels {impl} ({reason})"]

    def _resolve(self, E: Tensor) -> str:
        if torch.compiler.is_compiling():
            return "reference"
        choice = self._choose(E)
        tell_once("labels of DeepResidual", *choice)
        return choice.impl

    def _choose(self, E: Tensor) -> Choice:
        """How labels like E (V, d) are encoded, and why."""
        if self.encoder == "reference":
            return Choice("reference", "asked for")
        beyond = _beyond_fusion(self.maps)
        if self.encoder == "triton":
            missing = beyond or fused_missing(E, self.hidden_size, self.depth)
            if missing is not None:
                raise ValueError(f'DeepResidual: encoder="triton": {missing}; use encoder="auto"')
            return Choice("triton", "asked for")
        choice = choose_encoder(E, self.hidden_size, self.depth)
        if choice.impl == "triton" and beyond is not None:
            return Choice("reference", beyond)
        return choice

    def _fused(self, E: Tensor) -> Tensor:
        f, linears = self.maps[0], [f.linear for f in self.maps]
        how: Built = {
            "activation": f.activation,
            "dropout_at": f.dropout_at,
            "residual": self.residual,
            "residual_between": self.residual_between,
        }

        def encoded(E: Tensor, *parameters: Tensor) -> Tensor:
            weights, biases = parameters[: self.depth], parameters[self.depth :]
            return encode_labels(E, weights, biases or None, f.draw_masks(E, self.depth), **how)

        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias is not None]
        options = {"drops": f.drops, "locked": f.locked}
        if recurrence_begun() and gains_beside(E, self.depth, **options, **how):
            return beside(encoded, E, *weights, *biases)
        return encoded(E, *weights, *biases)


def _beyond_fusion(maps: Sequence[LabelMap]) -> str | None:
    """Why these maps have to be called one by one; None where only their weights count."""
    for i, f in enumerate(maps):
        if type(f) is not LabelMap or type(f.linear) is not nn.Linear:
            return f"the linear part of map {i}, {type(f.linear).__name__}, has to be called"
        if any(hooked(module) for module in (f, f.linear)):
            return f"map {i} has hooks, which have to be called"
        if _settings_of(f) != _settings_of(maps[0]):
            return f"map {i} has other settings than map 0, and the fused encoder has one set"
    return None


def _settings_of(f: LabelMap) -> tuple[object, ...]:
    return f.activation, f.dropout, f.dropout_at, f.locked, f.training, f.linear.bias is None
