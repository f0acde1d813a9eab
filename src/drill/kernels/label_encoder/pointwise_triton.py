"""What both Triton encoders do to a tile of labels between two products."""

import triton
import triton.language as tl

from drill.kernels.label_encoder.options import ACTIVATION_CODES, RMS_EPS
from drill.kernels.runtime.triton_math import tanh

_EPS = tl.constexpr(RMS_EPS)
_SIGMOID = tl.constexpr(ACTIVATION_CODES["sigmoid"])
_RELU = tl.constexpr(ACTIVATION_CODES["relu"])
_TANH = tl.constexpr(ACTIVATION_CODES["tanh"])
_GELU = tl.constexpr(ACTIVATION_CODES["gelu"])
_SILU = tl.constexpr(ACTIVATION_CODES["silu"])


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == _SIGMOID:
        x = tl.sigmoid(x)
    elif ACTIVATION == _RELU:
        x = tl.where(x > 0, x, tl.where(x <= 0, 0.0, x))  # keeps NaN
    elif ACTIVATION == _TANH:
        x = tanh(x)
    elif ACTIVATION == _GELU:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == _SILU:
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def slope(x, ACTIVATION: tl.constexpr):
    """Derivative of the activation at x."""
    if ACTIVATION == _SIGMOID:
        y = tl.sigmoid(x)
        x = y * (1.0 - y)
    elif ACTIVATION == _RELU:
        x = tl.where(x > 0, 1.0, 0.0)
    elif ACTIVATION == _TANH:
        y = tanh(x)
        x = 1.0 - y * y
    elif ACTIVATION == _GELU:
        density = tl.exp(-0.5 * x * x) * 0.3989422804014327
        x = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif ACTIVATION == _SILU:
        y = tl.sigmoid(x)
        x = y * (1.0 + x * (1.0 - y))
    else:
        x = tl.full(x.shape, 1.0, tl.float32)
    return x


@triton.jit
def mask_at(masks, row, column, inside, width, scale, LOCKED: tl.constexpr):
    """Mask of a map over a tile: a row (d,) if LOCKED, else bits (V, ceil(d / 8))."""
    if LOCKED:  # one row for all labels
        mask = tl.load(masks + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    else:
        line = row.to(tl.int64) * tl.cdiv(width, 8)
        bits = tl.load(masks + line[:, None] + (column // 8)[None, :], mask=inside, other=0)
        kept = (bits.to(tl.int32) >> (column % 8)[None, :]) & 1
        mask = tl.where(kept != 0, scale, 0.0)
    return mask


@triton.jit
def inverse_rms(y, width):
    """1 / rms of each row; the tile has whole rows, and zeros beyond them."""
    return tl.rsqrt(tl.sum(y * y, 1) / width + _EPS)[:, None]


@triton.jit
def norm_gradient(g, y, width):
    """Gradient of y from that of y / rms(y), both tiles of whole rows with zeros beyond them."""
    r = inverse_rms(y, width)
    y *= r
    return r * (g - y * (tl.sum(g * y, 1) / width)[:, None])
