"""The time steps of an LSTM layer, a product and a kernel each, replayed as CUDA graphs.

Launched one by one, steps of a few microseconds would wait for the host. So runs of 1, 2, 4, .. 64
steps are captured once and replayed: 70 steps are 64 and 4 and 2. A graph finds the tensors of a
call, and the step to begin at, through a table (``step_triton``). So a few graphs serve all
lengths, nothing but W_hh and states is copied, and two forwards before a backward share nothing.

Shapes as in ``step_triton``; w is W_hh as (4 P, P).
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from threading import RLock
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from drill.kernels.lstm.stepwise.step_triton import (
    TABLE_ENTRIES,
    UNITS,
    backward_step,
    forward_step,
    write_table,
)

LONGEST = 64
"""Steps of the longest graph."""

MAXIMUM_LOOPS = 24
"""Most loops that are cached with their graphs: one per direction, size, batch and stream."""

AnyLoop = TypeVar("AnyLoop", bound="Loop")
Tensors = tuple[Tensor, Tensor, Tensor, Tensor]


def pieces(steps: int) -> list[int]:
    """Powers of two that add up to ``steps``, the greatest first: 70 -> 64, 4, 2."""
    parts = [LONGEST] * (steps // LONGEST)
    rest = steps % LONGEST
    return parts + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b in float32, whatever the operands; three-dimensional ones are stacks of matrices."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.is_cuda and a.dtype != torch.float32:
        return product(a, b, out_dtype=torch.float32, out=out)
    return product(a.float(), b.float(), out=out)


class Loop(ABC):
    """One direction of a layer: the buffers of its products, and the graphs that use them."""

    direction: int
    inner: Tensor  # float32, what a product gives
    now: Tensor  # dtype of w, what a product reads

    def __init__(self, w: Tensor, batch: int, hidden: int, masked: bool, capped: bool) -> None:
        self.w, self.batch, self.hidden, self.padded = w, batch, hidden, w.shape[1]
        self.grid = (batch, triton.cdiv(self.padded, UNITS))
        self.kind = {"MASKED": masked, "CAPPED": capped, "UNITS": UNITS}
        empty = w.new_zeros(batch, self.padded, dtype=torch.float32)
        self.mask = empty if masked else None  # of h_t where the next step reads it
        self.table = torch.empty(TABLE_ENTRIES, dtype=torch.int64, device=w.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] | None = None  # by their steps

    @abstractmethod
    def step(self, offset: int) -> None:
        """One product and one kernel."""

    @abstractmethod
    def warmup_tensors(self) -> Tensors:
        """Tensors of a single step, to warm up with."""

    def run(self, first: int, steps: int, tensors: Tensors) -> None:
        """All steps from ``first`` on."""
        self._begin_at(first, tensors)
        if self.graphs is None:
            self._launch(steps)
        else:
            for piece in pieces(steps):
                self.graphs[piece].replay()

    def _begin_at(self, step: int, tensors: Tensors) -> None:
        """Start the kernels at this step of these contiguous tensors."""
        write_table[(1,)](self.table, step, *(tensor.data_ptr() for tensor in tensors))

    def _launch(self, steps: int) -> None:
        for i in range(steps):
            self.step(self.direction * i)
        self.table[0].add_(self.direction * steps)

    def capture(self, steps: int) -> None:
        """Capture the graphs that this many steps need. Overwrites all buffers but w."""
        if self.graphs is None:
            self.graphs = {}
        missing = sorted(set(pieces(steps)) - self.graphs.keys())
        for piece in missing:
            current = torch.cuda.current_stream(self.w.device)
            aside = _stream_for(self.w.device, current.cuda_stream)
            aside.wait_stream(current)
            with torch.cuda.stream(aside):
                # Compiles, loads and allocates, none of which a capture allows.
                tensors = self.warmup_tensors()
                self._begin_at(0, tensors)
                self._launch(1)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
                self._launch(piece)
            current.wait_stream(aside)
            self.graphs[piece] = graph


class ForwardLoop(Loop):
    """h_t from W_hh h_{t-1}; tensors: bias, gates, h and c."""

    direction = 1

    def __init__(self, w: Tensor, batch: int, hidden: int, masked: bool, capped: bool) -> None:
        super().__init__(w, batch, hidden, masked, capped)
        self.now = w.new_zeros(batch, self.padded)  # h_{t-1}, masked
        self.inner = w.new_zeros(batch, len(w), dtype=torch.float32)

    def step(self, offset: int) -> None:
        multiply(self.now, self.w.t(), out=self.inner)
        tensors, sizes = (self.inner, self.now, self.mask), (self.batch, self.hidden, self.padded)
        forward_step[self.grid](self.table, *tensors, offset, *sizes, **self.kind)

    def warmup_tensors(self) -> Tensors:
        state = self.now.new_zeros(2, *self.now.shape)
        bias = self.inner.new_zeros(4 * self.hidden)
        return bias, torch.zeros_like(self.inner), state, state.float()


class BackwardLoop(Loop):
    """d gates_t, and what it sends to h_{t-1}; tensors: activations, c, d h and d gates."""

    direction = -1

    def __init__(self, w: Tensor, batch: int, hidden: int, masked: bool, capped: bool) -> None:
        super().__init__(w, batch, hidden, masked, capped)
        self.now = w.new_zeros(batch, len(w))  # d gates_t
        # One product a gate: a single one over all of them would need a second kernel for its sum.
        self.inner = w.new_zeros(4, batch, self.padded, dtype=torch.float32)
        self.dc = torch.zeros_like(self.inner[0])  # in the end d c_0

    def step(self, offset: int) -> None:
        tensors = self.inner, self.now, self.dc, self.mask
        sizes = self.batch, self.hidden, self.padded
        backward_step[self.grid](self.table, *tensors, offset, *sizes, **self.kind)
        by_gate = self.now.view(self.batch, 4, -1).transpose(0, 1)  # (4, B, P)
        multiply(by_gate, self.w.view(4, *self.dc.shape[1:], -1), out=self.inner)

    def warmup_tensors(self) -> Tensors:
        states = self.inner.new_zeros(2, *self.dc.shape)
        activations = torch.zeros_like(self.now, dtype=torch.float32)
        return activations, states, states[0].to(self.now.dtype), torch.zeros_like(self.now)


@contextmanager
def acquire_loop(
    kind: type[AnyLoop],
    w: Tensor,
    batch: int,
    hidden: int,
    steps: int,
    mask: Tensor | None,  # (B, H)
    capped: bool,
) -> Iterator[AnyLoop]:
    """A loop with these weights, ready for this many steps; its other buffers are not cleared.

    On a GPU a cached one with its graphs, nobody else's until the block ends. A new one that
    launches step by step where somebody else is capturing, since their graph will go on using it,
    and on a CPU, where Triton interprets.
    """
    stream, options = _replaying_stream(w.device), (batch, hidden, mask is not None, capped)
    with _lock if stream is not None else nullcontext():
        if stream is None:
            loop = kind(w, *options)
        else:
            loop = _cached_loop(kind, w, stream, *options)
            loop.capture(steps)
            loop.w.copy_(w)
        if mask is not None and loop.mask is not None:
            loop.mask[:, :hidden] = mask
        yield loop


_loops: OrderedDict[tuple[object, ...], Loop] = OrderedDict()
_lock = RLock()


def _replaying_stream(device: torch.device) -> int | None:
    """The stream to replay graphs on; None if steps are launched one by one."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream(device).cuda_stream


def _cached_loop(kind: type[AnyLoop], w: Tensor, stream: int, *options: Any) -> AnyLoop:
    # A stream does one thing after the other; two may not share buffers.
    key = (kind, w.device.index, stream, w.dtype, *options)
    loop = _loops.get(key)
    if not isinstance(loop, kind):
        loop = kind(torch.zeros_like(w), *options)
        _loops[key] = loop
        while len(_loops) > MAXIMUM_LOOPS:
            _loops.popitem(last=False)
    _loops.move_to_end(key)
    return loop


@cache
def _stream_for(device: torch.device, stream: int) -> torch.cuda.Stream:
    """The stream on which graphs for ``stream`` are captured; cuBLAS has a workspace for each."""
    return torch.cuda.Stream(device)
