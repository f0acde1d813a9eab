"""LSTM layers by the persistent kernel, one on top of the other: bfloat16, float32 cell states.

i, f, g, o = gates of  W_ih x_t + b + (W_hh * m) h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

x of a later layer is h of the one below, times a mask that is the same at all steps. Products with
inputs and gradients of weights are matrix products over all steps at once; the recurrence alone is
a kernel of its own.

That kernel leaves half of the device idle. What no step waits for runs there, on a second stream:
weights of later layers are prepared beside the steps of the first one, gradients of weights are
made beside the steps of the layer below. Where a pass is recorded, the last two layers fit on the
device together, the lower one has 577 units or more and the sequence 35 steps, one follows the
other through it, a piece behind (``lstm_together``); the first pass of a shape that is launched
loads the products that this takes.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.lstm_layout import Layout, cut
from drill.kernels.lstm_parameters import Gradients, Weights
from drill.kernels.lstm_persistent import (
    Dgates,
    Marks,
    Prepared,
    Span,
    layout_on,
    run_backward,
    run_forward,
)
from drill.kernels.lstm_together import go_together, loads_pieces, pieces
from drill.kernels.masks import draw_mask
from drill.kernels.second_stream import second_stream


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


def persistent_layers(x: Tensor, drop: float, between: float, *given: Tensor) -> tuple[Tensor, ...]:
    """x (T, B, i), and h, c (B, H) and weights of each layer -> h of the last one (T, B, p), and h
    and c of each after the last step (B, H).

    ``drop`` is the share of the entries of each W_hh that this call loses, ``between`` that of the
    units between two layers, the same at all steps; the others grow by 1 / (1 - share). x and the
    output are bfloat16. They may be wider than i and H, with zeros there.
    """
    lowest = _lowest_trained(x, given)
    made: tuple[Tensor, ...] = PersistentLayers.apply(x, drop, between, lowest, *given)
    return made


def _lowest_trained(x: Tensor, given: Sequence[Tensor]) -> int:
    """The first layer that backward goes through: it, or what is below, asks for a gradient.

    As many as there are layers where nobody asks.
    """
    layers = len(given) // 6
    if not torch.is_grad_enabled():  # within ``apply`` Parameters would seem to ask all the same
        return layers
    if x.requires_grad:
        return 0
    return next((i // 6 for i, each in enumerate(given) if each.requires_grad), layers)


class PersistentLayers(torch.autograd.Function):
    """``persistent_layers``; those from ``lowest`` on are kept for their backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, drop: float, between: float, lowest: int, *given: Tensor
    ) -> tuple[Tensor, ...]:
        from drill.kernels.lstm_weights import prepare

        steps, batch, _ = x.shape
        layers = _by_layer([tensor.contiguous() for tensor in given])
        shapes = [_layout(x.device, layer.hidden) for layer in layers]
        widths = [x.shape[2], *(shape.hidden for shape in shapes[:-1])]
        rows = cut(batch)
        seeds = _seeds(len(layers), x.device) if drop > 0.0 else [None for _ in layers]
        masks: list[Tensor | None] = [None] * len(layers)
        ends = [(torch.empty_like(layer.h), torch.empty_like(layer.c)) for layer in layers]
        kept: list[Kept] = []
        ready: list[torch.cuda.Event] = []  # weights of later layers
        together, loads = go_together(shapes, x), loads_pieces("forward", shapes, x)
        first = torch.cuda.current_stream(x.device)
        # Backward alone reads activations. Those of layers that nobody trains have one place, where
        # such layers run one after the other.
        passing = range(min(lowest, len(layers) - together))
        widest = max((4 * shapes[i].hidden for i in passing), default=0)
        place = torch.empty(steps * batch * widest, dtype=torch.float32, device=x.device)

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
                transposed=i >= lowest,
                stream=stream,
            )

        def keep(i: int) -> None:
            own, below = made[i], x if i == 0 else kept[-1].h[1:]
            inputs = below if masks[i] is None else torch.empty_like(below)
            size = steps * batch, 4 * shapes[i].hidden
            gates = place[: math.prod(size)].view(size) if i in passing else place.new_empty(size)
            held = own.w_ih, own.w_hh, own.w_hh_t, gates, own.h, own.c
            kept.append(Kept(inputs.reshape(steps * batch, -1), masks[i], seeds[i], *held))

        # The rest on the current stream.
        def multiply(i: int, span: Span) -> None:
            own, piece = kept[i], slice(span.begin * batch, span.end * batch)
            inputs, gates = own.inputs[piece], own.gates[piece]
            if own.mask is not None:
                below = kept[i - 1].h[1 + span.begin : 1 + span.end]
                torch.mul(below, own.mask, out=inputs.view_as(below))
            torch.mm(inputs, own.w_ih.t(), out_dtype=torch.float32, out=gates)

        def recur(i: int, span: Span) -> None:
            run_forward(shapes[i].forward, made[i], kept[i].gates, span)

        def end(i: int) -> None:
            for last, all_steps in zip(ends[i], (kept[i].h, kept[i].c), strict=True):
                last.copy_(all_steps[steps, :, : layers[i].hidden])

        with second_stream(first) as second:
            made = [prepared(0, first)]
            for i in range(len(layers) - together):
                followed = together and i + 2 == len(layers)
                if i > 0:
                    first.wait_event(ready[i - 1])
                keep(i)
                if loads and i + 2 >= len(layers):
                    for span in pieces(steps):
                        multiply(i, span)
                for span in pieces(steps) if followed else [Span(0, steps)]:
                    multiply(i, span)
                    second.wait_stream(first)
                    recur(i, span)
                    for later in range(len(made), len(layers)):
                        made.append(prepared(later, second))
                        if between > 0.0:
                            masks[later] = _drawn((1, batch, widths[later]), between, second)
                        ready.append(second.record_event())
                    if followed:
                        if span.begin == 0:
                            keep(i + 1)
                        second.wait_stream(first)
                        with torch.cuda.stream(second):
                            multiply(i + 1, span)
                            recur(i + 1, span)
                with torch.cuda.stream(second):
                    if i > 0:
                        end(i - 1)
                    if followed:
                        end(i + 1)
            end(len(layers) - 1 - together)
        ctx.save_for_backward(*(tensor for each in kept[lowest:] for tensor in each))
        ctx.layouts, ctx.lowest, ctx.drop = shapes[lowest:], lowest, drop
        # Not saved, whose later change would be refused: nothing reads their values any more.
        trained = given[6 * lowest :]
        ctx.like = _by_layer([torch.empty_like(tensor, device="meta") for tensor in trained])
        ctx.set_materialize_grads(False)
        return kept[-1].h[1:], *(tensor for pair in ends for tensor in pair)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, doutput: Tensor | None, *dends: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        needs_x, _, _, _, *needs = ctx.needs_input_grad
        # Layers below the lowest are no part of what follows: those above are a stack of their own.
        lowest: int = ctx.lowest
        needs, dends = needs[6 * lowest :], dends[2 * lowest :]
        layouts: list[Layout] = ctx.layouts
        like: list[Layer] = ctx.like
        saved, size = ctx.saved_tensors, len(Kept._fields)
        kept = [Kept(*saved[i : i + size]) for i in range(0, len(saved), size)]
        shapes = [each.backward for each in layouts]
        steps, batch, _ = kept[-1].h[1:].shape
        device = kept[-1].h.device
        found: list[Tensor | None] = [None] * len(needs)
        first = torch.cuda.current_stream(device)
        # All that the second stream writes is asked for before it begins, and all that it reads
        # is held to the end: in between, memory that is freed may be in use on the other stream.
        rooms = [
            Gradients.room(layer.weights, device, needs[6 * i + 2 : 6 * i + 6])
            for i, layer in enumerate(like)
        ]
        marks = [Marks.room(shape, steps, batch, device) for shape in shapes]
        made = [Dgates.room(shape, steps, batch, device) for shape in shapes]
        dx = torch.empty_like(kept[0].inputs).view(steps, batch, -1) if needs_x else None
        dout = [torch.empty_like(own.h[1:]) for own in kept]
        filled: dict[int, torch.cuda.Event] = {}  # marks of all layers but the last
        whole = Span(0, steps)
        together = go_together(layouts, dout[-1])
        loads = loads_pieces("backward", layouts, dout[-1])

        # These on the current stream.
        def recur(i: int, span: Span) -> None:
            own, (dh, dc) = kept[i], dends[2 * i : 2 * i + 2]
            assert own.w_hh_t is not None
            if span.end == steps:
                if i in filled:
                    torch.cuda.current_stream(device).wait_event(filled[i])
                if dh is not None:
                    dout[i][-1, :, : like[i].hidden] += dh
                if dc is not None:
                    marks[i].dc[:, : like[i].hidden] = dc
            given = own.w_hh_t, own.gates, own.c, dout[i], marks[i], made[i]
            run_backward(shapes[i], *given, span)

        def hand_down(i: int, span: Span) -> None:
            own, dgates = kept[i], made[i].of_steps
            into = dout[i - 1] if i > 0 else dx
            if into is not None:
                below = into[span.begin : span.end]
                piece = dgates[span.begin * batch : span.end * batch]
                torch.mm(piece, own.w_ih, out=below.view(len(piece), -1))
                if own.mask is not None:
                    torch.mul(below, own.mask, out=below)
            if span.begin == 0 and needs[6 * i]:
                dh = (dgates[:batch] @ own.w_hh)[:, : like[i].hidden]
                found[6 * i] = dh.to(like[i].h.dtype)
            if span.begin == 0 and needs[6 * i + 1]:
                found[6 * i + 1] = marks[i].dc[:, : like[i].hidden].to(like[i].c.dtype)

        with second_stream(first) as second:
            if doutput is None:
                dout[-1].zero_()
            elif dends[-2] is None:
                dout[-1] = doutput.contiguous()
            else:
                dout[-1].copy_(doutput)
            marks[-1].fill()
            with torch.cuda.stream(second):
                for i in reversed(range(len(kept) - 1)):
                    marks[i].fill()
                    filled[i] = second.record_event()
            layers = list(reversed(range(len(kept))))
            waiting: list[int] = []  # for the gradients of their weights
            if together:
                top, below, *layers = layers
                for span in reversed(pieces(steps)):
                    recur(top, span)
                    hand_down(top, span)
                    second.wait_stream(first)
                    with torch.cuda.stream(second):
                        recur(below, span)
                first.wait_stream(second)
                hand_down(below, whole)
                waiting = [top, below]
            for i in layers:
                second.wait_stream(first)
                recur(i, whole)
                with torch.cuda.stream(second):
                    for above in waiting:
                        _weights_gradients(rooms[above], kept[above], made[above], ctx.drop)
                if loads and i + 1 == len(kept):
                    for span in pieces(steps):
                        hand_down(i, span)
                hand_down(i, whole)
                waiting = [i]
            for above in waiting:
                _weights_gradients(rooms[above], kept[above], made[above], ctx.drop)
        for i, room in enumerate(rooms):
            found[6 * i + 2 : 6 * i + 4] = room.w_ih, room.w_hh
            found[6 * i + 4 : 6 * i + 6] = [
                room.bias if asked else None for asked in needs[6 * i + 4 : 6 * i + 6]
            ]
        frozen = [None] * (6 * lowest)
        return dx, None, None, None, *frozen, *found


def _weights_gradients(
    made: Gradients,
    own: Kept,
    dgates: Dgates,
    drop: float,
) -> None:
    """On the current stream."""
    from drill.kernels.lstm_weights import finish

    batch, padded = own.h.shape[1:]
    before = own.h[:-1].view(-1, padded)  # (T B, p)
    turned = dgates.of_steps.t()
    finish(
        made,
        None if made.w_ih is None else torch.mm(turned, own.inputs, out_dtype=torch.float32),
        None if made.w_hh is None else torch.mm(turned, before, out_dtype=torch.float32),
        None if made.bias is None else dgates.of_bias.view(batch, padded, 4),
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
