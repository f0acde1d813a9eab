"""Standard dropout of all maps of the label encoder, drawn in one pass: a bit an entry and map."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 32, 64
_WORD = 24
"""Bits of the random numbers that are compared with the dropout."""


@triton.jit
def _draw(
    seed,  # (1,)
    bits,  # (planes, V, d) written
    labels,
    width,
    dropped,  # of 2 ** _WORD random numbers
    DEPTH: tl.constexpr,
    PLANES: tl.constexpr,
    WORD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each number depends on (seed, map, label, column) alone. Four maps share a philox call."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < labels)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    zero = tl.zeros((ROWS, COLUMNS), tl.uint32)
    key = tl.load(seed)
    by_column = zero + column[None, :].to(tl.uint32)
    by_label = zero + row[:, None].to(tl.uint32)
    for plane in tl.static_range(PLANES):
        packed = tl.zeros((ROWS, COLUMNS), tl.int32)
        for half in tl.static_range(2):
            if 8 * plane + 4 * half < DEPTH:
                a, b, c, d = tl.philox(key, by_column, by_label, zero + (2 * plane + half), zero)
                kept = _kept(a, dropped, WORD)
                kept |= _kept(b, dropped, WORD) << 1
                kept |= _kept(c, dropped, WORD) << 2
                kept |= _kept(d, dropped, WORD) << 3
                packed |= kept << (4 * half)
        own = bits + plane * tl.cast(labels, tl.int64) * width
        tl.store(own + at, packed.to(tl.uint8), mask=inside)


@triton.jit
def _kept(number, dropped, WORD: tl.constexpr):
    return ((number.to(tl.uint32, bitcast=True) >> (32 - WORD)).to(tl.int32) >= dropped).to(
        tl.int32
    )


def draw(labels: int, width: int, depth: int, dropout: float, seed: Tensor) -> Tensor:
    """Bits (planes, V, d) of ``label_encoder.KeptBits``, on the device of the seed (1,), int64."""
    planes = -(-depth // 8)
    bits = torch.empty((planes, labels, width), dtype=torch.uint8, device=seed.device)
    grid = (triton.cdiv(labels, _ROWS), triton.cdiv(width, _COLUMNS))
    if labels:
        with torch.cuda.device_of(seed):  # where Triton launches
            _draw[grid](
                seed,
                bits,
                labels,
                width,
                round(dropout * 2**_WORD),
                DEPTH=depth,
                PLANES=planes,
                WORD=_WORD,
                ROWS=_ROWS,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return bits
