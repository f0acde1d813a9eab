"""The label encoder of the deep residual layer with everything between its products fused.

    E^(0) = E,   E^(i) = drop(act(E^(i-1) U^(i) + b^(i))) [+ E^(i-1)] [+ E]

Plain PyTorch runs about ten passes over the labels per map and step. ``label_encoder_triton`` runs
one pass and one cuBLAS product forward, the same backward, and one batched product for all U.
``label_encoder_fused`` multiplies in Triton too, without passes between, where locked masks drop
columns, which it leaves out. ``label_encoder_chain`` runs all maps in one launch each way on Hopper
GPUs, in bfloat16, where they drop nothing or by standard dropout. ``layers/deep_residual.py`` is
the reference twin.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict, cast

import torch
from torch import Tensor

from drill.kernels.label_encoder.chain.chain import ChainEncode, chain_missing
from drill.kernels.label_encoder.options import ACTIVATION_CODES, Options, drops_columns
from drill.kernels.runtime.dispatch import (
    INTERPRETED,
    Choice,
    compute_dtype,
    tell_once,
    triton_missing,
)
from drill.kernels.runtime.padding import followed_by_zeros

MOST_BESIDE = {"ChainEncode": 2**31, "FusedEncode": 2**14}
"""Labels that each way of encoding takes beside recurrences, as far as that was measured: all maps
in one launch at 33,278 labels, one after the other at 10,000."""

EncoderImplementation = Literal["auto", "reference", "triton"]

DRAWS = 2**16
"""Random numbers that standard dropout tells apart. It is rounded to so many parts, and what is
kept is scaled by the rounded one: near 1 the other would be off by more than it drops."""


class Built(TypedDict):
    """How the maps are put together, as a layer says it."""

    activation: str
    dropout_at: str
    residual: bool
    residual_between: bool


class KeptBits(NamedTuple):
    """Standard dropout of all maps: a bit an entry and map, where masks of floats take 32.

    Bit j % 8 of byte j // 8 is set where a map keeps column j of a label, which is then scaled.
    """

    bits: Tensor  # (depth, V, ceil(d / 8)), uint8
    width: int  # d
    dropped: int  # of DRAWS random numbers

    @property
    def scale(self) -> float:
        return DRAWS / (DRAWS - self.dropped)

    def masks(self) -> Tensor:  # (depth, V, d), float32
        """The same as masks, for the reference."""
        places = torch.arange(8, dtype=torch.uint8, device=self.bits.device)
        kept = (self.bits[..., None] >> places & 1).flatten(2)[..., : self.width]
        return kept.float() * self.scale


def draw_kept_bits(embedding: Tensor, depth: int, dropout: float) -> KeptBits:
    """Fresh bits for labels (V, d), where Triton runs."""
    from drill.kernels.label_encoder.dropout_bits import draw

    # On the device: a seed from the host would be the same in every replay of a CUDA graph.
    seed = torch.randint(2**62, (1,), device=embedding.device)
    V, d = embedding.shape
    dropped = min(round(dropout * DRAWS), DRAWS - 1)  # below 1, so something is kept
    return KeptBits(draw(V, d, depth, dropped, seed), d, dropped)


def choose_encoder(embedding: Tensor, width_out: int, depth: int) -> Choice:
    """The implementation that ``encoder="auto"`` takes for these labels, and why."""
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
    weights: Sequence[Tensor],  # depth x (d, d), as nn.Linear holds them
    biases: Sequence[Tensor] | None,  # depth x (d,)
    masks: Tensor | KeptBits | None,  # (depth, 1, d), scaled; or bits
    *,
    activation: str,
    dropout_at: str,
    residual: bool,
    residual_between: bool,
) -> Tensor:  # (V, d), in the dtype of the products, which autocast may narrow
    """E^(depth) by the fused kernels, differentiable in the embedding, weights and biases.

    Zero rows follow the labels in memory, so that the loss need not copy them to align them.
    """
    given: Tensor | None
    if isinstance(masks, KeptBits):
        given, scale, locked = masks.bits, masks.scale, False
    else:
        assert masks is None or masks.shape[1] == 1, "masks of single labels are KeptBits"
        given, scale, locked = masks, 1.0, True
    options = _options(
        activation, dropout_at, residual, residual_between, masks is not None, locked, scale
    )
    dtype = compute_dtype(embedding)
    parameters = (*weights, *(biases or ()))
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (embedding, *parameters))
    with torch.cuda.device_of(embedding):  # where Triton launches
        encoded = _function(embedding, dtype, options, len(weights)).apply(
            embedding, given, dtype, options, len(weights), keep, *parameters
        )
    return followed_by_zeros(cast(Tensor, encoded))


def gains_beside(
    embedding: Tensor,  # (V, d)
    depth: int,
    *,
    drops: bool,
    locked: bool,
    activation: str,
    dropout_at: str,
    residual: bool,
    residual_between: bool,
) -> bool:
    """Whether ``encode_labels`` is known to gain beside recurrences: see ``MOST_BESIDE``."""
    options = _options(activation, dropout_at, residual, residual_between, drops, locked, 1.0)
    function = _function(embedding, compute_dtype(embedding), options, depth)
    return len(embedding) <= MOST_BESIDE.get(function.__name__, 0)


def _options(
    activation: str,
    dropout_at: str,
    residual: bool,
    residual_between: bool,
    drops: bool,
    locked: bool,
    scale: float,
) -> Options:
    return Options(
        ACTIVATION_CODES[activation],
        mask_in=drops and dropout_at == "input",
        mask_out=drops and dropout_at == "output",
        locked=locked or not drops,
        scale=scale,
        residual=residual,
        between=residual_between,
    )


def _function(
    embedding: Tensor, dtype: torch.dtype, options: Options, depth: int
) -> type[torch.autograd.Function]:
    """Who encodes these labels: Triton's products where locked masks make maps narrow.

    Full maps take one launch each way where they can, and cuBLAS's products with passes between
    elsewhere. At WikiText-2's size, with their gradients, the first take 0.43 ms and the others
    0.79; Triton's products were slower than either.
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

    tell_once("maps of DeepResidual", "one after the other", f"in one launch: {missing}")
    return PointwiseEncode
