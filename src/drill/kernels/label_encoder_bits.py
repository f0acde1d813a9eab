"""Standard dropout of all maps of the label encoder, drawn in one pass: a bit an entry and map."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _PAIRS = 64, 32
_APART = 16
"""Columns between the two that share their random numbers; both are stored side by side."""
_ROUNDS = 7
"""The fewest rounds of philox 4x32 that are known to pass all tests of randomness."""


@triton.jit
def _draw(
    seed,  # (1,)
    bits,  # (planes, V, d) written
    labels,
    width,
    dropped,  # of label_encoder.DRAWS random numbers, which have 16 bits
    DEPTH: tl.constexpr,
    PLANES: tl.constexpr,
    APART: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Each number depends on (seed, map, label, column) alone.

    A call of philox gives four words of 32 bits: a map takes each, and a column each half of it.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    column = pair // APART * (2 * APART) + pair % APART
    own = (row < labels)[:, None]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    zero = tl.zeros((ROWS, PAIRS), tl.uint32)
    key = tl.load(seed)
    by_pair = zero + pair[None, :].to(tl.uint32)
    by_label = zero + row[:, None].to(tl.uint32)
    for plane in tl.static_range(PLANES):
        low = tl.zeros((ROWS, PAIRS), tl.int32)
        high = tl.zeros((ROWS, PAIRS), tl.int32)
        for half in tl.static_range(2):
            if 8 * plane + 4 * half < DEPTH:
                group = zero + (2 * plane + half)
                a, b, c, d = tl.philox(key, by_pair, by_label, group, zero, ROUNDS)
                low |= _kept(a, b, c, d, 0, dropped) << (4 * half)
                high |= _kept(a, b, c, d, 16, dropped) << (4 * half)
        start = bits + plane * tl.cast(labels, tl.int64) * width + at
        tl.store(start, low.to(tl.uint8), mask=own & (column < width)[None, :])
        tl.store(start + APART, high.to(tl.uint8), mask=own & (column < width - APART)[None, :])


@triton.jit
def _kept(a, b, c, d, SHIFT: tl.constexpr, dropped):
    """A bit for each of four maps, from 16 bits of each word."""
    kept = _bit(a, SHIFT, dropped) | (_bit(b, SHIFT, dropped) << 1)
    return kept | (_bit(c, SHIFT, dropped) << 2) | (_bit(d, SHIFT, dropped) << 3)


@triton.jit
def _bit(word, SHIFT: tl.constexpr, dropped):
    number = (word.to(tl.uint32, bitcast=True) >> SHIFT).to(tl.int32) & 0xFFFF
    return (number >= dropped).to(tl.int32)


def draw(labels: int, width: int, depth: int, dropped: int, seed: Tensor) -> Tensor:
    """Bits (planes, V, d) of ``label_encoder.KeptBits``, on the device of the seed (1,), int64."""
    planes = -(-depth // 8)
    bits = torch.empty((planes, labels, width), dtype=torch.uint8, device=seed.device)
    pairs = triton.cdiv(width, 2 * _APART) * _APART
    if labels:
        with torch.cuda.device_of(seed):  # where Triton launches
            _draw[(triton.cdiv(labels, _ROWS), triton.cdiv(pairs, _PAIRS))](
                seed,
                bits,
                labels,
                width,
                dropped,
                DEPTH=depth,
                PLANES=planes,
                APART=_APART,
                ROUNDS=_ROUNDS,
                ROWS=_ROWS,
                PAIRS=_PAIRS,
                num_warps=4,
            )
    return bits
