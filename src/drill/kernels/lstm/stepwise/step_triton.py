"""What an LSTM does between two products with W_hh, as one Triton kernel a step.

A kernel in a CUDA graph keeps its arguments, but every call has other tensors. So each kernel reads
the step it begins at and the addresses of the call's tensors from a small table in device memory.
Only the operands of the products have fixed addresses.

Shapes: T steps, batch B, H units of which rows have P >= H, those beyond being zeros. Gates are in
the order i, f, g, o. The next step reads h_t times a mask (B, P), where there is one; capped input
gates are at most 1 - f.
"""

import triton
import triton.language as tl

from drill.kernels.runtime.triton_math import tanh

TABLE_ENTRIES = 5  # the step, then four addresses
UNITS = 128  # of a program


@triton.jit(do_not_specialize=["step", "a0", "a1", "a2", "a3"])
def write_table(table, step, a0, a1, a2, a3):
    tl.store(table, step.to(tl.int64))
    tl.store(table + 1, a0.to(tl.int64))
    tl.store(table + 2, a1.to(tl.int64))
    tl.store(table + 3, a2.to(tl.int64))
    tl.store(table + 4, a3.to(tl.int64))


@triton.jit(do_not_specialize=["offset"])
def forward_step(
    table,  # step, then bias (4, H), gates (T, B, 4, P), h and c (T + 1, B, P)
    product,  # (B, 4, P) W_hh h_{t-1}
    now,  # (B, P) becomes h_t, as the next step reads it
    mask,  # (B, P)
    offset,
    batch,
    hidden,
    padded,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    UNITS: tl.constexpr,
):
    """c_t and h_t; gates become their activations, which backward reads."""
    row = tl.program_id(0)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    real, stored = unit < hidden, unit < padded
    operands = tl.pointer_type(now.dtype.element_ty)
    floats = tl.pointer_type(tl.float32)
    line = (tl.load(table) + offset) * batch + row
    bias = tl.load(table + 1).to(floats) + unit
    gates = tl.load(table + 2).to(floats) + line * 4 * padded + unit
    h = tl.load(table + 3).to(operands) + line * padded + unit
    c = tl.load(table + 4).to(floats) + line * padded + unit
    product += row * 4 * padded + unit
    # Read in one go, so that no load waits for another.
    i = tl.load(product, mask=real, other=0.0) + tl.load(bias, mask=real, other=0.0)
    f = tl.load(product + padded, mask=real, other=0.0)
    f += tl.load(bias + hidden, mask=real, other=0.0)
    g = tl.load(product + 2 * padded, mask=real, other=0.0)
    g += tl.load(bias + 2 * hidden, mask=real, other=0.0)
    o = tl.load(product + 3 * padded, mask=real, other=0.0)
    o += tl.load(bias + 3 * hidden, mask=real, other=0.0)
    before = tl.load(c, mask=real, other=0.0)
    i = tl.sigmoid(i + tl.load(gates, mask=real, other=0.0))
    f = tl.sigmoid(f + tl.load(gates + padded, mask=real, other=0.0))
    g = tanh(g + tl.load(gates + 2 * padded, mask=real, other=0.0))
    o = tl.sigmoid(o + tl.load(gates + 3 * padded, mask=real, other=0.0))
    if CAPPED:
        i = tl.minimum(i, 1.0 - f)
    after = f * before + i * g
    exact = tl.where(real, o * tanh(after), 0.0)
    result = exact.to(now.dtype.element_ty)
    if MASKED:
        exact *= tl.load(mask + row * padded + unit, mask=real, other=0.0)
    tl.store(now + row * padded + unit, exact.to(now.dtype.element_ty), mask=stored)
    tl.store(h + batch * padded, result, mask=stored)
    tl.store(c + batch * padded, after, mask=real)
    tl.store(gates, i, mask=real)
    tl.store(gates + padded, f, mask=real)
    tl.store(gates + 2 * padded, g, mask=real)
    tl.store(gates + 3 * padded, o, mask=real)


@triton.jit(do_not_specialize=["offset"])
def backward_step(
    table,  # step, then activations (T, B, 4, P), c (T + 1, B, P), d h (T, B, P), d gates as they
    product,  # (4, B, P) what reaches the h_t that was read through each of the gates_{t+1}
    now,  # (B, 4, P) becomes d gates_t
    dc,  # (B, P) what reaches c_t through c_{t+1}, becomes that of c_{t-1}
    mask,  # (B, P)
    offset,
    batch,
    hidden,
    padded,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    UNITS: tl.constexpr,
):
    """Gradient of the gates before their activations."""
    row = tl.program_id(0)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    real, stored = unit < hidden, unit < padded
    operands = tl.pointer_type(now.dtype.element_ty)
    floats = tl.pointer_type(tl.float32)
    line = (tl.load(table) + offset) * batch + row
    gates = tl.load(table + 1).to(floats) + line * 4 * padded + unit
    c = tl.load(table + 2).to(floats) + line * padded + unit
    dh = tl.load(table + 3).to(operands) + line * padded + unit
    dgates = tl.load(table + 4).to(operands) + line * 4 * padded + unit
    dc += row * padded + unit
    now += row * 4 * padded + unit
    product += row * padded + unit
    gate = batch * padded
    through_h = tl.load(product, mask=real, other=0.0)
    through_h += tl.load(product + gate, mask=real, other=0.0)
    through_h += tl.load(product + 2 * gate, mask=real, other=0.0)
    through_h += tl.load(product + 3 * gate, mask=real, other=0.0)
    if MASKED:
        through_h *= tl.load(mask + row * padded + unit, mask=real, other=0.0)
    through_c = tl.load(dc, mask=real, other=0.0)
    through_h += tl.load(dh, mask=real, other=0.0).to(tl.float32)
    before = tl.load(c, mask=real, other=0.0)
    squashed = tanh(tl.load(c + batch * padded, mask=real, other=0.0))
    i = tl.load(gates, mask=real, other=0.0)
    f = tl.load(gates + padded, mask=real, other=0.0)
    g = tl.load(gates + 2 * padded, mask=real, other=0.0)
    o = tl.load(gates + 3 * padded, mask=real, other=0.0)
    through_c += through_h * o * (1.0 - squashed * squashed)
    kind = now.dtype.element_ty
    # Activations beyond H read as zeros, so these are zeros there.
    own = through_c * g  # reaches i
    through_f = through_c * before
    if CAPPED:
        at_cap = i == 1.0 - f
        through_f -= tl.where(at_cap, own, 0.0)
        own = tl.where(at_cap, 0.0, own)
    di = (own * i * (1.0 - i)).to(kind)
    df = (through_f * f * (1.0 - f)).to(kind)
    dg = (through_c * i * (1.0 - g * g)).to(kind)
    do = (through_h * squashed * o * (1.0 - o)).to(kind)
    tl.store(dc, through_c * f, mask=real)
    tl.store(now, di, mask=stored)
    tl.store(now + padded, df, mask=stored)
    tl.store(now + 2 * padded, dg, mask=stored)
    tl.store(now + 3 * padded, do, mask=stored)
    tl.store(dgates, di, mask=stored)
    tl.store(dgates + padded, df, mask=stored)
    tl.store(dgates + 2 * padded, dg, mask=stored)
    tl.store(dgates + 3 * padded, do, mask=stored)
