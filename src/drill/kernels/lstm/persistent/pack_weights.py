"""Weights of an LSTM on their way to the persistent kernel and back, one pass each (Triton).

    prepare   W_hh * m, W_ih and b_ih + b_hh: ordered by unit, then by gate; padded, in bfloat16.
              The initial state and the marks of what is not computed yet are written on the way.
    finish    gradients of these back in the order of ``nn.LSTM``; that of W_hh times m

The mask m of weight drop is never stored: both passes draw it from one seed.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.lstm.persistent.recurrence import ForwardInputs
from drill.kernels.lstm.weights import Gradients, Weights

UNITS, COLUMNS = 16, 64  # of a tile of weights, with the four gates of each unit
WORDS = 2048  # of a block that marks hidden states


def prepare(
    weights: Weights,  # contiguous, as the states
    h0: Tensor,  # (B, hidden)
    c0: Tensor,  # (B, hidden)
    *,
    steps: int,
    width: int,  # of the input with its padding
    padded: int,  # hidden size with its padding
    group: int,  # batch rows of a group
    flags: int,
    drop: float,
    seed: Tensor | None,  # of ``drawn_seeds``, where something is dropped
    transposed: bool,
    stream: torch.cuda.Stream | None = None,
) -> ForwardInputs:
    """On this stream, in memory of the current one; the caller has them wait for one another."""
    batch, hidden = h0.shape
    w_ih, w_hh, b_ih, b_hh = weights
    half: dict[str, Any] = {"dtype": torch.bfloat16, "device": w_hh.device}
    wide: dict[str, Any] = {"dtype": torch.float32, "device": w_hh.device}
    exchange = torch.empty(steps * batch * padded + 2 * flags, **half)
    made = ForwardInputs(
        torch.empty(4 * padded, width, **half),
        torch.empty(4 * padded, padded, **half),
        torch.empty(padded, 4 * padded, **half) if transposed else None,
        torch.empty(padded, 4, **wide),
        torch.empty(steps + 1, batch, padded, **half),
        torch.empty(steps + 1, batch, padded, **wide),
        exchange[: steps * batch * padded].view(steps, batch, padded),
        exchange[steps * batch * padded :].view(torch.int32),
    )
    words = (steps - 1) * batch * padded + 2 * flags
    recurrent = triton.cdiv(padded, UNITS) * triton.cdiv(padded, COLUMNS)
    inward = triton.cdiv(padded, UNITS) * triton.cdiv(width, COLUMNS)
    states = triton.cdiv(batch * padded, WORDS)
    with torch.cuda.stream(stream):
        _prepare[(recurrent + inward + states + triton.cdiv(words, WORDS),)](
            w_ih,
            w_hh,
            b_ih,
            b_hh,
            h0,
            c0,
            seed,
            made.w_ih,
            made.w_hh,
            made.w_hh_t,
            made.bias,
            made.h,
            made.c,
            exchange,
            exchange.view(torch.int16),
            hidden,
            w_ih.shape[1],
            width,
            batch,
            group,
            words,
            recurrent,
            inward,
            states,
            drop,
            PADDED=padded,
            DROP=seed is not None,
            TRANSPOSED=transposed,
            UNITS=UNITS,
            COLUMNS=COLUMNS,
            WORDS=WORDS,
            num_warps=4,
        )
    return made


def finish(
    made: Gradients,
    d_ih: Tensor,  # (4p, width), float32, by unit
    d_hh: Tensor,  # (4p, p), float32, by unit
    d_bias: Tensor,  # (B, p, 4), float32
    *,
    drop: float,
    seed: Tensor | None,
) -> None:
    """Write gradients of weights as ``prepare`` made them where those of the weights are to be."""
    hidden, inputs = made.w_hh.shape[1], made.w_ih.shape[1]
    rows = triton.cdiv(hidden, UNITS)
    recurrent = rows * triton.cdiv(hidden, COLUMNS)
    inward = rows * triton.cdiv(inputs, COLUMNS)
    _finish[(recurrent + inward + triton.cdiv(4 * hidden, COLUMNS),)](
        d_ih,
        d_hh,
        d_bias,
        seed,
        made.w_ih,
        made.w_hh,
        made.bias,
        hidden,
        inputs,
        d_ih.shape[1],
        d_bias.shape[0],
        recurrent,
        inward,
        drop,
        PADDED=d_hh.shape[1],
        DROP=seed is not None,
        UNITS=UNITS,
        COLUMNS=COLUMNS,
        num_warps=4,
    )


@triton.jit
def gate_masks(seed, unit, column, hidden, drop):
    """Four tiles, one a gate: 0 with probability ``drop``, else 1 / (1 - drop)."""
    a, b, c, d = tl.rand4x(seed, unit * hidden + column)
    scale = 1.0 / (1.0 - drop)
    zero = tl.zeros_like(a)
    return (
        tl.where(a >= drop, scale, zero),
        tl.where(b >= drop, scale, zero),
        tl.where(c >= drop, scale, zero),
        tl.where(d >= drop, scale, zero),
    )


@triton.jit
def _prepare(
    w_ih, w_hh, b_ih, b_hh, h0, c0, seed, made_ih, made_hh, made_hh_t, made_bias,
    h, c, exchange, marks,
    hidden, inputs, width, batch, group, words, recurrent, inward, states, drop,
    PADDED: tl.constexpr, DROP: tl.constexpr, TRANSPOSED: tl.constexpr,
    UNITS: tl.constexpr, COLUMNS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < recurrent:
        strips = tl.cdiv(PADDED, COLUMNS)
        unit = (program // strips * UNITS + tl.arange(0, UNITS))[:, None]
        column = (program % strips * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        real = (unit < hidden) & (column < hidden)
        at = w_hh + unit * hidden + column
        i = tl.load(at, mask=real, other=0.0).to(tl.float32)
        f = tl.load(at + hidden * hidden, mask=real, other=0.0).to(tl.float32)
        g = tl.load(at + 2 * hidden * hidden, mask=real, other=0.0).to(tl.float32)
        o = tl.load(at + 3 * hidden * hidden, mask=real, other=0.0).to(tl.float32)
        if DROP:
            keep_i, keep_f, keep_g, keep_o = gate_masks(tl.load(seed), unit, column, hidden, drop)
            i, f, g, o = i * keep_i, f * keep_f, g * keep_g, o * keep_o
        i, f, g, o = i.to(tl.bfloat16), f.to(tl.bfloat16), g.to(tl.bfloat16), o.to(tl.bfloat16)
        inside = (unit < PADDED) & (column < PADDED)
        to = made_hh + 4 * unit * PADDED + column
        tl.store(to, i, mask=inside)
        tl.store(to + PADDED, f, mask=inside)
        tl.store(to + 2 * PADDED, g, mask=inside)
        tl.store(to + 3 * PADDED, o, mask=inside)
        if TRANSPOSED:
            # (unit, column, 2, 2), the last the lower bit of the gate -> (column, unit and gate)
            gates = tl.join(tl.join(i, g), tl.join(f, o))
            turned = tl.reshape(tl.permute(gates, (1, 0, 2, 3)), (COLUMNS, 4 * UNITS))
            line = (program % strips * COLUMNS + tl.arange(0, COLUMNS))[:, None]
            row = (program // strips * 4 * UNITS + tl.arange(0, 4 * UNITS))[None, :]
            within = (line < PADDED) & (row < 4 * PADDED)
            tl.store(made_hh_t + line * 4 * PADDED + row, turned, mask=within)
    elif program < recurrent + inward:
        tile = program - recurrent
        strips_in = tl.cdiv(width, COLUMNS)
        unit_in = (tile // strips_in * UNITS + tl.arange(0, UNITS))[:, None]
        column_in = (tile % strips_in * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        real_in = (unit_in < hidden) & (column_in < inputs)
        inside_in = (unit_in < PADDED) & (column_in < width)
        for gate in tl.static_range(4):
            theirs = (gate * hidden + unit_in) * inputs + column_in
            value = tl.load(w_ih + theirs, mask=real_in, other=0.0).to(tl.bfloat16)
            tl.store(made_ih + (4 * unit_in + gate) * width + column_in, value, mask=inside_in)
        if tile % strips_in == 0:
            units = tile // strips_in * UNITS + tl.arange(0, UNITS)
            for gate in tl.static_range(4):
                ours = gate * hidden + units
                b = tl.load(b_ih + ours, mask=units < hidden, other=0.0).to(tl.float32)
                b += tl.load(b_hh + ours, mask=units < hidden, other=0.0).to(tl.float32)
                tl.store(made_bias + 4 * units + gate, b, mask=units < PADDED)
    elif program < recurrent + inward + states:
        cell = (program - recurrent - inward) * WORDS + tl.arange(0, WORDS)
        inside_state = cell < batch * PADDED
        real_state = inside_state & (cell % PADDED < hidden)
        given = cell // PADDED * hidden + cell % PADDED
        first_h = tl.load(h0 + given, mask=real_state, other=0.0).to(tl.float32)
        # Some NaN have the bits of a mark, which would be waited on.
        first_h = tl.where(first_h != first_h, float("nan"), first_h)
        tl.store(h + cell, first_h.to(tl.bfloat16), mask=inside_state)
        row_in, unit_at = cell // PADDED, cell % PADDED
        first_row = row_in // group * group
        rows = tl.minimum(group, batch - first_row)
        offset = first_row * PADDED + (unit_at // 8 * rows + row_in - first_row) * 8 + unit_at % 8
        tl.store(exchange + offset, first_h.to(tl.bfloat16), mask=inside_state)
        first_c = tl.load(c0 + given, mask=real_state, other=0.0)
        tl.store(c + cell, first_c.to(tl.float32), mask=inside_state)
    else:
        block = (program - recurrent - inward - states).to(tl.int64)
        word = block * WORDS + tl.arange(0, WORDS)
        empty = tl.full((WORDS,), -1, tl.int16)
        tl.store(marks + batch * PADDED + word, empty, mask=word < words)


@triton.jit
def _finish(
    d_ih, d_hh, d_bias, seed, made_ih, made_hh, made_bias,
    hidden, inputs, width, batch, recurrent, inward, drop,
    PADDED: tl.constexpr, DROP: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < recurrent:
        strips = tl.cdiv(hidden, COLUMNS)
        unit = (program // strips * UNITS + tl.arange(0, UNITS))[:, None]
        column = (program % strips * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        real = (unit < hidden) & (column < hidden)
        at = d_hh + 4 * unit * PADDED + column
        i = tl.load(at, mask=real, other=0.0)
        f = tl.load(at + PADDED, mask=real, other=0.0)
        g = tl.load(at + 2 * PADDED, mask=real, other=0.0)
        o = tl.load(at + 3 * PADDED, mask=real, other=0.0)
        if DROP:
            keep_i, keep_f, keep_g, keep_o = gate_masks(tl.load(seed), unit, column, hidden, drop)
            i, f, g, o = i * keep_i, f * keep_f, g * keep_g, o * keep_o
        to = made_hh + unit * hidden + column
        tl.store(to, i, mask=real)
        tl.store(to + hidden * hidden, f, mask=real)
        tl.store(to + 2 * hidden * hidden, g, mask=real)
        tl.store(to + 3 * hidden * hidden, o, mask=real)
    elif program < recurrent + inward:
        tile = program - recurrent
        strips_in = tl.cdiv(inputs, COLUMNS)
        unit_in = (tile // strips_in * UNITS + tl.arange(0, UNITS))[:, None]
        column_in = (tile % strips_in * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        real_in = (unit_in < hidden) & (column_in < inputs)
        for gate in tl.static_range(4):
            ours = (4 * unit_in + gate) * width + column_in
            value = tl.load(d_ih + ours, mask=real_in, other=0.0)
            tl.store(made_ih + (gate * hidden + unit_in) * inputs + column_in, value, mask=real_in)
    else:
        offset = (program - recurrent - inward) * COLUMNS + tl.arange(0, COLUMNS)
        from_unit = offset % hidden * 4 + offset // hidden  # offset: by gate; sums: by unit
        real_bias = offset < 4 * hidden
        total = tl.zeros((COLUMNS,), tl.float32)
        for row in range(batch):
            total += tl.load(d_bias + row * 4 * PADDED + from_unit, mask=real_bias, other=0.0)
        tl.store(made_bias + offset, total, mask=real_bias)
