"""DRILL, the deep residual output layer (Pappas & Henderson, ICML 2019).

    E^(0) = E
    E^(i) = f^(i)(E^(i-1)) [+ E^(i-1)] + E,    f^(i)(X) = drop(act(X U^(i) + b^(i)))
    p(y | h) = softmax(E^(depth) h + b)

E (V, d) is the model's embedding: V labels, one row each. The brackets are ``residual_between``.

Options beyond the paper, which may be combined:

    norm="rms"        f^(i) reads X / rms(X)
    block="mlp"       f^(i)(X) = drop(act(X U^(i) + b^(i)) W^(i))
    gate="frequency"  E^(depth) = g (f^(depth)(E^(depth-1)) [+ E^(depth-1)]) + E,
                      g_y = 1 / (1 + count_y / gate_count), which is not learned
"""

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.label_encoder.encode_labels import (
    EncoderImplementation,
    encode_maps,
    resolve_encoder,
)
from drill.kernels.runtime.dispatch import compute_dtype
from drill.layers.base import MatrixLayer
from drill.layers.checks import check_counts, check_integer, check_positive, one_of
from drill.layers.label_map import Activation, Block, DropoutAt, LabelMap, Norm
from drill.layers.label_source import LabelSource, factory_kwargs, label_width

Gate = Literal["none", "frequency"]
GATE_COUNT = 100.0
ZERO_AT_ZERO = ("tanh", "gelu", "silu", "none")  # activations that are 0 at 0 and have a slope


