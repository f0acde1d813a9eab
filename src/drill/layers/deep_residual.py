"""DRILL, the deep residual output layer (Pappas & Henderson, ICML 2019).

    E^(0) = E
    E^(i) = f^(i)(E^(i-1)) [+ E^(i-1)] + E,    f^(i)(X) = drop(act(X U^(i) + b^(i)))
    p(y | h) = softmax(E^(depth) h + b)

E (V, d) is the model's embedding: V labels, one row each. The brackets are ``residual_between``.

Options beyond the paper, each of which may be combined with the others:

    norm="rms"    f^(i) reads X / rms(X)
    block="mlp"   f^(i)(X) = drop(act(X U^(i) + b^(i)) W^(i))
    gate          E^(depth) = g (f^(depth)(E^(depth-1)) [+ E^(depth-1)]) + E,   g = 0 at the start,
                  or g_y = 1 / (1 + count_y / gate_count), not learned, with gate="frequency"
    correction    E^(depth) + A B,   A (V, correction) = 0 at the start, B (correction, d_h)
    center        E^(depth) minus the mean of its rows
    apply_to      input words are rows of E^(depth) too, or they alone
"""

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.label_encoder.encode_labels import (
    EncoderImplementation,
    encode_maps,
    resolve_encoder,
)
from drill.kernels.runtime.dispatch import compute_dtype, upcast
from drill.layers.base import MatrixLayer, resize_entries
from drill.layers.checks import check_bool, check_counts, check_integer, check_positive, one_of
from drill.layers.label_cache import LabelCache
from drill.layers.label_map import Activation, Block, DropoutAt, LabelMap, MapOptions, Norm
from drill.layers.label_source import (
    LabelSource,
    checked_rows,
    factory_kwargs,
    label_count,
    label_vectors,
    label_width,
    refill,
)

ApplyTo = Literal["output", "input", "both"]
Gate = Literal["none", "scalar", "label", "frequency"]
GATE_COUNT = 100.0
ZERO_AT_ZERO = ("tanh", "gelu", "silu", "none")  # activations that are 0 at 0 and have a slope


def encode(
    E: Tensor,  # (V, d)
    maps: Sequence[LabelMap],  # f^(1) .. f^(depth)
    residual: bool = True,
    residual_between: bool = False,
    gate: Tensor | None = None,  # g: (1,) or (V,)
    correction: Tensor | None = None,  # A B: (V, d_h)
    center: bool = False,
) -> Tensor:  # (V, d_h)
    """E^(depth) of the equation above, in plain PyTorch."""
    X = E
    for i, f in enumerate(maps):
        Y = f(X, wide=center)
        if residual_between and i > 0:
            Y = Y + X
        if gate is not None and i == len(maps) - 1:
            Y = gate[:, None] * Y
        if residual:
            Y = Y + E
        X = Y
    if correction is not None:
        X = X + correction
    if center:
        X = upcast(X)
        X = X - X.mean(0)
    return X


