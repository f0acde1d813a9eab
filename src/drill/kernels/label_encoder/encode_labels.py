"""The label encoder of the deep residual layer: which implementation runs, and the fused ones.

    E^(0) = E,   E^(i) = drop(act(norm(E^(i-1)) U^(i) + b^(i)) [W^(i)]) [+ E]

The reference is ``layers/deep_residual.py: encode``, about ten passes over the labels per map.

pointwise   one fused pass per cuBLAS product, and one batched product for all dU and dW
locked/     products in Triton that skip the columns that locked masks drop
chain/      all maps in one launch each way: Hopper GPUs, bfloat16, no dropout or standard dropout
"""

from collections.abc import Sequence
from typing import Literal, Protocol, TypedDict, cast

import torch
from torch import Tensor, nn

from drill.errors import ArgumentError
from drill.kernels.label_encoder.chain.chain import ChainEncode, chain_missing
from drill.kernels.label_encoder.options import (
    ACTIVATION_CODES,
    KeptBits,
    Options,
    drops_columns,
)
from drill.kernels.runtime.dispatch import (
    INTERPRETED,
    Choice,
    compute_dtype,
    log_once,
    triton_missing,
)
from drill.kernels.runtime.overlap import has_started, run_overlapped
from drill.kernels.runtime.padding import followed_by_zeros

MOST_OVERLAPPED = {"ChainEncode": 2**31, "FusedEncode": 2**14, "PointwiseEncode": 2**14}
"""Most labels for which encoding concurrently with an LSTM was measured to be faster: all maps in
one launch at 33,278 labels, one after the other at 10,000."""

EncoderImplementation = Literal["auto", "reference", "triton"]


class LabelMap(Protocol):
    """The part of ``layers/label_map.py`` that is used here."""

    activation: str
    dropout: float
    dropout_at: str
    locked: bool
    norm: str
    training: bool
    linear: nn.Linear
    output: nn.Linear | None

    @property
    def drops(self) -> bool: ...
    @property
    def unfusable_reason(self) -> str | None: ...
    def draw_masks(self, X: Tensor, depth: int) -> "Tensor | KeptBits | None": ...


class Built(TypedDict):
    """The settings that all maps share."""

    activation: str
    dropout_at: str
    residual: bool
    norm: str
    mlp: bool


def encode_maps(
    embedding: Tensor,  # (V, d)
    maps: Sequence[LabelMap],
    width_out: int,
    impl: EncoderImplementation,
    *,
    residual: bool,
    residual_between: bool,
    gate: Tensor | None = None,  # (V,)
) -> Tensor | None:  # (V, d)
    """E^(depth) by the fused kernels; None if the caller should run its own loop.

    ``gate`` is a factor of the last map for each label, which is not learned.

    Inside ``torch.compile`` that is the loop, which it fuses itself. Within ``overlap_scope`` and
    after an LSTM's recurrence has started, labels are encoded concurrently with it.
    """
    if torch.compiler.is_compiling():
        return None
    choice = resolve_encoder(embedding, maps, width_out, impl, residual_between)
    log_once("labels of DeepResidual", *choice)
    if choice.impl != "triton":
        return None
    f, depth = maps[0], len(maps)
    fused_gate = gate if f.output is not None else None
    built: Built = {
        "activation": f.activation,
        "dropout_at": f.dropout_at,
        "residual": residual,
        "norm": f.norm,
        "mlp": f.output is not None,
    }

    def encoded(E: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:products], parameters[products:]
        masks = f.draw_masks(E, depth)
        return encode_labels(E, weights, biases or None, masks, **built, gate=fused_gate)

    matrices = [linear for each in maps for linear in (each.linear, each.output)]
    weights = [linear.weight for linear in matrices if linear is not None]
    biases = [each.linear.bias for each in maps if each.linear.bias is not None]
    products = len(weights)
    options = _options(
        **built, drops=f.drops, locked=f.locked, scale=1.0, gated=fused_gate is not None
    )
    if has_started() and gains_by_overlap(embedding, products, options):
        labels = run_overlapped(encoded, embedding, *weights, *biases)
    else:
        labels = encoded(embedding, *weights, *biases)
    if gate is fused_gate:
        return labels
    assert gate is not None
    return torch.lerp(embedding.to(labels.dtype), labels, gate[:, None].to(labels.dtype))


def resolve_encoder(
    embedding: Tensor,
    maps: Sequence[LabelMap],
    width_out: int,
    impl: EncoderImplementation,
    residual_between: bool,
) -> Choice:
    """How labels (V, d) are encoded by these maps, and why."""
    if impl == "reference":
        return Choice("reference", "asked for")
    unfused = _unfused(maps, residual_between)
    if impl == "triton":
        missing = unfused or fused_missing(embedding, width_out, len(maps))
        if missing is not None:
            text = f'DeepResidual: impl="triton": {missing}; use impl="auto"'
            raise ArgumentError(text, "DeepResidual", "impl", value=impl)
        return Choice("triton", "asked for")
    choice = choose_encoder(embedding, width_out, len(maps))
    if choice.impl == "triton" and unfused is not None:
        return Choice("reference", unfused)
    return choice


def _unfused(maps: Sequence[LabelMap], residual_between: bool) -> str | None:
    """Why these maps have to be called one by one; None if kernels may use their weights."""
    if residual_between:
        return "no kernel has residual_between"
    for i, f in enumerate(maps):
        if f.unfusable_reason is not None:
            return f"map {i} has to be called: {f.unfusable_reason}"
        if _settings(f) != _settings(maps[0]):
            return f"map {i} has other settings than map 0, and the fused encoder has one set"
    return None


