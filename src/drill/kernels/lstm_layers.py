"""LSTM layers by the persistent kernel, one on top of the other: bfloat16, float32 cell states.

i, f, g, o = gates of  W_ih x_t + b + (W_hh * m) h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

x of a later layer is h of the one below, times a mask that is the same at all steps. Products with
inputs and gradients of weights are matrix products over all steps at once; the recurrence alone is
a kernel of its own.

That kernel leaves half of the device idle. What no step waits for runs there, on a second stream:
weights of later layers are prepared beside the steps of the first one, gradients of weights are
made beside the steps of the layer below.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.lstm_layout import Layout, Shape, cut
from drill.kernels.lstm_parameters import Gradients, Weights
from drill.kernels.lstm_persistent import (
    Marks,
    Prepared,
    layout_on,
    run_backward,
    run_forward,
)
from drill.kernels.masks import draw_mask, masked


@contextmanager
def second_stream(first: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    """A stream that begins where ``first`` is, and which ``first`` waits for at the end.

    However the end comes: memory that is freed then may be asked for at once. So all that both
    streams use is to be memory of ``first``, and held until the end if the second one uses it.
    """
    second = _second_to(first.device_index, first.cuda_stream)
    second.wait_stream(first)
    try:
        yield second
    finally:
        first.wait_stream(second)


@cache
def _second_to(index: int, first: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(torch.device("cuda", index))


class Layer(NamedTuple):
    """What a layer is given."""

    h: Tensor  # (B, H)
    c: Tensor  # (B, H)
    weights: Weights

    @property
    def hidden(self) -> int:
        return self.h.shape[1]


class Kept(NamedTuple):
    """What the backward of a layer reads."""

    inputs: Tensor  # (T B, width)
    mask: Tensor | None  # of the inputs
    seed: Tensor | None  # of the entries that W_hh loses
    w_ih: Tensor  # (4p, width)
    w_hh: Tensor  # (4p, p)
    w_hh_t: Tensor | None  # (p, 4p), where gradients are wanted
    gates: Tensor  # (T B, 4p), activations
    h: Tensor  # (T + 1, B, p)
    c: Tensor  # (T + 1, B, p)


class PersistentLayers(torch.autograd.Function):
    """x (T, B, i), and h, c (B, H) and weights of each layer -> h of the last one (T, B, p), and h
    and c of each after the last step (B, H).

    ``drop`` is the share of the entries of each W_hh that this call loses, ``between`` that of the
    units between two layers, the same at all steps; the others grow by 1 / (1 - share). x and the
    output are bfloat16. They may be wider than i and H, with zeros there.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, drop: float, between: float, *given: Tensor
    ) -> tuple[Tensor, ...]:
        from drill.kernels.lstm_weights import prepare

        steps, batch, _ = x.shape
        layers = _by_layer([tensor.contiguous() for tensor in given])
        shapes = [_layout(x.device, layer.hidden) for layer in layers]
        widths = [x.shape[2], *(shape.hidden for shape in shapes[:-1])]
        rows = cut(batch)
        trained = any(ctx.needs_input_grad)
        seeds = _seeds(len(layers), x.device) if drop > 0.0 else [None for _ in layers]
        masks: list[Tensor | None] = [None] * len(layers)
        ends = [(torch.empty_like(layer.h), torch.empty_like(layer.c)) for layer in layers]
        kept: list[Kept] = []
        ready: list[torch.cuda.Event] = []  # weights of later layers
        first = torch.cuda.current_stream(x.device)

        def prepared(i: int, stream: torch.cuda.Stream) -> Prepared:
            return prepare(
                layers[i].weights,
                layers[i].h,
                layers[i].c,
                steps=steps,
                width=widths[i],
                padded=shapes[i].hidden,
                group=rows.size,
                flags=rows.flags(shapes[i].forward, steps),
                drop=drop,
                seed=seeds[i],
                transposed=trained,
                stream=stream,
            )

        def end(i: int) -> None:
            for last, all_steps in zip(ends[i], (kept[i].h, kept[i].c), strict=True):
                last.copy_(all_steps[steps, :, : layers[i].hidden])

        with second_stream(first) as second:
            made = [prepared(0, first)]
            for i, shape in enumerate(shapes):
                own, mask = made[i], masks[i]
                inputs = x if i == 0 else kept[-1].h[1:]
                if i > 0:
                    first.wait_event(ready[i - 1])
                    inputs = inputs if mask is None else masked(inputs, mask)
                inputs = inputs.reshape(steps * batch, -1)
                gates = torch.mm(inputs, own.w_ih.t(), out_dtype=torch.float32)  # (T B, 4p)
                second.wait_stream(first)
                run_forward(shape.forward, own, gates)
                held = own.w_ih, own.w_hh, own.w_hh_t, gates, own.h, own.c
                kept.append(Kept(inputs, mask, seeds[i], *held))
                for later in range(len(made), len(layers)):
                    made.append(prepared(later, second))
                    if between > 0.0:
                        masks[later] = _drawn((1, batch, widths[later]), between, second)
                    ready.append(second.record_event())
                if i > 0:
                    with torch.cuda.stream(second):
                        end(i - 1)
            end(len(layers) - 1)
        if trained:
            ctx.save_for_backward(*(tensor for each in kept for tensor in each))
        ctx.shapes, ctx.drop = [shape.backward for shape in shapes], drop
        # Not saved, whose later change would be refused: nothing reads their values any more.
        ctx.like = _by_layer([torch.empty_like(tensor, device="meta") for tensor in given])
        ctx.set_materialize_grads(False)
        return kept[-1].h[1:], *(tensor for pair in ends for tensor in pair)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, doutput: Tensor | None, *dends: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        saved, size = ctx.saved_tensors, len(Kept._fields)
        kept = [Kept(*saved[i : i + size]) for i in range(0, len(saved), size)]
        shapes: list[Shape] = ctx.shapes
        like: list[Layer] = ctx.like
        steps, batch, _ = kept[-1].h[1:].shape
        device = kept[-1].h.device
        needs_x, _, _, *needs = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * len(needs)
        first = torch.cuda.current_stream(device)
        # All that the second stream writes is asked for before it begins, and all that it reads
        # is held to the end: in between, memory that is freed may be in use on the other stream.
        rooms = [
            Gradients.room(layer.weights, device, needs[6 * i + 2 : 6 * i + 6])
            for i, layer in enumerate(like)
        ]
        marks = [Marks.room(shape, steps, batch, device) for shape in shapes]
        made: list[tuple[Tensor, Tensor]] = []  # dgates and dbias, the last layer's first
        with second_stream(first) as second:
            dx = torch.zeros_like(kept[-1].h[1:]) if doutput is None else doutput.contiguous()
            marks[-1].fill()
            with torch.cuda.stream(second):
                for each in marks[:-1]:
                    each.fill()
            filled = second.record_event()
            for i in reversed(range(len(kept))):
                own, layer, (dh, dc) = kept[i], like[i], dends[2 * i : 2 * i + 2]
                if i + 1 < len(kept):
                    first.wait_event(filled)
                if dh is not None:
                    dx = dx.clone()
                    dx[-1, :, : layer.hidden] += dh
                if dc is not None:
                    marks[i].dc[:, : layer.hidden] = dc
                assert own.w_hh_t is not None
                second.wait_stream(first)
                made.append(run_backward(shapes[i], own.w_hh_t, own.gates, own.c, dx, marks[i]))
                if i + 1 < len(kept):
                    with torch.cuda.stream(second):
                        _weights_gradients(rooms[i + 1], kept[i + 1], *made[-2], ctx.drop)
                dgates, _ = made[-1]
                if i > 0 or needs_x:
                    dx = (dgates @ own.w_ih).view(steps, batch, -1)
                    dx = dx if own.mask is None else masked(dx, own.mask)
                if needs[6 * i]:
                    first_gates = dgates[:batch]
                    found[6 * i] = (first_gates @ own.w_hh)[:, : layer.hidden].to(layer.h.dtype)
                if needs[6 * i + 1]:
                    found[6 * i + 1] = marks[i].dc[:, : layer.hidden].to(layer.c.dtype)
            _weights_gradients(rooms[0], kept[0], *made[-1], ctx.drop)
        for i, room in enumerate(rooms):
            found[6 * i + 2 : 6 * i + 4] = room.w_ih, room.w_hh
            found[6 * i + 4 : 6 * i + 6] = [
                room.bias if asked else None for asked in needs[6 * i + 4 : 6 * i + 6]
            ]
        return dx if needs_x else None, None, None, *found


