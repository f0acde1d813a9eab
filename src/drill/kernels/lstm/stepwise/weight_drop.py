"""Weight drop of the stepwise LSTM, on the way of W_hh to its products and back (Triton).

The mask is 0 with probability ``drop``, else 1 / (1 - drop). It is never stored: both ways draw it
from one seed, where a mask in memory would be written, scaled, read and multiplied in passes of
their own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.lstm.persistent.pack_weights import gate_masks

UNITS, COLUMNS = 16, 64  # of a tile, with the four gates of each unit


def masked_copy(
    source: Tensor,  # (4 S, S): W_hh, or the gradient of its padded copy
    width: int,  # T
    hidden: int,  # units that are no padding
    drop: float,
    seed: Tensor,  # (1,), int64
    dtype: torch.dtype,
) -> Tensor:  # (4 T, T): source * m with padding added, of zeros, or left out
    made = torch.empty(4 * width, width, dtype=dtype, device=source.device)
    grid = (triton.cdiv(width, UNITS) * triton.cdiv(width, COLUMNS),)
    sizes = {"SOURCE": source.shape[1], "TARGET": width, "UNITS": UNITS, "COLUMNS": COLUMNS}
    _masked_copy[grid](source.contiguous(), seed, made, hidden, drop, **sizes, num_warps=4)
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
