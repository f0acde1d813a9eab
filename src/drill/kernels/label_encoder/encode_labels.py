"""The label encoder of the deep residual layer: which implementation runs, and the fused ones.

    E^(0) = E,   E^(i) = drop(act(norm(E^(i-1)) U^(i) + b^(i)) [W^(i)]) [+ E]

The reference is ``layers/deep_residual.py: encode``, about ten passes over the labels per map.

pointwise   one fused pass per cuBLAS product, and one batched product for all dU and dW
locked/     products in Triton that skip the columns that locked masks drop
chain/      all maps in one launch each way: Hopper GPUs, bfloat16, no dropout or standard dropout
"""

from collections.abc import Sequence
from typing import Literal, Protocol, cast

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

MOST_OVERLAPPED = {"ChainEncode": 2**31, "LockedEncode": 2**14, "PointwiseEncode": 2**14}
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


def encode_maps(
    embedding: Tensor,  # (V, d)
    maps: Sequence[LabelMap],
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
    choice = resolve_encoder(embedding, maps, impl, residual_between)
    log_once("labels of DeepResidual", *choice)
    if choice.impl != "triton":
        return None
    f, depth = maps[0], len(maps)
    options = Options(
        ACTIVATION_CODES[f.activation],
        mask_in=f.drops and f.dropout_at == "input",
        mask_out=f.drops and f.dropout_at == "output",
        locked=f.locked or not f.drops,
        residual=residual,
        norm=f.norm == "rms",
        mlp=f.output is not None,
        gated=gate is not None and f.output is not None,
    )
    matrices = [linear for each in maps for linear in (each.linear, each.output)]
    weights = [linear.weight for linear in matrices if linear is not None]
    biases = [each.linear.bias for each in maps if each.linear.bias is not None]
    products = len(weights)

    def encoded(E: Tensor, *parameters: Tensor) -> Tensor:
        masks = f.draw_masks(E, depth)
        weights, biases = parameters[:products], parameters[products:]
        return encode_labels(E, weights, biases, masks, options, gate if options.gated else None)

    if has_started() and gains_by_overlap(embedding, products, options):
        labels = run_overlapped(encoded, embedding, *weights, *biases)
    else:
        labels = encoded(embedding, *weights, *biases)
    if gate is None or options.gated:
        return labels
    # No kernel has a gate of these maps. The last result is E and the map: of that, a part.
    return torch.lerp(embedding.to(labels.dtype), labels, gate[:, None].to(labels.dtype))


def resolve_encoder(
    embedding: Tensor,
    maps: Sequence[LabelMap],
    impl: EncoderImplementation,
    residual_between: bool,
) -> Choice:
    """The implementation that encodes labels (V, d) by these maps, and why."""
    if impl == "reference":
        return Choice("reference", "requested")
    device = embedding.device.type
    if impl == "auto" and device != "cuda":  # there Triton interprets, if at all
        return Choice("reference", f"the labels are on {device}")
    missing = _fused_missing(embedding, maps, residual_between)
    if missing is None:
        reason = f"CUDA device, {compute_dtype(embedding)}" if impl == "auto" else "requested"
        return Choice("triton", reason)
    if impl == "auto":
        return Choice("reference", missing)
    text = f'DeepResidual: impl="triton": {missing}; use impl="auto"'
    raise ArgumentError(text, "DeepResidual", "impl", value=impl)


def _fused_missing(
    embedding: Tensor, maps: Sequence[LabelMap], residual_between: bool
) -> str | None:
    """Why no kernel encodes labels by these maps; None if one does."""
    if not maps:
        return "depth 0 has nothing to encode"
    if residual_between:
        return "no kernel has residual_between"
    if maps[0].activation not in ACTIVATION_CODES:
        return f"no kernel has the activation {maps[0].activation}"
    for i, f in enumerate(maps):
        if f.unfusable_reason is not None:
            return f"map {i} has to be called: {f.unfusable_reason}"
        if _settings(f) != _settings(maps[0]):
            return f"map {i} has other settings than map 0, and the fused encoder has one set"
    width, width_out = embedding.shape[1], maps[0].linear.out_features
    if width != width_out:
        return f"the fused encoder keeps the width, but {width} becomes {width_out}"
    return triton_missing(embedding.device, compute_dtype(embedding))


def _settings(f: LabelMap) -> tuple[object, ...]:
    drops = f.dropout, f.dropout_at, f.locked, f.training
    return f.activation, f.norm, f.output is None, f.linear.bias is None, *drops


def encode_labels(
    embedding: Tensor,  # (V, d)
    weights: Sequence[Tensor],  # U of each map, and W, (d, d), as nn.Linear holds them
    biases: Sequence[Tensor],  # depth x (d,), or none
    masks: Tensor | KeptBits | None,  # (depth, 1, d), scaled; or bits
    options: Options,
    gate: Tensor | None = None,  # (V,)
) -> Tensor:  # (V, d), in the dtype of the products, which autocast may narrow
    """E^(depth) by the fused kernels, differentiable in the embedding, weights and biases.

    Zero rows follow the labels in memory, so that the loss need not copy them to align them.

    Args:
        embedding: (V, d).
        weights: U of each map, with ``options.mlp`` each followed by its W, (d, d), as of
            ``nn.Linear``.
        biases: of each map, (d,); or none.
        masks: dropout: scaled masks (depth, 1, d), shared by all labels; bits of every label; or
            None.
        options: how the maps are put together.
        gate: a factor of the last map for each label, with ``options.gated``; it gets no gradient.

    Returns:
        (V, d), in the dtype of the products, which autocast may narrow.
    """
    assert (gate is not None) == options.gated
    if isinstance(masks, KeptBits):
        options = options._replace(scale=masks.scale)
        masks = masks.bits
    else:
        assert masks is None or masks.shape[1] == 1, "masks of single labels are KeptBits"
    dtype = compute_dtype(embedding)
    parameters = (*weights, *biases, *(() if gate is None else (gate,)))
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (embedding, *parameters))
    with torch.cuda.device_of(embedding):  # where Triton launches
        encoded = _function(embedding, dtype, options, len(weights)).apply(
            embedding, masks, dtype, options, len(weights), keep, *parameters
        )
    return followed_by_zeros(cast(Tensor, encoded))


def gains_by_overlap(embedding: Tensor, depth: int, options: Options) -> bool:
    """Whether encoding concurrently with an LSTM was measured to be faster."""
    function = _function(embedding, compute_dtype(embedding), options, depth)
    return len(embedding) <= MOST_OVERLAPPED[function.__name__]


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
        from drill.kernels.label_encoder.locked.locked_encode import LockedEncode

        return LockedEncode
    missing = chain_missing(embedding, dtype, options, depth)
    if missing is None:
        return ChainEncode
    from drill.kernels.label_encoder.pointwise import PointwiseEncode

    log_once("maps of DeepResidual", "one after the other", f"in one launch: {missing}")
    return PointwiseEncode
