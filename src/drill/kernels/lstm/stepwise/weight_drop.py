"""Weight drop of the stepwise LSTM, on the way of W_hh to its products and back (Triton).

    masked_weight    W_hh * m, padded, in the dtype of products
    masked_gradient  the gradient of that without its padding, times m

m is 0 with probability ``drop``, else 1 / (1 - drop). It is never stored: both draw it from one
seed, where a mask in memory would be written, scaled, read and multiplied in passes of their own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.lstm.persistent.pack_weights import gate_masks

UNITS, COLUMNS = 16, 64  # of a tile, with the four gates of each unit


def masked_weight(
    weight: Tensor,  # (4 hidden, hidden)
    padded: int,
    drop: float,
    seed: Tensor,  # (1,), int64
    dtype: torch.dtype,
) -> Tensor:  # (4 padded, padded), zeros beyond
    made = torch.empty(4 * padded, padded, dtype=dtype, device=weight.device)
    grid = (triton.cdiv(padded, UNITS) * triton.cdiv(padded, COLUMNS),)
    hidden = weight.shape[1]
    sizes = {"SOURCE": hidden, "TARGET": padded, "UNITS": UNITS, "COLUMNS": COLUMNS}
    _masked_copy[grid](weight.contiguous(), seed, made, hidden, drop, **sizes, num_warps=4)
    return made


def masked_gradient(
    gradient: Tensor,  # (4 padded, padded), float32
    hidden: int,
    drop: float,
    seed: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # (4 hidden, hidden)
    made = torch.empty(4 * hidden, hidden, dtype=dtype, device=gradient.device)
    grid = (triton.cdiv(hidden, UNITS) * triton.cdiv(hidden, COLUMNS),)
    padded = gradient.shape[1]
    sizes = {"SOURCE": padded, "TARGET": hidden, "UNITS": UNITS, "COLUMNS": COLUMNS}
    _masked_copy[grid](gradient.contiguous(), seed, made, hidden, drop, **sizes, num_warps=4)
    return made


@triton.jit
def _masked_copy(
    source, seed, target, hidden, drop,
    SOURCE: tl.constexpr, TARGET: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(4, SOURCE, SOURCE) * m -> (4, TARGET, TARGET) in its dtype, zeros where no unit is."""
    strips = tl.cdiv(TARGET, COLUMNS)
    unit = (tl.program_id(0) // strips * UNITS + tl.arange(0, UNITS))[:, None]
    column = (tl.program_id(0) % strips * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    real = (unit < hidden) & (column < hidden)
    inside = (unit < TARGET) & (column < TARGET)
    at = source + unit * SOURCE + column
    to = target + unit * TARGET + column
    keep_i, keep_f, keep_g, keep_o = gate_masks(tl.load(seed), unit, column, hidden, drop)
    i = tl.load(at, mask=real, other=0.0).to(tl.float32) * keep_i
    f = tl.load(at + SOURCE * SOURCE, mask=real, other=0.0).to(tl.float32) * keep_f
    g = tl.load(at + 2 * SOURCE * SOURCE, mask=real, other=0.0).to(tl.float32) * keep_g
    o = tl.load(at + 3 * SOURCE * SOURCE, mask=real, other=0.0).to(tl.float32) * keep_o
    tl.store(to, i.to(target.dtype.element_ty), mask=inside)
    tl.store(to + TARGET * TARGET, f.to(target.dtype.element_ty), mask=inside)
    tl.store(to + 2 * TARGET * TARGET, g.to(target.dtype.element_ty), mask=inside)
    tl.store(to + 3 * TARGET * TARGET, o.to(target.dtype.element_ty), mask=inside)
