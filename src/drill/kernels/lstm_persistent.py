"""An LSTM layer whose time steps are one launch: bfloat16 products, float32 sums and cell states.

gates_t = W_ih x_t + b + W_hh h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

The products with the input and the gradients of the weights are matrix products over all steps at
once; the recurrence alone is in ``lstm_persistent.cu``. ``lstm_weights`` orders rows of weights by
unit, then by gate, and pads units to a size that the kernel's blocks share evenly.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels import nvrtc
from drill.kernels.lstm_parameters import Weights
from drill.kernels.nvrtc import CompileError, DriverError, Kernel, compiled

SOURCE = Path(__file__).with_name("lstm_persistent.cu")
ROOM_SOURCE = Path(__file__).with_name("cluster_room.cu")
CLUSTER = 4  # blocks that exchange sums on the way back
SHARED = 232448  # bytes of shared memory that a block of a Hopper GPU may have
MAXIMUM_TILES = 5  # of eight batch rows: beside the weights, registers about hold them
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

    def forward_shared(self, tiles: int) -> int:
        """Bytes: sums of two steps."""
        return 2 * self._sums(tiles)

    def backward_shared(self, tiles: int) -> int:
        """Bytes: sums of a step, and what the cluster sends in two."""
        return self._sums(tiles) + 2 * CLUSTER * 8 * tiles * self.units * 4

    def _sums(self, tiles: int) -> int:
        return self.warps * 8 * tiles * (4 * self.units + 4) * 4


class Layout(NamedTuple):
    forward: Shape
    backward: Shape

    @property
    def hidden(self) -> int:
        return self.forward.hidden


@cache
def layout(hidden: int, processors: int, clusters: int) -> Layout | None:
    """Shapes for a hidden size on a device with so many multiprocessors; None where none fits.

    ``clusters`` of four blocks run at once, one block on a multiprocessor. The least padding first,
    then the most blocks: each step is as long as a block's part of it.
    """
    for padded in range(-(-hidden // 16) * 16, hidden + 257, 16):
        forward = next(
            (s for s in _shapes(padded, processors) if s.forward_shared(MAXIMUM_TILES) <= SHARED),
            None,
        )
        backward = next(
            (
                s
                for s in _shapes(padded, CLUSTER * clusters)
                if s.blocks % CLUSTER == 0 and s.backward_shared(MAXIMUM_TILES) <= SHARED
            ),
            None,
        )
        if forward and backward:
            return Layout(forward, backward)
    return None


def _shapes(hidden: int, most_blocks: int) -> Iterator[Shape]:
    """Those whose weights fit the registers, the best first."""
    for units in range(4, 33, 4):
        blocks, rest = divmod(hidden, units)
        if rest or blocks > most_blocks:
            continue
        for warps in (8, 7, 6, 5, 4, 3, 2, 1):
            if hidden % (16 * warps) == 0 and units * (hidden // warps) // 16 <= REGISTERS:
                yield Shape(hidden, units, warps)


def layout_on(device: torch.device, hidden: int) -> Layout | None:
    """``layout`` with the sizes of a Hopper GPU."""
    room = _room(device.index or 0)
    return None if isinstance(room, str) else layout(hidden, *room)


@cache
def _room(index: int) -> tuple[int, int] | str:
    """Multiprocessors, and clusters of four blocks that each have one for themselves.

    Or why nothing can be compiled and loaded there that would use them.
    """
    device = torch.device("cuda", index)
    try:
        with torch.cuda.device(index):
            kernel = compiled(ROOM_SOURCE, "cluster_of_four", {}, SHARED, device)
            processors = torch.cuda.get_device_properties(index).multi_processor_count
            return processors, kernel.clusters_at_once(processors // CLUSTER * CLUSTER, 256)
    except (CompileError, DriverError) as error:
        return str(error)


def supported(device: torch.device, hidden: int) -> str | None:
    """Why this device cannot run it at this size; None where it can."""
    if device.type != "cuda" or torch.version.hip:
        return f"it needs an NVIDIA GPU, not {device.type}"
    if torch.cuda.get_device_capability(device)[0] != 9:
        return "it needs a Hopper GPU (clusters of blocks), compute capability 9"
    if obstacle := nvrtc.missing():
        return obstacle
    room = _room(device.index or 0)
    if isinstance(room, str):
        return room
    if layout(hidden, *room) is None:
        return f"hidden size {hidden} does not fit the registers of {room[0]} multiprocessors"
    return None


def _tiles(batch: int) -> list[tuple[int, int]]:
    """Batch rows of each launch: (first, count), as even as can be."""
    launches = -(-batch // (8 * MAXIMUM_TILES))
    size = -(-batch // launches)
    return [(start, min(size, batch - start)) for start in range(0, batch, size)]


def _forward_kernel(shape: Shape, tiles: int, device: torch.device) -> Kernel:
    return _compiled("lstm_forward", shape, tiles, 0, shape.forward_shared(tiles), device)


def _backward_kernel(shape: Shape, tiles: int, device: torch.device) -> Kernel:
    return _compiled("lstm_backward", shape, tiles, 1, shape.backward_shared(tiles), device)


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


STALLED = "the LSTM kernel waited in vain for room on the GPU: others fill it"


def stalled() -> bool:
    """Whether a launch of this process has waited in vain; waits for the device."""
    return any(bool(flag.item()) for flag in _flags.values())


def take_stall() -> bool:
    """``stalled``, for whom reports it: later launches try again."""
    found = stalled()
    if found:
        for flag in _flags.values():
            flag.zero_()
    return found


_flags: dict[int, Tensor] = {}


def stalled_flag(index: int) -> Tensor:
    """Set by a launch whose blocks waited in vain; such a launch gives NaN."""
    if index not in _flags:
        _flags[index] = torch.zeros(1, dtype=torch.int32, device=torch.device("cuda", index))
    return _flags[index]


class PersistentLstm(torch.autograd.Function):
    """x (T, B, i), h0 and c0 (B, H), weights as of nn.LSTM -> h (T, B, padded), c_T (B, H).

    ``drop`` is the share of the entries of W_hh that this call loses, the others growing by
    1 / (1 - drop). Both h and x are bfloat16 and may be wider than H and i, the rest being zeros:
    so a stack of layers stays aligned. h_T is the last row of h.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        c0: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        drop: float,
    ) -> tuple[Tensor, Tensor]:
        from drill.kernels.lstm_weights import prepare

        steps, batch, width = x.shape
        hidden = h0.shape[1]
        device = x.device
        shapes = layout_on(device, hidden)
        assert shapes is not None
        padded = shapes.hidden
        # On the device: a seed drawn on the host would be the same in every replay of a graph.
        seed = torch.randint(2**62, (1,), device=device) if drop > 0.0 else None
        weights = Weights(w_ih, w_hh, b_ih, b_hh)
        made = prepare(
            weights,
            h0,
            c0,
            steps=steps,
            width=width,
            padded=padded,
            drop=drop,
            seed=seed,
            transposed=any(ctx.needs_input_grad),
        )
        inputs = x.to(torch.bfloat16).reshape(steps * batch, width)
        gates = torch.mm(inputs, made.w_ih.t(), out_dtype=torch.float32)  # (T B, 4 padded)
        h, c = made.h, made.c
        flag = stalled_flag(device.index)
        shape = shapes.forward
        for start, count in _tiles(batch):
            kernel = _forward_kernel(shape, -(-count // 8), device)
            given = [made.w_hh, made.bias, gates[start:], h[0, start:], c[0, start:]]
            kernel(shape.blocks, shape.threads, [*given, steps, count, batch, flag])
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(inputs, made.w_ih, made.w_hh, made.w_hh_t, gates, h, c, seed)
        ctx.shape, ctx.drop, ctx.hidden = shapes.backward, drop, hidden
        # Not saved, whose later change would be refused: nothing reads their values any more.
        ctx.like = Weights(*(torch.empty_like(each, device="meta") for each in weights))
        ctx.dtypes = (x.dtype, h0.dtype, c0.dtype)
        ctx.set_materialize_grads(False)
        return h[1:], c[steps, :, :hidden].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dc_last: Tensor | None) -> tuple[Tensor | None, ...]:
        from drill.kernels.lstm_weights import finish

        inputs, w_in, w, w_t, gates, h, c, seed = ctx.saved_tensors
        shape: Shape = ctx.shape
        padded, (steps, batch) = shape.hidden, (h.shape[0] - 1, h.shape[1])
        hidden: int = ctx.hidden
        dout = torch.zeros_like(h[1:]) if dh is None else dh.contiguous()  # (T, B, padded)
        dgates = torch.empty(steps, batch, 4 * padded, dtype=torch.bfloat16, device=h.device)
        dgates.view(torch.int16).fill_(EMPTY)
        dc = torch.zeros(batch, padded, dtype=torch.float32, device=h.device)
        if dc_last is not None:
            dc[:, :hidden] = dc_last
        dbias = torch.empty(batch, 4 * padded, dtype=torch.float32, device=h.device)
        flag = stalled_flag(h.device.index)
        for start, count in _tiles(batch):
            kernel = _backward_kernel(shape, -(-count // 8), h.device)
            given = [w_t, gates[start:], c[0, start:], dout[0, start:], dgates[0, start:]]
            given += [dc[start:], dbias[start:]]
            kernel(shape.blocks, shape.threads, [*given, steps, count, batch, flag])
        flat = dgates.view(steps * batch, 4 * padded)
        x_dtype, h_dtype, c_dtype = ctx.dtypes
        needs = ctx.needs_input_grad
        dx = (flat @ w_in).view(steps, batch, -1).to(x_dtype) if needs[0] else None
        dh0 = (dgates[0] @ w)[:, :hidden].to(h_dtype) if needs[1] else None
        dc0 = dc[:, :hidden].to(c_dtype) if needs[2] else None
        before = h[:steps].view(steps * batch, padded)
        made = finish(
            torch.mm(flat.t(), inputs, out_dtype=torch.float32) if needs[3] else None,
            torch.mm(flat.t(), before, out_dtype=torch.float32) if needs[4] else None,
            dbias.view(batch, padded, 4) if needs[5] or needs[6] else None,
            ctx.like,
            h.device,
            padded=padded,
            drop=ctx.drop,
            seed=seed,
        )
        db_ih = made.bias if needs[5] else None
        db_hh = made.bias if needs[6] else None
        return dx, dh0, dc0, made.w_ih, made.w_hh, db_ih, db_hh, None
