"""The recurrence of an LSTM layer in one launch: bfloat16 products, float32 sums and cell states.

gates_t = given_t + W_hh h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

It is in CUDA, see ``recurrence.cuh``; what is around it in a layer is in ``stack``.
``pack_weights`` orders rows of weights by unit, then by gate, and pads units to a size that the
kernel's blocks share evenly.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from drill.kernels.lstm.persistent.layout import (
    CLUSTER,
    LARGEST_BATCH,
    Cut,
    Layout,
    Shape,
    cut,
    layout,
)
from drill.kernels.runtime.hopper import SHARED, hopper_missing
from drill.kernels.runtime.nvrtc import Argument, CompileError, DriverError, Kernel, load_kernel
from drill.kernels.runtime.stalls import stalled_flag

OCCUPANCY_SOURCE = Path(__file__).with_name("cluster_occupancy.cu")
EMPTY = -1  # as int16: no conversion to bfloat16 gives it


def layout_on(device: torch.device, hidden: int) -> Layout | None:
    """``layout`` with the sizes of a Hopper GPU."""
    clusters = _cluster_count(device.index or 0)
    return None if isinstance(clusters, str) else layout(hidden, clusters)


@cache
def _cluster_count(index: int) -> int | str:
    """Clusters of eight blocks that run at once, each block on a multiprocessor of its own.

    Or why nothing can be compiled and loaded there that would use them.
    """
    device = torch.device("cuda", index)
    try:
        with torch.cuda.device(index):
            kernel = load_kernel(OCCUPANCY_SOURCE, "cluster_of_eight", {}, SHARED, device)
            processors = torch.cuda.get_device_properties(index).multi_processor_count
            return kernel.clusters_at_once(processors // CLUSTER * CLUSTER, 256)
    except (CompileError, DriverError) as error:
        return str(error)


def unsupported_reason(device: torch.device, hidden: int, batch: int) -> str | None:
    """Why this device cannot run it at this size; None if it can."""
    if obstacle := hopper_missing(device):
        return obstacle
    if batch > LARGEST_BATCH:
        return f"a batch of {batch} is over {LARGEST_BATCH}"
    clusters = _cluster_count(device.index or 0)
    if isinstance(clusters, str):
        return clusters
    if layout(hidden, clusters) is None:
        return f"hidden size {hidden} does not fit the registers of {clusters} clusters of 8 blocks"
    return None


def _kernel(shape: Shape, rows: Cut, device: torch.device) -> Kernel:
    name = "backward" if shape.backward else "forward"
    defines = {"H": shape.hidden, "TILES": rows.tiles, "GROUPS": rows.groups}
    defines["BACKWARD"] = int(shape.backward)
    source, shared = Path(__file__).with_name(f"{name}.cu"), shape.shared(rows.tiles, rows.groups)
    return load_kernel(source, f"lstm_{name}", defines, shared, device)


class Span(NamedTuple):
    """The steps of a launch; a pass may take several launches."""

    begin: int
    end: int


def fit_together(one: Layout, other: Layout, device: torch.device) -> bool:
    """Whether recurrences of both run on the device at once.

    By counting blocks. Small clusters of the one may lie so that a large cluster of the other finds
    no eight multiprocessors together, and to count them so would refuse 1150 units next to 400 on
    132. Then the later launch waits for the earlier one: time is lost, no more. Blocks are issued
    in the order in which launches arrive, so the earlier one always has all of its own. That holds
    as long as no launch has priority over another: one that came later and found no room could keep
    out what is left of the earlier one, whose blocks wait for one another. It gained nothing.
    """
    clusters = _cluster_count(device.index or 0)
    assert isinstance(clusters, int)
    return all(
        -(-a.blocks // CLUSTER) + -(-b.blocks // CLUSTER) <= clusters
        for a, b in zip(one, other, strict=True)
    )


class ForwardInputs(NamedTuple):
    """The inputs of a forward recurrence; p is the padded hidden size."""

    w_ih: Tensor  # (4p, width)
    w_hh: Tensor  # (4p, p)
    w_hh_t: Tensor | None  # (p, 4p), where gradients are wanted
    bias: Tensor  # (p, 4), float32
    h: Tensor  # (T + 1, B, p), bfloat16: the initial state; the rest is not written
    c: Tensor  # (T + 1, B, p), float32: the same
    exchange: (
        Tensor  # (T, B, p), bfloat16: the initial state by groups (p / 8, rows, 8), then marks
    )
    flags: Tensor  # int32, marks too


def run_forward(shape: Shape, made: ForwardInputs, gates: Tensor, span: Span) -> None:
    """Write h and c of these steps, and put activations in place of what the inputs gave.

    gates (T B, 4p), by unit, then by gate
    """
    _, batch, _ = made.c.shape
    steps, device = len(made.c) - 1, made.c.device
    rows = cut(batch)
    t, later = span.begin, int(span.end < steps)
    given = [made.w_hh, made.bias, gates[t * batch :], made.exchange[t]]
    given += [made.flags[rows.flags(shape, t) :], made.h[t], made.c[t]]
    sizes: list[Argument] = [span.end - t, batch, rows.size]
    control: list[Argument] = [stalled_flag(device.index), later]
    kernel = _kernel(shape, rows, device)
    kernel(shape.blocks, shape.threads, [*given, *sizes, *control], cooperative=True)


class Marks(NamedTuple):
    """The buffers of a backward recurrence."""

    words: Tensor  # int16, the exchange and its flags: nothing is computed yet
    dc: Tensor  # (B, p), of the cells after the last step

    @classmethod
    def empty(cls, shape: Shape, steps: int, batch: int, device: torch.device) -> "Marks":
        count = steps * batch * 4 * shape.hidden + 2 * cut(batch).flags(shape, steps)
        return cls(
            torch.empty(count, dtype=torch.int16, device=device),
            torch.empty(batch, shape.hidden, dtype=torch.float32, device=device),
        )

    def fill(self) -> None:
        self.words.fill_(EMPTY)
        self.dc.zero_()


class Dgates(NamedTuple):
    """The results of a backward recurrence."""

    of_steps: Tensor  # (T B, 4p), bfloat16
    of_bias: Tensor  # (B, 4p): their sums over the steps, before they are rounded

    @classmethod
    def empty(cls, shape: Shape, steps: int, batch: int, device: torch.device) -> "Dgates":
        return cls(
            torch.empty(steps * batch, 4 * shape.hidden, dtype=torch.bfloat16, device=device),
            torch.empty(batch, 4 * shape.hidden, dtype=torch.float32, device=device),
        )


def run_backward(
    shape: Shape,
    w_hh_t: Tensor,  # (p, 4p)
    gates: Tensor,  # (T B, 4p), activations
    c: Tensor,  # (T + 1, B, p)
    dout: Tensor,  # (T, B, p)
    marks: Marks,
    made: Dgates,
    span: Span,
) -> None:
    """Write dgates of these steps, add them to their sums; ``marks.dc`` is of the cells before."""
    steps, batch, _ = dout.shape
    device = dout.device
    dgates = made.of_steps.view(steps, batch, -1)
    rows = cut(batch)
    exchange = marks.words[: dgates.numel()].view_as(dgates)
    flags = marks.words[dgates.numel() :]  # two words each
    t, earlier, later = span.begin, int(span.begin > 0), int(span.end < steps)
    given = [w_hh_t, gates[t * batch :], c[t], dout[t], exchange[t]]
    given += [flags[2 * rows.flags(shape, t) :], dgates[t], marks.dc, made.of_bias]
    sizes: list[Argument] = [span.end - t, batch, rows.size]
    control: list[Argument] = [stalled_flag(device.index), earlier, later]
    kernel = _kernel(shape, rows, device)
    kernel(shape.blocks, shape.threads, [*given, *sizes, *control], cooperative=True)


# -- two layers at once -------------------------------------------------------------------------
# The recurrence of a layer waits at every step and leaves multiprocessors idle. Two layers that fit
# on the device together, the upper one a piece behind, take hardly longer than one.

PIECES = 5
"""Pieces of a sequence that two layers process at once. Each is one more launch of both."""

SHORTEST_TOGETHER, SMALLEST_TOGETHER = 35, 577
"""Fewest steps, and units of the lower layer: below, launches cost more than overlap gains."""


def can_interleave(layouts: Sequence[Layout], x: Tensor) -> bool:
    """Whether the last two layers run interleaved.

    Only if the pass is being captured: launched one by one, the extra launches cost the host more
    than they save.
    """
    return _pays(layouts, x) and recorded()


def loads_pieces(way: str, layouts: Sequence[Layout], x: Tensor) -> bool:
    """Whether a pass also computes the products of pieces, to load their kernels.

    True for the first launched pass of a shape: no kernel can be loaded during a capture. Its
    results are still those of all steps at once.
    """
    if not _pays(layouts, x) or recorded():
        return False
    shape = (way, *layouts[-2:], x.shape[:2], x.device)
    known = shape in _loaded
    _loaded.add(shape)
    return not known


def _pays(layouts: Sequence[Layout], x: Tensor) -> bool:
    """Whether layers and sequence are large enough and both layers fit on the device."""
    if len(layouts) < 2 or len(x) < SHORTEST_TOGETHER or layouts[-2].hidden < SMALLEST_TOGETHER:
        return False
    return fit_together(layouts[-2], layouts[-1], x.device)


_loaded: set[tuple[object, ...]] = set()


def recorded() -> bool:
    return torch.cuda.is_current_stream_capturing()


def pieces(steps: int) -> list[Span]:
    size = -(-steps // PIECES)
    return [Span(begin, min(begin + size, steps)) for begin in range(0, steps, size)]