def _weights_gradients(
    made: Gradients,
    own: Kept,
    dgates: Tensor,  # (T B, 4p)
    dbias: Tensor,  # (B, 4p)
    drop: float,
) -> None:
    """On the current stream."""
    from drill.kernels.lstm_weights import finish

    batch, padded = own.h.shape[1:]
    before = own.h[:-1].view(-1, padded)  # (T B, p)
    turned = dgates.t()
    finish(
        made,
        None if made.w_ih is None else torch.mm(turned, own.inputs, out_dtype=torch.float32),
        None if made.w_hh is None else torch.mm(turned, before, out_dtype=torch.float32),
        None if made.bias is None else dbias.view(batch, padded, 4),
        drop=drop,
        seed=own.seed,
    )


def _by_layer(given: Sequence[Tensor]) -> list[Layer]:
    sixes = (given[i : i + 6] for i in range(0, len(given), 6))
    return [Layer(h, c, Weights(*weights)) for h, c, *weights in sixes]


def _layout(device: torch.device, hidden: int) -> Layout:
    found = layout_on(device, hidden)
    assert found is not None
    return found


def _seeds(count: int, device: torch.device) -> list[Tensor]:
    """(1,) each, drawn on the device: from the host they would be the same in every replay.

    They lie 16 bytes apart, so that Triton takes one kernel for all.
    """
    return [pair[:1] for pair in torch.randint(2**62, (count, 2), device=device)]


def _drawn(shape: tuple[int, ...], p: float, stream: torch.cuda.Stream) -> Tensor:
    """A mask, drawn on this stream, in memory of the current one."""
    mask = torch.empty(shape, dtype=torch.float32, device=stream.device)
    with torch.cuda.stream(stream):
        return mask.copy_(draw_mask(shape, p, mask))
