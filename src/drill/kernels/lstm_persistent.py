"""An LSTM layer whose time steps are one launch: bfloat16 products, float32 sums and cell states.

gates_t = W_ih x_t + b + W_hh h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

The products with the input and the gradients of the weights are matrix products over all steps at
once; the recurrence alone is in ``lstm_persistent.cu``. Rows of weights are ordered by unit, then
by gate, and units are padded to a size that the kernel's blocks share evenly.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.nvrtc import Kernel, compiled

SOURCE = Path(__file__).with_name("lstm_persistent.cu")
MAXIMUM_TILES = 5  # of eight batch rows: what the registers hold beside the weights
REGISTERS = 112  # of a thread for weights
EMPTY = -1  # as int16: what no conversion to bfloat16 gives


class Shape(NamedTuple):
    """How a pass is laid out on the device."""

    hidden: int  # with padding
    units: int  # of a block
    warps: int  # of a block

    @property
    def blocks(self) -> int:
        return self.hidden // self.units

    @property
    def threads(self) -> int:
        return 32 * self.warps


class Layout(NamedTuple):
    forward: Shape
    backward: Shape

    @property
    def hidden(self) -> int:
        return self.forward.hidden


@cache
def layout(hidden: int, processors: int) -> Layout | None:
    """Shapes for a hidden size on a device with so many multiprocessors; None where none fits.

    The least padding first, then the most blocks: each step is as long as a block's part of it.
    """
    for padded in range(-(-hidden // 16) * 16, hidden + 257, 16):
        forward = _shape(padded, processors, cluster=1)
        backward = _shape(padded, processors, cluster=4)
        if forward and backward:
            return Layout(forward, backward)
    return None


def _shape(hidden: int, processors: int, cluster: int) -> Shape | None:
    for units in range(4, 33, 4):
        blocks, rest = divmod(hidden, units)
        if rest or blocks > processors or blocks % cluster:
            continue
        for warps in (8, 7, 6, 5, 4, 3, 2, 1):
            if hidden % (16 * warps) == 0 and units * (hidden // warps) // 16 <= REGISTERS:
                return Shape(hidden, units, warps)
    return None


def supported(device: torch.device, hidden: int) -> str | None:
    """Why this device cannot run it at this size; None where it can."""
    if device.type != "cuda" or torch.version.hip:
        return f"it needs an NVIDIA GPU, not {device.type}"
    if torch.cuda.get_device_capability(device)[0] != 9:
        return "it needs a Hopper GPU (clusters of blocks), compute capability 9"
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if layout(hidden, processors) is None:
        return f"hidden size {hidden} does not fit the registers of {processors} multiprocessors"
    return None


def _tiles(batch: int) -> list[tuple[int, int]]:
    """Batch rows of each launch: (first, count), as even as can be."""
    launches = -(-batch // (8 * MAXIMUM_TILES))
    size = -(-batch // launches)
    return [(start, min(size, batch - start)) for start in range(0, batch, size)]


def _forward_kernel(shape: Shape, tiles: int, device: torch.device) -> Kernel:
    rows = 8 * tiles * (4 * shape.units + 4)
    return _compiled("lstm_forward", shape, tiles, 0, 2 * shape.warps * rows * 4, device)


def _backward_kernel(shape: Shape, tiles: int, device: torch.device) -> Kernel:
    rows = 8 * tiles * (4 * shape.units + 4)
    received = 2 * 4 * 8 * tiles * shape.units
    return _compiled("lstm_backward", shape, tiles, 1, (shape.warps * rows + received) * 4, device)


def _compiled(
    name: str, shape: Shape, tiles: int, backward: int, shared: int, device: torch.device
) -> Kernel:
    defines = {
        "H": shape.hidden,
        "UNITS": shape.units,
        "WARPS": shape.warps,
        "TILES": tiles,
        "BACKWARD": backward,
    }
    return compiled(SOURCE, name, defines, shared, device)


def stalled() -> bool:
    """Whether a launch of this process has waited in vain; waits for the device."""
    return any(bool(flag.item()) for flag in _flags.values())


_flags: dict[int, Tensor] = {}


def stalled_flag(index: int) -> Tensor:
    """Set by a launch whose blocks waited in vain; such a launch gives NaN."""
    if index not in _flags:
        _flags[index] = torch.zeros(1, dtype=torch.int32, device=torch.device("cuda", index))
    return _flags[index]


def by_unit(weight: Tensor, hidden: int, padded: int, width: int) -> Tensor:
    """(4 hidden, i) by gate -> (4 padded, width) by unit, then gate; bfloat16, padded by zeros."""
    rows = weight.view(4, hidden, -1).transpose(0, 1)  # (hidden, 4, i)
    if padded == hidden and width == rows.shape[2]:
        return rows.to(torch.bfloat16).reshape(4 * padded, width)
    made = weight.new_zeros(padded, 4, width, dtype=torch.bfloat16)
    made[:hidden, :, : rows.shape[2]].copy_(rows)
    return made.view(4 * padded, width)


def by_gate(weight: Tensor, hidden: int, width: int) -> Tensor:
    """The inverse, in float32: (4 padded, w) -> (4 hidden, width)."""
    rows = weight.view(-1, 4, weight.shape[1])[:hidden, :, :width]
    return rows.transpose(0, 1).reshape(4 * hidden, width)


class PersistentLstm(torch.autograd.Function):
    """x (T, B, i), h0 and c0 (B, H), weights as of nn.LSTM -> h (T, B, padded), c_T (B, H).

    Both h and x are bfloat16 and may be wider than H and i, the rest being zeros: so a stack of
    layers stays aligned. h_T is the last row of h.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, batch, width = x.shape
        hidden = h0.shape[1]
        device = x.device
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        shapes = layout(hidden, processors)
        assert shapes is not None
        padded = shapes.hidden
        inputs = x.to(torch.bfloat16).view(steps * batch, width)
        w_in = by_unit(w_ih, hidden, padded, width)
        w = by_unit(w_hh, hidden, padded, padded)
        b = _padded(bias.float().view(4, hidden).t(), (padded, 4))
        gates = torch.mm(inputs, w_in.t(), out_dtype=torch.float32)  # (T B, 4 padded)
        h = torch.empty(steps + 1, batch, padded, dtype=torch.bfloat16, device=device)
        h[1:].view(torch.int16).fill_(EMPTY)
        c = torch.empty(steps + 1, batch, padded, device=device)
        for state, given in ((h[0], h0), (c[0], c0)):
            if padded > hidden:
                state.zero_()
            state[:, :hidden].copy_(given)
        flag = stalled_flag(device.index)
        shape = shapes.forward
        for start, count in _tiles(batch):
            kernel = _forward_kernel(shape, -(-count // 8), device)
            kernel(
                shape.blocks,
                shape.threads,
                [w, b, gates[start:], h[0, start:], c[0, start:], steps, count, batch, flag],
            )
        ctx.save_for_backward(inputs, w_in, w, gates, h, c)
        ctx.shapes, ctx.sizes = shapes, (steps, batch, hidden, width, w_ih.shape[1])
        ctx.dtypes = (x.dtype, h0.dtype, c0.dtype, w_ih.dtype, w_hh.dtype, bias.dtype)
        return h[1:], c[steps, :, :hidden].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc_last: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, w_in, w, gates, h, c = ctx.saved_tensors
        steps, batch, hidden, width, real_width = ctx.sizes
        padded, shape = ctx.shapes.hidden, ctx.shapes.backward
        dout = dh.to(torch.float32).contiguous()  # (T, B, padded)
        dgates = torch.empty(steps, batch, 4 * padded, dtype=torch.bfloat16, device=h.device)
        dgates.view(torch.int16).fill_(EMPTY)
        none = torch.zeros(batch, padded, device=h.device)
        dc = none.clone() if dc_last is None else _padded(dc_last.float(), (batch, padded)).clone()
        w_t = w.t().contiguous()  # (padded, 4 padded)
        flag = stalled_flag(h.device.index)
        for start, count in _tiles(batch):
            kernel = _backward_kernel(shape, -(-count // 8), h.device)
            kernel(
                shape.blocks,
                shape.threads,
                [
                    *(w_t, gates[start:], c[0, start:], dout[0, start:], dgates[0, start:]),
                    *(none, dc[start:], steps, count, batch, padded, flag),
                ],
            )
        flat = dgates.view(steps * batch, 4 * padded)
        x_dtype, h_dtype, c_dtype, ih_dtype, hh_dtype, b_dtype = ctx.dtypes
        needs = ctx.needs_input_grad
        dx = (flat @ w_in).view(steps, batch, width).to(x_dtype) if needs[0] else None
        dh0 = (dgates[0] @ w)[:, :hidden].to(h_dtype) if needs[1] else None
        dc0 = dc[:, :hidden].to(c_dtype) if needs[2] else None
        dw_ih = dw_hh = db = None
        if needs[3]:
            full = torch.mm(flat.t(), inputs, out_dtype=torch.float32)
            dw_ih = by_gate(full, hidden, real_width).to(ih_dtype)
        if needs[4]:
            before = h[:steps].reshape(steps * batch, padded)
            full = torch.mm(flat.t(), before, out_dtype=torch.float32)
            dw_hh = by_gate(full, hidden, hidden).to(hh_dtype)
        if needs[5]:
            db = by_gate(flat.sum(0, dtype=torch.float32)[:, None], hidden, 1)[:, 0].to(b_dtype)
        return dx, dh0, dc0, dw_ih, dw_hh, db


def _padded(values: Tensor, shape: tuple[int, int]) -> Tensor:
    if values.shape == shape:
        return values.contiguous()
    made = values.new_zeros(shape)
    made[: values.shape[0], : values.shape[1]].copy_(values)
    return made
