"""LSTM layers forward: what is around their recurrences, on two streams.

First, the current one: inputs of a layer times W_ih, then its steps.
Second: weights of later layers are prepared during the steps of the lowest one, and the last layer
runs there if it overlaps with the one below.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drill.kernels.lstm.persistent.layout import Layout, cut
from drill.kernels.lstm.persistent.recurrence import (
    ForwardInputs,
    Span,
    can_interleave,
    layout_on,
    loads_pieces,
    pieces,
    run_forward,
)
from drill.kernels.lstm.weights import Layer
from drill.kernels.runtime.dropout_masks import draw_mask, drawn_seeds
from drill.kernels.runtime.overlap import mark_start
from drill.kernels.runtime.streams import second_stream


class SavedLayer(NamedTuple):
    """The tensors of a layer that its backward reads."""

    inputs: Tensor  # (T B, width)
    mask: Tensor | None  # of the inputs
    seed: Tensor | None  # of the entries that W_hh loses
    w_ih: Tensor  # (4p, width)
    w_hh: Tensor  # (4p, p)
    w_hh_t: Tensor | None  # (p, 4p), where gradients are wanted
    gates: Tensor  # (T B, 4p), activations
    h: Tensor  # (T + 1, B, p)
    c: Tensor  # (T + 1, B, p)


class ForwardPass:
    """After ``run``, ``saved`` is filled, and ``ends``: h and c of each layer after the last step.

    Layers from ``lowest`` on are trained; ``drop`` and ``between`` as of ``persistent_layers``.
    """

    def __init__(
        self, x: Tensor, layers: Sequence[Layer], lowest: int, drop: float, between: float
    ) -> None:
        self.x, self.layers = x, layers
        self.lowest, self.drop, self.between = lowest, drop, between
        self.steps, self.batch, _ = x.shape
        self.layouts = [_layout(x.device, layer.hidden) for layer in layers]
        self.widths = [x.shape[2], *(each.hidden for each in self.layouts[:-1])]
        seeds = drawn_seeds(len(layers), x.device) if drop > 0.0 else [None for _ in layers]
        self.seeds: Sequence[Tensor | None] = seeds
        self.masks: list[Tensor | None] = [None] * len(layers)
        self.ends = [(torch.empty_like(layer.h), torch.empty_like(layer.c)) for layer in layers]
        self.made: list[ForwardInputs] = []
        self.saved: list[SavedLayer] = []
        self.interleave = can_interleave(self.layouts, x)
        self.loads = loads_pieces("forward", self.layouts, x)

    def run(self) -> None:
        count, whole = len(self.layers), Span(0, self.steps)
        first = torch.cuda.current_stream(self.x.device)
        mark_start(first)
        ready: list[torch.cuda.Event] = []  # weights of later layers
        with second_stream(first) as second:
            self.made.append(self._prepared(0, first))
            for i in range(count - self.interleave):
                followed = self.interleave and i + 2 == count
                if i > 0:
                    first.wait_event(ready[i - 1])
                self._save(i)
                if self.loads and i + 2 >= count:
                    for span in pieces(self.steps):
                        self._multiply(i, span)
                for span in pieces(self.steps) if followed else [whole]:
                    self._multiply(i, span)
                    second.wait_stream(first)
                    self._recur(i, span)
                    for later in range(len(self.made), count):
                        self.made.append(self._prepared(later, second))
                        if self.between > 0.0:
                            shape = (1, self.batch, self.widths[later])
                            self.masks[later] = _drawn(shape, self.between, second)
                        ready.append(second.record_event())
                    if followed:
                        if span.begin == 0:
                            self._save(i + 1)
                        second.wait_stream(first)
                        with torch.cuda.stream(second):
                            self._multiply(i + 1, span)
                            self._recur(i + 1, span)
                with torch.cuda.stream(second):
                    if i > 0:
                        self._end(i - 1)
                    if followed:
                        self._end(i + 1)
            self._end(count - 1 - self.interleave)

    def _prepared(self, i: int, stream: torch.cuda.Stream) -> ForwardInputs:
        from drill.kernels.lstm.persistent.pack_weights import prepare

        rows, layer, layout = cut(self.batch), self.layers[i], self.layouts[i]
        return prepare(
            layer.weights,
            layer.h,
            layer.c,
            steps=self.steps,
            width=self.widths[i],
            padded=layout.hidden,
            group=rows.size,
            flags=rows.flags(layout.forward, self.steps),
            drop=self.drop,
            seed=self.seeds[i],
            transposed=i >= self.lowest,
            stream=stream,
        )

    def _save(self, i: int) -> None:
        own, mask, below = self.made[i], self.masks[i], self.x if i == 0 else self.saved[-1].h[1:]
        inputs = below if mask is None else torch.empty_like(below)
        rows = self.steps * self.batch
        gates = own.c.new_empty(rows, 4 * self.layouts[i].hidden)
        rest = own.w_ih, own.w_hh, own.w_hh_t, gates, own.h, own.c
        self.saved.append(SavedLayer(inputs.reshape(rows, -1), mask, self.seeds[i], *rest))

    # The rest on the current stream.
    def _multiply(self, i: int, span: Span) -> None:
        own, piece = self.saved[i], slice(span.begin * self.batch, span.end * self.batch)
        inputs, gates = own.inputs[piece], own.gates[piece]
        if own.mask is not None:
            below = self.saved[i - 1].h[1 + span.begin : 1 + span.end]
            torch.mul(below, own.mask, out=inputs.view_as(below))
        torch.mm(inputs, own.w_ih.t(), out_dtype=torch.float32, out=gates)

    def _recur(self, i: int, span: Span) -> None:
        run_forward(self.layouts[i].forward, self.made[i], self.saved[i].gates, span)

    def _end(self, i: int) -> None:
        for last, all_steps in zip(self.ends[i], (self.saved[i].h, self.saved[i].c), strict=True):
            last.copy_(all_steps[self.steps, :, : self.layers[i].hidden])


def _layout(device: torch.device, hidden: int) -> Layout:
    found = layout_on(device, hidden)
    assert found is not None
    return found


def _drawn(shape: tuple[int, ...], p: float, stream: torch.cuda.Stream) -> Tensor:
    """A mask, drawn on this stream, in memory of the current one."""
    mask = torch.empty(shape, dtype=torch.float32, device=stream.device)
    with torch.cuda.stream(stream):
        return mask.copy_(draw_mask(shape, p, mask))
