"""Standard dropout of all maps of the label encoder, drawn in one pass: a bit an entry and map."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256
_ROUNDS = 7
"""The fewest rounds of philox 4x32 that are known to pass all tests of randomness."""


@triton.jit(do_not_specialize=["dropped"])
def _draw(
    seed,  # (1,)
    bits,  # (L, V, d / 8) written
    size,  # bytes of a map
    across,  # bytes of a label
    dropped,  # of options.DRAWS random numbers, which have 16 bits
    DEPTH: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each number depends on (seed, map, label, column) alone.

    A call of philox gives four words of 32 bits: each is for a map, its halves for two columns.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(seed)
    zero = tl.zeros((BLOCK,), tl.uint32)
    label = zero + (index // across).to(tl.uint32)
    first = zero + (index % across * 4).to(tl.uint32)
    least = zero + (dropped.to(tl.uint32) << 16)
    for group in tl.static_range((DEPTH + 3) // 4):
        none = tl.zeros((BLOCK,), tl.int32)
        kept_a, kept_b, kept_c, kept_d = none, none, none, none
        for pair in tl.static_range(4):
            a, b, c, d = tl.philox(key, first + pair, label, zero + group, zero, ROUNDS)
            kept_a |= _kept(a, least, 1 << (2 * pair))
            kept_b |= _kept(b, least, 1 << (2 * pair))
            kept_c |= _kept(c, least, 1 << (2 * pair))
            kept_d |= _kept(d, least, 1 << (2 * pair))
        _store(bits, kept_a, 4 * group, index, size, DEPTH)
        _store(bits, kept_b, 4 * group + 1, index, size, DEPTH)
        _store(bits, kept_c, 4 * group + 2, index, size, DEPTH)
        _store(bits, kept_d, 4 * group + 3, index, size, DEPTH)


@triton.jit
def _kept(word, least, BIT: tl.constexpr):
    """BIT where the lower half of a word is not dropped, and the next one for the upper half."""
    return tl.where((word << 16) >= least, BIT, 0) | tl.where(word >= least, 2 * BIT, 0)


@triton.jit
def _store(bits, kept, layer: tl.constexpr, index, size, DEPTH: tl.constexpr):
    if layer < DEPTH:
        start = bits + layer * tl.cast(size, tl.int64)
        tl.store(start + index, kept.to(tl.uint8), mask=index < size)


def draw(labels: int, width: int, depth: int, dropped: int, seed: Tensor) -> Tensor:
    """Bits (L, V, d / 8) of ``options.KeptBits``, on the device of the seed (1,), int64."""
    across = -(-width // 8)
    bits = torch.empty((depth, labels, across), dtype=torch.uint8, device=seed.device)
    size = labels * across
    if size:
        with torch.cuda.device_of(seed):  # where Triton launches
            _draw[(triton.cdiv(size, _BLOCK),)](
                seed,
                bits,
                size,
                across,
                dropped,
                DEPTH=depth,
                ROUNDS=_ROUNDS,
                BLOCK=_BLOCK,
                num_warps=4,
            )
    return bits