class DeepResidual(MatrixLayer):
    """A deep map of the labels with a residual connection to the embedding after each map.

    Depth 0 without a correction is weight tying. Adds depth*(d*d + d) + V parameters. After
    training, ``fold()`` makes it a plain ``nn.Linear``.

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
        gate: a learned factor of the last map, "scalar" or one per "label"; it starts at zero, so
            that training starts at weight tying with any activation. "frequency": fixed, 1 for a
            label that training has not seen and nearly 0 for frequent ones, which stay tied; it may
            be combined with ``zero_start``. "none": no gate.
        gate_count: the training count at which a gate of "frequency" is one half.
        counts: (V,) training counts of the labels, for gate="frequency".
        correction: rank of a free correction of each label, next to the maps that all labels share;
            at most d_h. It starts at zero and adds correction*(V + d_h) parameters. 0: none.
        center: subtract the mean label in float32 before labels are rounded to a narrower dtype.
            Softmax ignores it, but the offset of sigmoid would cost 2 to 3 bits of bfloat16. The
            mean is over all labels, also for ``labels(rows)``.
        apply_to: what is encoded: "output", the labels; "both", the labels and the embedded input
            words, by one encoding; "input", the input words alone, with labels tied to E. For a
            ``LanguageModel`` or ``Translator``, whose encoder then reads ``embed(ids)``.
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
        correction: int = 0,
        center: bool = False,
        apply_to: ApplyTo = "output",
        map_bias: bool = True,
        bias: bool = True,
        impl: EncoderImplementation = "auto",
    ) -> None:
        name = type(self).__name__
        d = label_width(name, embedding)
        d_h = d if hidden_size is None else check_integer(name, "hidden_size", hidden_size)
        depth = check_integer(name, "depth", depth, minimum=0)
        factory = factory_kwargs(embedding)
        map_options = MapOptions(
            name,
            activation,
            dropout,
            locked,
            dropout_at,
            init_range,
            map_bias,
            factory,
            norm,
            block,
        )
        one_of(name, "apply_to", apply_to, get_args(ApplyTo))
        if check_bool(name, "residual", residual) or depth == 0 or apply_to != "output":
            other = "another one needs residual=False, depth >= 1 and apply_to='output'"
            require(d_h == d, name, "hidden_size", f"the embedding's width {d} ({other})", d_h)
        super().__init__(embedding, d_h, bias, joint_size=d_h)
        self.depth = depth
        self.residual = residual
        self.residual_between = check_bool(name, "residual_between", residual_between)
        self.impl: Any = one_of(name, "impl", impl, get_args(EncoderImplementation))
        self.center = check_bool(name, "center", center)
        self.gate = one_of(name, "gate", gate, get_args(Gate))
        self.gate_count = check_positive(name, "gate_count", gate_count)
        self.correction = check_integer(name, "correction", correction, minimum=0)
        self.apply_to, self.encodes_inputs = apply_to, apply_to != "output"
        self.input_cache: LabelCache[Tensor] = self._cache if apply_to == "both" else LabelCache()
        maps = [LabelMap(d if i == 0 else d_h, d_h, map_options) for i in range(depth)]
        self.maps = cast(Sequence[LabelMap], nn.ModuleList(maps))
        if check_bool(name, "zero_start", zero_start) and depth > 0:
            self._start_at_zero()
        self._add_gates(counts)
        self._add_correction(init_range)

    def _start_at_zero(self) -> None:
        name, last = type(self).__name__, self.maps[-1]
        if not self.residual or self.residual_between or self.gate in ("scalar", "label"):
            raise ValueError(
                f"{name}: zero_start needs residual=True and residual_between=False, so that a "
                "last map of zeros leaves the embedding itself, and no learned gate, which "
                "would have no gradient; or set zero_start=False"
            )
        if last.output is not None:
            nn.init.zeros_(last.output.weight)
            return
        one_of(f"{name}: zero_start", "activation", last.activation, ZERO_AT_ZERO)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def _add_gates(self, counts: Tensor | Sequence[float] | None) -> None:
        name, V = type(self).__name__, label_count(self.embedding)
        factory = factory_kwargs(self.embedding)
        self.gates: Tensor | None  # g
        possible = self.gate == "none" or (self.residual and self.depth > 0)
        require(possible, name, "gate", "'none' without residual or at depth 0", self.gate)
        if self.gate == "frequency":
            needed = f"a number for each of the {V} labels with gate='frequency'"
            require(counts is not None, name, "counts", needed, counts)
            seen = check_counts(name, counts, V)
            self.register_buffer("gates", (1 / (1 + seen / self.gate_count)).to(**factory))
            return
        unused = "left out unless gate='frequency'"
        require(self.gate_count == GATE_COUNT, name, "gate_count", unused, self.gate_count)
        require(counts is None, name, "counts", unused, type(counts).__name__)
        self.gates = None
        if self.gate != "none":
            self.gates = nn.Parameter(torch.zeros(1 if self.gate == "scalar" else V, **factory))

    def _add_correction(self, init_range: float) -> None:
        rank, d_h = self.correction, self.hidden_size
        require(rank <= d_h, type(self).__name__, "correction", f"at most hidden_size {d_h}", rank)
        self.correction_embeddings: Tensor | None = None  # A
        self.correction_map: Tensor | None = None  # B
        if rank > 0:
            factory = factory_kwargs(self.embedding)
            A = torch.zeros(label_count(self.embedding), rank, **factory)
            B = torch.empty(rank, d_h, **factory).uniform_(-init_range, init_range)
            self.correction_embeddings, self.correction_map = nn.Parameter(A), nn.Parameter(B)

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        if self.apply_to == "input":
            return self.label_rows(rows, check)
        return self._encoded(rows, check)

    @property
    def input_weight(self) -> Tensor:
        """The rows of input words, (V, d): E, or encoded as ``apply_to`` says."""
        if self.apply_to == "output":
            return self.label_weight
        return self.input_cache.read(self, self._encoded)

    def embed(self, ids: Tensor) -> Tensor:
        """ids (...) -> rows of ``input_weight`` (..., d), in the dtype of E."""
        return F.embedding(ids, self.input_weight).to(factory_kwargs(self.embedding)["dtype"])

    def _encoded(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        """g(E), (V, d_h), or those of ``rows``."""
        gates, A, B = self.gates, self.correction_embeddings, self.correction_map
        if rows is not None:
            rows = checked_rows(type(self).__name__, self.embedding, rows, check)
            if self.center:
                return self._encoded().index_select(0, rows)
            gates = gates[rows] if gates is not None and self.gate != "scalar" else gates
            A = None if A is None else A[rows]
        E = label_vectors(self.embedding, rows)
        correction = None if A is None or B is None else A @ B
        built: dict[str, Any] = {
            "residual": self.residual,
            "residual_between": self.residual_between,
            "gate": gates,
        }
        Y = encode_maps(E, self.maps, self.hidden_size, self.impl, **built, unfused=self._unfused)
        if Y is None:
            Y = encode(E, self.maps, **built, correction=correction, center=self.center)
            return E if Y is E else Y.to(compute_dtype(E))  # autocast widens a sum with E
        return Y if correction is None else Y + correction

    @property
    def _unfused(self) -> str | None:
        """Why the fused kernels do not encode these labels, if not because of the maps."""
        beyond = any(f.norm != "none" or f.output is not None for f in self.maps)
        if self.residual_between and beyond:
            return "no kernel has residual_between together with norm or block='mlp'"
        return "labels are centred before they are rounded" if self.center else None

    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        super().resize(new_size, vectors)
        if isinstance(self.gates, nn.Parameter) and self.gate == "label":
            resize_entries(self.gates, new_size)
        elif self.gates is not None and self.gate == "frequency":  # 1: training has not seen them
            new = max(0, new_size - len(self.gates))
            self.gates = torch.cat([self.gates[:new_size], self.gates.new_ones(new)])
        A = self.correction_embeddings
        if A is not None and len(A) != new_size:
            refill(A, F.pad(A.detach(), (0, 0, 0, new_size - len(A))))  # new rows are zero

    def label_kernel_summary(self) -> list[str]:
        if self.depth == 0:
            return []
        E = torch.empty((0, self.embedding.embedding_dim), **factory_kwargs(self.embedding))
        impl, reason = resolve_encoder(E, self.maps, self.hidden_size, self.impl, self._unfused)
        return [f"labels {impl} ({reason})"]

    def extra_repr(self) -> str:
        rare = f"gate_count={self.gate_count} by counts, " if self.gate == "frequency" else ""
        return (
            f"{super().extra_repr()}, depth={self.depth}, residual={self.residual}, "
            f"residual_between={self.residual_between}, gate={self.gate!r}, {rare}"
            f"correction={self.correction}, center={self.center}, apply_to={self.apply_to!r}, "
            f"impl={self.impl!r}"
        )
