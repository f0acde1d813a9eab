"""The label encoder of the deep residual layer with everything between its products fused.

    E^(0) = E,   E^(i) = drop(act(E^(i-1) U^(i) + b^(i))) [+ E^(i-1)] [+ E]

Plain PyTorch runs about ten passes over the labels per map and step; here it is one pass and one
matrix product forward, the same backward, and one batched product for all U.
``layers/deep_residual.py`` is the reference twin.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from drill.kernels.nll import Choice, compute_dtype, triton_missing

EncoderImplementation = Literal["auto", "reference", "triton"]


def choose_encoder(embedding: Tensor, width_out: int, depth: int) -> Choice:
    """The implementation that ``encoder="auto"`` takes for these labels, and why."""
    if torch.compiler.is_compiling():
        return Choice("reference", "torch.compile fuses the plain loop itself")
    missing = fused_missing(embedding, width_out, depth)
    if missing is not None:
        return Choice("reference", missing)
    if embedding.device.type != "cuda":
        return Choice("reference", f"the labels are on {embedding.device.type}")
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
    masks: Tensor | None,  # (depth, 1 or V, d), scaled
    *,
    activation: str,
    dropout_at: str,
    residual: bool,
    residual_between: bool,
) -> Tensor:  # (V, d)
    """E^(depth) by the fused kernels, differentiable in the embedding, weights and biases."""
    from drill.kernels.label_encoder_triton import fused_encode

    return fused_encode(
        embedding,
        masks,
        compute_dtype(embedding),
        activation,
        dropout_at,
        residual,
        residual_between,
        weights,
        biases,
    )
