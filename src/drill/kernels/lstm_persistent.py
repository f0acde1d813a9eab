"""An LSTM layer whose time steps are one launch: bfloat16 products, float32 sums and cell states.

gates_t = W_ih x_t + b + W_hh h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

The products with the input and the gradients of the weights are matrix products over all steps at
once; the recurrence alone is in CUDA, see ``lstm_persistent.cuh``. ``lstm_weights`` orders rows of
weights by unit, then by gate, and pads units to a size that the kernel's blocks share evenly.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.hopper import SHARED, hopper_missing
from drill.kernels.lstm_layout import CLUSTER, Layout, Shape, cut, layout
from drill.kernels.lstm_parameters import Weights
from drill.kernels.nvrtc import CompileError, DriverError, Kernel, compiled

ROOM_SOURCE = Path(__file__).with_name("cluster_room.cu")
EMPTY = -1  # as int16: what no conversion to bfloat16 gives


def layout_on(device: torch.device, hidden: int) -> Layout | None:
    """``layout`` with the sizes of a Hopper GPU."""
    clusters = _room(device.index or 0)
    return None if isinstance(clusters, str) else layout(hidden, clusters)


@cache
def _room(index: int) -> int | str:
    """Clusters of eight blocks that run at once, each block on a multiprocessor of its own.

    Or why nothing can be compiled and loaded there that would use them.
    """
    device = torch.device("cuda", index)
    try:
        with torch.cuda.device(index):
            kernel = compiled(ROOM_SOURCE, "cluster_of_eight", {}, SHARED, device)
            processors = torch.cuda.get_device_properties(index).multi_processor_count
            return kernel.clusters_at_once(processors // CLUSTER * CLUSTER, 256)
    except (CompileError, DriverError) as error:
        return str(error)


def supported(device: torch.device, hidden: int) -> str | None:
    """Why this device cannot run it at this size; None where it can."""
    if obstacle := hopper_missing(device):
        return obstacle
    clusters = _room(device.index or 0)
    if isinstance(clusters, str):
        return clusters
    if layout(hidden, clusters) is None:
        return f"hidden size {hidden} does not fit the registers of {clusters} clusters of 8 blocks"
    return None


def _forward_kernel(shape: Shape, tiles: int, groups: int, device: torch.device) -> Kernel:
    return _compiled("lstm_forward", shape, tiles, groups, device)


def _backward_kernel(shape: Shape, tiles: int, groups: int, device: torch.device) -> Kernel:
    return _compiled("lstm_backward", shape, tiles, groups, device)


def _compiled(name: str, shape: Shape, tiles: int, groups: int, device: torch.device) -> Kernel:
    source = Path(__file__).with_name(f"{name}.cu")
    defines = {
        "H": shape.hidden,
        "TILES": tiles,
        "GROUPS": groups,
        "BACKWARD": int(shape.backward),
    }
    return compiled(source, name, defines, shape.shared(tiles, groups), device)


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
        rows = cut(batch)
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
            group=rows.size,
            flags=rows.flags(shapes.forward, steps),
            drop=drop,
            seed=seed,
            transposed=any(ctx.needs_input_grad),
        )
        inputs = x.to(torch.bfloat16).reshape(steps * batch, width)
        gates = torch.mm(inputs, made.w_ih.t(), out_dtype=torch.float32)  # (T B, 4 padded)
        h, c = made.h, made.c
        flag = stalled_flag(device.index)
        shape = shapes.forward
        flags = made.flags.view(len(rows.launches), -1)
        for launch, (start, count, groups) in enumerate(rows.launches):
            kernel = _forward_kernel(shape, rows.tiles, groups, device)
            given = [made.w_hh, made.bias, gates[start:], made.exchange[0, start:], flags[launch]]
            given += [h[0, start:], c[0, start:]]
            kernel(shape.blocks, shape.threads, [*given, steps, count, rows.size, batch, flag])
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
        rows = cut(batch)
        words, told = dgates.numel(), 2 * rows.flags(shape, steps)
        marks = torch.full((words + told,), EMPTY, dtype=torch.int16, device=h.device)
        exchange = marks[:words].view_as(dgates)
        flags = marks[words:].view(len(rows.launches), -1)
        dc = torch.zeros(batch, padded, dtype=torch.float32, device=h.device)
        if dc_last is not None:
            dc[:, :hidden] = dc_last
        dbias = torch.empty(batch, 4 * padded, dtype=torch.float32, device=h.device)
        flag = stalled_flag(h.device.index)
        for launch, (start, count, groups) in enumerate(rows.launches):
            kernel = _backward_kernel(shape, rows.tiles, groups, h.device)
            given = [w_t, gates[start:], c[0, start:], dout[0, start:], exchange[0, start:]]
            given += [flags[launch], dgates[0, start:], dc[start:], dbias[start:]]
            kernel(shape.blocks, shape.threads, [*given, steps, count, rows.size, batch, flag])
        del marks, exchange, flags, given  # before the products ask for memory
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