def _settings(f: LabelMap) -> tuple[object, ...]:
    drops = f.dropout, f.dropout_at, f.locked, f.training
    return f.activation, f.norm, f.output is None, f.linear.bias is None, *drops


def choose_encoder(embedding: Tensor, width_out: int, depth: int) -> Choice:
    """The implementation that ``impl="auto"`` takes for these labels, and why."""
    if torch.compiler.is_compiling():
        return Choice("reference", "torch.compile fuses the plain loop itself")
    if embedding.device.type != "cuda":  # there Triton interprets, if at all
        return Choice("reference", f"the labels are on {embedding.device.type}")
    missing = fused_missing(embedding, width_out, depth)
    if missing is not None:
        return Choice("reference", missing)
    return Choice("triton", f"CUDA device, {compute_dtype(embedding)}")


def fused_missing(embedding: Tensor, width_out: int, depth: int) -> str | None:
    """Why the fused encoder cannot encode these labels; None when it can."""
    if depth == 0:
        return "depth 0 has nothing to encode"
    if embedding.shape[1] != width_out:
        return f"the fused encoder keeps the width, but {embedding.shape[1]} becomes {width_out}"
    return triton_missing(embedding.device, compute_dtype(embedding))


def encode_labels(
    embedding: Tensor,  # (V, d)
    weights: Sequence[Tensor],  # U of each map, and W, (d, d), as nn.Linear holds them
    biases: Sequence[Tensor] | None,  # depth x (d,)
    masks: Tensor | KeptBits | None,  # (depth, 1, d), scaled; or bits
    *,
    activation: str,
    dropout_at: str,
    residual: bool,
    norm: str = "none",
    mlp: bool = False,
    gate: Tensor | None = None,  # (V,)
) -> Tensor:  # (V, d), in the dtype of the products, which autocast may narrow
    """E^(depth) by the fused kernels, differentiable in the embedding, weights and biases.

    Zero rows follow the labels in memory, so that the loss need not copy them to align them.

    Args:
        embedding: (V, d).
        weights: U of each map, with ``mlp`` each followed by its W, (d, d), as of ``nn.Linear``.
        biases: of each map, (d,); or None.
        masks: dropout: scaled masks (depth, 1, d), shared by all labels; bits of every label; or
            None.
        activation: of the maps, as of ``DeepResidual``.
        dropout_at: where masks apply, as of ``DeepResidual``.
        residual: add E after every map.
        norm: of what each map reads, as of ``DeepResidual``.
        mlp: maps have a second matrix W.
        gate: a factor of the last map for each label, with ``mlp``; it gets no gradient.

    Returns:
        (V, d), in the dtype of the products, which autocast may narrow.
    """
    assert mlp or gate is None, "only the passes of block='mlp' have a gate"
    given: Tensor | None
    if isinstance(masks, KeptBits):
        given, scale, locked = masks.bits, masks.scale, False
    else:
        assert masks is None or masks.shape[1] == 1, "masks of single labels are KeptBits"
        given, scale, locked = masks, 1.0, True
    options = _options(
        activation,
        dropout_at,
        residual,
        norm,
        mlp,
        drops=masks is not None,
        locked=locked,
        scale=scale,
        gated=gate is not None,
    )
    dtype = compute_dtype(embedding)
    parameters = (*weights, *(biases or ()), *(() if gate is None else (gate,)))
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (embedding, *parameters))
    with torch.cuda.device_of(embedding):  # where Triton launches
        encoded = _function(embedding, dtype, options, len(weights)).apply(
            embedding, given, dtype, options, len(weights), keep, *parameters
        )
    return followed_by_zeros(cast(Tensor, encoded))


def gains_by_overlap(embedding: Tensor, depth: int, options: Options) -> bool:
    """Whether encoding concurrently with an LSTM was measured to be faster."""
    function = _function(embedding, compute_dtype(embedding), options, depth)
    return len(embedding) <= MOST_OVERLAPPED[function.__name__]


def _options(
    activation: str,
    dropout_at: str,
    residual: bool,
    norm: str,
    mlp: bool,
    *,
    drops: bool,
    locked: bool,
    scale: float,
    gated: bool,
) -> Options:
    return Options(
        ACTIVATION_CODES[activation],
        mask_in=drops and dropout_at == "input",
        mask_out=drops and dropout_at == "output",
        locked=locked or not drops,
        scale=scale,
        residual=residual,
        norm=norm == "rms",
        mlp=mlp,
        gated=gated,
    )


def _function(
    embedding: Tensor, dtype: torch.dtype, options: Options, depth: int
) -> type[torch.autograd.Function]:
    """The kernels for these labels: Triton's products where locked masks make maps narrow.

    Full maps take one launch each way where they can, and cuBLAS's products with passes between
    elsewhere. At WikiText-2's size, with gradients, 0.43 and 0.79 ms; Triton's products were slower
    than either.
    """
    V, d = embedding.shape
    # Triton's interpreter multiplies float32, but takes the bits of bfloat16 for integers.
    dtypes = (torch.float16, torch.float32 if INTERPRETED else torch.bfloat16)
    fits = dtype in dtypes and V > 0 and d % 16 == 0  # aligned rows
    if drops_columns(options) and fits:
        from drill.kernels.label_encoder.locked.locked_encode import FusedEncode

        return FusedEncode
    missing = chain_missing(embedding, dtype, options, depth)
    if missing is None:
        return ChainEncode
    from drill.kernels.label_encoder.pointwise import PointwiseEncode

    log_once("maps of DeepResidual", "one after the other", f"in one launch: {missing}")
    return PointwiseEncode