def encode(
    E: Tensor,  # (V, d)
    maps: Sequence[LabelMap],  # f^(1) .. f^(depth)
    residual: bool = True,
    residual_between: bool = False,
    gate: Tensor | None = None,  # g (V,)
) -> Tensor:  # (V, d_h)
    """E^(depth) of the equation above, in plain PyTorch."""
    X = E
    for i, f in enumerate(maps):
        Y = f(X)
        if residual_between and i > 0:
            Y = Y + X
        if gate is not None and i == len(maps) - 1:
            Y = gate[:, None] * Y
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
        activation: sigmoid, relu, tanh, gelu, silu or none.
        norm: "rms" divides the input of each map by its root mean square over d; "none".
        block: "map", as in the paper, or "mlp" with a second matrix W after the activation.
        dropout: dropout probability of each map.
        locked: variational dropout: one mask over the d dimensions for all labels, drawn for every
            map and call. False: standard dropout.
        dropout_at: "input" of each map, as in the published code, or "output", as in the equation.
        residual: add E after every map.
        residual_between: also add E^(i-1), from the second map on.
        init_range: U is initialised uniformly in +-init_range.
        zero_start: initialise the last map with zeros, so that training starts at weight tying;
            for activation tanh, gelu, silu or none, and for any with block="mlp", where W is zero.
        gate: "frequency": the last map is for rare labels; its factor is 1 for a label that
            training has not seen and nearly 0 for frequent ones, which stay tied. "none": no gate.
        gate_count: the training count at which that factor is one half.
        counts: (V,) training counts of the labels, for gate="frequency".
        map_bias: use the b^(i).
        bias: use the output bias b.
        impl: "reference" (``encode``), "triton" (fused kernels, CUDA) or "auto".
    """

    scales_with_embedding = True
    map_parameters = ("maps",)
    gates: Tensor | None  # g (V,)

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        hidden_size: int | None = None,
        *,
        depth: int = 4,
        activation: Activation = "sigmoid",
        norm: Norm = "none",
        block: Block = "map",
        dropout: float = 0.0,
        locked: bool = True,
        dropout_at: DropoutAt = "input",
        residual: bool = True,
        residual_between: bool = False,
        init_range: float = 0.1,
        zero_start: bool = False,
        gate: Gate = "none",
        gate_count: float = GATE_COUNT,
        counts: Tensor | Sequence[float] | None = None,
        map_bias: bool = True,
        bias: bool = True,
        impl: EncoderImplementation = "auto",
    ) -> None:
        name = type(self).__name__
        d = label_width(name, embedding)
        d_h = d if hidden_size is None else check_integer(name, "hidden_size", hidden_size)
        depth = check_integer(name, "depth", depth, minimum=0)
        if residual or depth == 0:
            other = "another one needs residual=False and depth >= 1"
            require(d_h == d, name, "hidden_size", f"the embedding's width {d} ({other})", d_h)
        super().__init__(embedding, d_h, bias, joint_size=d_h)
        self.depth = depth
        self.residual = residual
        self.residual_between = residual_between
        self.impl = one_of(name, "impl", impl, get_args(EncoderImplementation))
        self.gate = one_of(name, "gate", gate, get_args(Gate))
        self.gate_count = check_positive(name, "gate_count", gate_count)
        maps = [
            LabelMap(
                d if i == 0 else d_h,
                d_h,
                activation=activation,
                dropout=dropout,
                locked=locked,
                dropout_at=dropout_at,
                norm=norm,
                block=block,
                init_range=init_range,
                map_bias=map_bias,
                **factory_kwargs(embedding),
            )
            for i in range(depth)
        ]
        self.maps = cast(Sequence[LabelMap], nn.ModuleList(maps))
        if zero_start and depth > 0:
            self._start_at_zero()
        self.register_buffer("gates", self._gates(counts))

    def _start_at_zero(self) -> None:
        name, last = type(self).__name__, self.maps[-1]
        if not self.residual or self.residual_between:
            raise ValueError(
                f"{name}: zero_start needs residual=True and residual_between=False, so that a "
                "last map of zeros leaves the embedding itself; or set zero_start=False"
            )
        if last.output is not None:
            nn.init.zeros_(last.output.weight)
            return
        one_of(f"{name}: zero_start", "activation", last.activation, ZERO_AT_ZERO)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def _gates(self, counts: Tensor | Sequence[float] | None) -> Tensor | None:
        name, V = type(self).__name__, self.vocabulary_size
        if self.gate == "none":
            unused = "left out unless gate='frequency'"
            require(self.gate_count == GATE_COUNT, name, "gate_count", unused, self.gate_count)
            require(counts is None, name, "counts", unused, type(counts).__name__)
            return None
        possible = self.residual and self.depth > 0
        require(possible, name, "gate", "'none' without residual or at depth 0", self.gate)
        needed = f"a number for each of the {V} labels with gate='frequency'"
        require(counts is not None, name, "counts", needed, counts)
        gates = 1 / (1 + check_counts(name, counts, V) / self.gate_count)
        return gates.to(**factory_kwargs(self.embedding))

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        E, gates = self.label_rows(rows, check), self.gates
        if rows is not None and gates is not None:
            gates = gates[rows.long()]
        sums = {"residual": self.residual, "residual_between": self.residual_between}
        fused = encode_maps(E, self.maps, self.impl, **sums, gate=gates)
        if fused is not None:
            return fused
        Y = encode(E, self.maps, **sums, gate=gates)
        return E if Y is E else Y.to(compute_dtype(E))  # autocast widens a sum with E

    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        super().resize(new_size, vectors)
        if self.gates is not None:  # 1: training has not seen the new labels
            new = max(0, new_size - len(self.gates))
            self.gates = torch.cat([self.gates[:new_size], self.gates.new_ones(new)])

    def label_kernel_summary(self) -> list[str]:
        if self.depth == 0:
            return []
        E = torch.empty((0, self.embedding.embedding_dim), **factory_kwargs(self.embedding))
        impl, reason = resolve_encoder(E, self.maps, self.impl, self.residual_between)
        return [f"labels {impl} ({reason})"]

    def extra_repr(self) -> str:
        rare = f"gate_count={self.gate_count} by counts, " if self.gate == "frequency" else ""
        return (
            f"{super().extra_repr()}, depth={self.depth}, residual={self.residual}, "
            f"residual_between={self.residual_between}, gate={self.gate!r}, {rare}"
            f"impl={self.impl!r}"
        )
