"""LSTM layers backward: what is around their recurrences, on two streams.

First, the current one: steps of a layer, then their dgates times W_ih, for the layer below.
Second: gradients of weights are computed during the steps of the layer below, and the last layer
but one runs there if it overlaps with the last.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drill.kernels.lstm.persistent.layout import Layout
from drill.kernels.lstm.persistent.recurrence import (
    Dgates,
    Marks,
    Span,
    can_interleave,
    loads_pieces,
    pieces,
    run_backward,
)
from drill.kernels.lstm.persistent.stack_forward import SavedLayer
from drill.kernels.lstm.weights import Gradients, Layer
from drill.kernels.runtime.streams import second_stream


class BackwardPass:
    """After ``run``, ``dx`` and ``found`` are set: the gradients of x and of the layers' inputs."""

    def __init__(
        self,
        saved: Sequence[SavedLayer],
        layouts: Sequence[Layout],
        like: Sequence[Layer],  # for shapes and dtypes
        drop: float,
        needs_x: bool,
        needs: Sequence[bool],  # h, c and weights of each layer
    ) -> None:
        self.saved, self.layouts, self.like, self.drop = saved, layouts, like, drop
        self.needs = needs
        self.found: list[Tensor | None] = [None] * len(needs)
        output = saved[-1].h[1:]
        self.steps, self.batch, _ = output.shape
        device, shapes = output.device, [each.backward for each in layouts]
        # All that the second stream writes is asked for before it begins, and all that it reads
        # is referenced to the end: freed memory may still be in use on the other stream.
        self.gradients = [Gradients.empty(layer.weights, device) for layer in like]
        self.marks = [Marks.empty(shape, self.steps, self.batch, device) for shape in shapes]
        self.made = [Dgates.empty(shape, self.steps, self.batch, device) for shape in shapes]
        below = saved[0].inputs
        self.dx = torch.empty_like(below).view(*output.shape[:2], -1) if needs_x else None
        self.dout = [torch.empty_like(own.h[1:]) for own in saved[:-1]]
        self.filled: dict[int, torch.cuda.Event] = {}  # marks of all layers but the last
        self.interleave = can_interleave(layouts, output)
        self.loads = loads_pieces("backward", layouts, output)

    def run(self, doutput: Tensor | None, dends: Sequence[Tensor | None]) -> None:
        """``dends`` are h and c of each layer."""
        count, whole = len(self.saved), Span(0, self.steps)
        first = torch.cuda.current_stream(self.saved[-1].h.device)
        with second_stream(first) as second:
            output = self.saved[-1].h[1:]
            if doutput is None:
                self.dout.append(torch.zeros_like(output))
            elif dends[-2] is None:
                self.dout.append(doutput.contiguous())
            else:  # that of the last state is added to it
                self.dout.append(torch.empty_like(output).copy_(doutput))
            self.marks[-1].fill()
            with torch.cuda.stream(second):
                for i in reversed(range(count - 1)):
                    self.marks[i].fill()
                    self.filled[i] = second.record_event()
            layers = list(reversed(range(count)))
            waiting: list[int] = []  # for the gradients of their weights
            if self.interleave:
                top, below, *layers = layers
                for span in reversed(pieces(self.steps)):
                    self._recur(top, span, dends)
                    self._hand_down(top, span)
                    second.wait_stream(first)
                    with torch.cuda.stream(second):
                        self._recur(below, span, dends)
                first.wait_stream(second)
                self._hand_down(below, whole)
                waiting = [top, below]
            for i in layers:
                second.wait_stream(first)
                self._recur(i, whole, dends)
                with torch.cuda.stream(second):
                    self._make_gradients(waiting)
                if self.loads and i + 1 == count:
                    for span in pieces(self.steps):
                        self._hand_down(i, span)
                self._hand_down(i, whole)
                waiting = [i]
            self._make_gradients(waiting)
        for i, made in enumerate(self.gradients):
            self.found[6 * i + 2 : 6 * i + 6] = *made, made.bias  # of both biases

    # These on the current stream.
    def _recur(self, i: int, span: Span, dends: Sequence[Tensor | None]) -> None:
        own, hidden, (dh, dc) = self.saved[i], self.like[i].hidden, dends[2 * i : 2 * i + 2]
        assert own.w_hh_t is not None
        if span.end == self.steps:
            if i in self.filled:
                torch.cuda.current_stream(own.h.device).wait_event(self.filled[i])
            if dh is not None:
                self.dout[i][-1, :, :hidden] += dh
            if dc is not None:
                self.marks[i].dc[:, :hidden] = dc
        given = own.w_hh_t, own.gates, own.c, self.dout[i], self.marks[i], self.made[i]
        run_backward(self.layouts[i].backward, *given, span)

    def _hand_down(self, i: int, span: Span) -> None:
        own, like, dgates = self.saved[i], self.like[i], self.made[i].of_steps
        into = self.dout[i - 1] if i > 0 else self.dx
        if into is not None:
            below = into[span.begin : span.end]
            piece = dgates[span.begin * self.batch : span.end * self.batch]
            torch.mm(piece, own.w_ih, out=below.view(len(piece), -1))
            if own.mask is not None:
                torch.mul(below, own.mask, out=below)
        if span.begin == 0 and self.needs[6 * i]:
            dh = (dgates[: self.batch] @ own.w_hh)[:, : like.hidden]
            self.found[6 * i] = dh.to(like.h.dtype)
        if span.begin == 0 and self.needs[6 * i + 1]:
            self.found[6 * i + 1] = self.marks[i].dc[:, : like.hidden].to(like.c.dtype)

    def _make_gradients(self, layers: Sequence[int]) -> None:
        for i in layers:
            weights_gradients(self.gradients[i], self.saved[i], self.made[i], self.drop)


def weights_gradients(made: Gradients, own: SavedLayer, dgates: Dgates, drop: float) -> None:
    """On the current stream."""
    from drill.kernels.lstm.persistent.pack_weights import finish

    batch, padded = own.h.shape[1:]
    before = own.h[:-1].view(-1, padded)  # (T B, p)
    turned = dgates.of_steps.t()
    finish(
        made,
        torch.mm(turned, own.inputs, out_dtype=torch.float32),
        torch.mm(turned, before, out_dtype=torch.float32),
        dgates.of_bias.view(batch, padded, 4),
        drop=drop,
        seed=own.seed,
    )
