"""The passes around ``exp_gemm`` as Triton kernels. Imported only by it."""

import triton
import triton.language as tl

_HIGHEST = tl.constexpr(1e26)
"""Of sums, before rows are made again. float32 and bfloat16 end at 3e38, and the other way their
inverse is multiplied by contexts of any size."""
_FEW, _LABELS, _COLUMNS = tl.constexpr(16), tl.constexpr(64), tl.constexpr(64)
"""Rows, labels and columns at a time where rows are made again."""


@triton.jit
def pack_weight(
    w,  # (V padded, stored)
    out,  # (tiles, depth / 16, 2, LABELS / 8, 8, 8), written
    labels,
    columns,  # that count; what w stores beyond them is 0
    stored,
    depth,
    LABELS: tl.constexpr,
    SOME: tl.constexpr,
):
    """Eight labels by eight columns lie together, as the matrix instruction reads them.

    Two instructions take 32 columns. A thread reads eight of a context at a time and has four for
    each instruction, two for each half of it: in this order W has them too. In the column after the
    last that counts, where contexts have ones, labels of the padding have -inf.
    """
    first = tl.program_id(0) * SOME
    left = tl.program_id(1) * 32
    label, column = first + tl.arange(0, SOME), left + tl.arange(0, 32)
    real = (label < labels)[:, None]
    at = w + label.to(tl.int64)[:, None] * stored + column[None, :]
    x = tl.load(at, mask=real & (column < stored)[None, :], other=0.0).to(tl.float32)
    x = tl.where(real | (column != columns)[None, :], x, -float("inf"))
    x = x.to(out.dtype.element_ty).reshape(SOME, 4, 4, 2)  # label, thread, instruction's half, two
    x = x.permute(2, 0, 1, 3).reshape(4, SOME * 8)
    begin = (first // LABELS).to(tl.int64) * LABELS * depth + left * LABELS + first % LABELS * 8
    half, inside = tl.arange(0, 4), tl.arange(0, SOME * 8)
    tl.store(out + begin + half[:, None] * (LABELS * 8) + inside[None, :], x)


@triton.jit
def target_logits(
    contexts,  # (R, width)
    w,  # (V padded, columns)
    targets,  # (tokens,)
    rows,  # (R, depth), written: the contexts and ones
    shifts,  # (R,), written: c
    labels,
    experts,
    width,
    columns,
    depth,
    EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One token: its target's logits."""
    token = tl.program_id(0).to(tl.int64)
    label = tl.load(targets + token)
    known = (label >= 0) & (label < labels)
    expert = tl.arange(0, EXPERTS)
    own = expert < experts
    row = token * experts + expert
    hit = tl.zeros((EXPERTS,), tl.float32)
    for start in range(0, depth, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = own[:, None] & (column < width)[None, :]
        at = contexts + row[:, None] * width + column[None, :]
        x = tl.load(at, mask=inside, other=1.0)
        inside = own[:, None] & (column < depth)[None, :]
        x = x.to(rows.dtype.element_ty)
        tl.store(rows + row[:, None] * depth + column[None, :], x, mask=inside)
        v = tl.load(w + label * columns + column, mask=known & (column < columns), other=0.0)
        hit += tl.sum(x.to(tl.float32) * v.to(tl.float32)[None, :], 1)
    shift = tl.where(hit == float("inf"), float("nan"), hit)
    shift = tl.where(known & (hit != -float("inf")), shift, float("inf"))
    tl.store(shifts + row, shift, mask=own)


@triton.jit
def finish_rows(
    sums,  # (parts, R)
    shifts,  # (R,)
    targets,  # (tokens,)
    rows,  # (R, depth)
    w,  # (V padded, columns)
    gradients,  # (R, padded); the target's place is written
    losses,  # (R,), written
    row_factor,  # (R,), written
    count,
    labels,
    padded,
    experts,
    depth,
    columns,
    tiles,
    clusters,
    line,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some rows: their sums, their losses, what the target's place wants."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row = start + tl.arange(0, BLOCK)
    own = row < count
    # A group's tiles lie in a line with those of the others, which is cut in parts of one cluster.
    group = (row // GROUP).to(tl.int32)
    first = ((group * tiles + 1) * clusters - 1) // line
    parts = tl.where(own, ((group + 1) * tiles * clusters - 1) // line - first + 1, 0)
    m = tl.zeros((BLOCK,), tl.float32)
    for part in range(0, tl.max(parts, 0)):
        m += tl.load(sums + part * count + row, mask=part < parts, other=0.0)
    c = tl.load(shifts + row, mask=own, other=float("inf"))
    label = tl.load(targets + row // experts, mask=own, other=-1)
    known = (label >= 0) & (label < labels)
    loss = tl.where(c == float("inf"), float("inf"), tl.log(m))
    tl.store(losses + row, tl.where(known, loss, float("nan")), mask=own)
    tl.store(row_factor + row, m, mask=own)
    near = known & (c < float("inf"))
    tl.store(gradients + row * padded + label, (1.0 - m).to(gradients.dtype.element_ty), mask=near)
    if tl.max(m, 0) > _HIGHEST:
        tl.debug_barrier()  # what follows reads the sums and writes over the rest
        for begin in range(0, BLOCK, _FEW):
            few = start + begin + tl.arange(0, _FEW)
            high = tl.load(row_factor + few, mask=few < count, other=0.0) > _HIGHEST
            if tl.max(high.to(tl.int32), 0) > 0:
                _again(
                    rows,
                    w,
                    gradients,
                    losses,
                    row_factor,
                    few,
                    high,
                    tl.load(targets + few // experts, mask=high, other=0),
                    tl.load(shifts + few, mask=high, other=0.0),
                    labels,
                    padded,
                    depth,
                    columns,
                )


@triton.jit
def _again(
    rows,
    w,
    gradients,
    losses,
    row_factor,
    row,  # some
    high,  # those of them that are meant
    label,
    c,
    labels,
    padded,
    depth,
    columns,
):
    """A few rows whose maximum lies far above c, made from that maximum."""
    peak = tl.full((_FEW,), -float("inf"), tl.float32)
    for start in range(0, labels, _LABELS):
        x = _logits(rows, w, row, high, start, labels, depth, columns)
        peak = tl.maximum(peak, tl.max(x, 1))
    m = tl.zeros((_FEW,), tl.float32)
    for start in range(0, labels, _LABELS):
        x = _logits(rows, w, row, high, start, labels, depth, columns)
        e = tl.exp(x - peak[:, None])
        m += tl.sum(e, 1)
        column = start + tl.arange(0, _LABELS)
        at = gradients + row[:, None] * padded + column[None, :]
        inside = high[:, None] & (column < labels)[None, :]
        tl.store(at, e.to(gradients.dtype.element_ty), mask=inside)
    tl.store(losses + row, peak - c + tl.log(m), mask=high)
    tl.store(row_factor + row, m, mask=high)
    tl.debug_barrier()  # the target's place is written last
    gradient = tl.exp(c - peak) - m
    tl.store(gradients + row * padded + label, gradient.to(gradients.dtype.element_ty), mask=high)


@triton.jit
def _logits(
    rows,
    w,
    row,
    own,
    start,
    labels,
    depth,
    columns,
):
    """Of a few rows, the labels from ``start`` on; -inf beyond the last."""
    label = start + tl.arange(0, _LABELS)
    x = tl.zeros((_FEW, _LABELS), tl.float32)
    for left in range(0, columns, _COLUMNS):
        column = left + tl.arange(0, _COLUMNS)
        inside = (column < columns)[None, :]
        at = rows + row[:, None] * depth + column[None, :]
        a = tl.load(at, mask=own[:, None] & inside, other=0.0)
        at = w + label.to(tl.int64)[:, None] * columns + column[None, :]
        b = tl.load(at, mask=(label < labels)[:, None] & inside, other=0.0)
        # bfloat16 loses nothing as tf32.
        x += tl.dot(a.to(tl.float32), tl.trans(b.to(tl.float32)), input_precision="tf32")
    return tl.where((label < labels)[None, :], x, -float("inf"))
