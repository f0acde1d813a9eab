"""The settings of the label encoder as its kernels take them, and standard dropout as bits."""

from typing import NamedTuple

import torch
from torch import Tensor

RMS_EPS = 1e-5  # bounds the gradient of a label of zeros, such as that of padding
ACTIVATION_CODES = {"none": 0, "sigmoid": 1, "relu": 2, "tanh": 3, "gelu": 4, "silu": 5}


class Options(NamedTuple):
    """How the maps are put together; see ``layers.deep_residual``."""

    activation: int
    mask_in: bool
    mask_out: bool
    locked: bool  # masks (L, 1, d); otherwise ``KeptBits``
    residual: bool
    norm: bool = False  # of what each map reads, by its root mean square
    mlp: bool = False  # maps have a second matrix
    gated: bool = False  # the last map has a factor for each label; with ``mlp``, not learned
    scale: float = 1.0  # of what bits keep; locked masks are scaled themselves


def drops_columns(options: Options) -> bool:
    """Whether the masks drop whole columns of the labels, so that none of them need be computed.

    Not with a norm: what a map does not read is still part of that. Nor have those kernels maps
    without residuals or with a second matrix.
    """
    plain = options.residual and not (options.norm or options.mlp)
    return options.mask_in and options.locked and plain


DRAWS = 2**16
"""Random numbers have 16 bits, so standard dropout is rounded to a multiple of 1/DRAWS, and other
entries are scaled by the rounded probability."""


class KeptBits(NamedTuple):
    """Standard dropout of all maps, one bit per entry and map instead of a float.

    Bit j % 8 of byte j // 8 is set where a map keeps column j of a label, which is then scaled.
    """

    bits: Tensor  # (depth, V, ceil(d / 8)), uint8
    dropped: int  # of DRAWS random numbers

    @property
    def scale(self) -> float:
        return DRAWS / (DRAWS - self.dropped)


def draw_kept_bits(embedding: Tensor, depth: int, dropout: float) -> KeptBits:
    """New bits for labels (V, d); needs Triton."""
    from drill.kernels.label_encoder.dropout_bits import draw

    # On the device: a seed from the host would be the same in every replay of a CUDA graph.
    seed = torch.randint(2**62, (1,), device=embedding.device)
    V, d = embedding.shape
    dropped = min(round(dropout * DRAWS), DRAWS - 1)  # below 1: something is kept
    return KeptBits(draw(V, d, depth, dropped, seed), dropped)
