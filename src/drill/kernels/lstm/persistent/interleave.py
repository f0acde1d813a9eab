"""Two LSTM layers that go through a sequence together, the upper one a piece behind.

The recurrence of a layer waits at every step and leaves multiprocessors idle. Where another layer's
fits beside it, both take hardly longer than one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drill.kernels.lstm.persistent.layout import Layout
from drill.kernels.lstm.persistent.recurrence import Span, fit_together

PIECES = 5
"""Of a sequence that two layers go through together. Each is a launch more of both."""

SHORTEST_TOGETHER, SMALLEST_TOGETHER = 35, 577
"""Steps, and units of the lower layer: below, launches take what is won, or it was not measured."""


def go_together(layouts: Sequence[Layout], x: Tensor) -> bool:
    """Whether the last two layers go through the sequence together.

    Where it pays, and the pass is being recorded: launched one by one, more launches take a host
    longer than they save.
    """
    return _pays(layouts, x) and recorded()


def loads_pieces(way: str, layouts: Sequence[Layout], x: Tensor) -> bool:
    """Whether a pass is to make the products of pieces, too, and throw them away.

    The first one of a shape that is not recorded: while one is, no product can be loaded. Its
    results are still those of all steps at once, as of every pass that is launched.
    """
    if not _pays(layouts, x) or recorded():
        return False
    shape = (way, *layouts[-2:], x.shape[:2], x.device)
    known = shape in _loaded
    _loaded.add(shape)
    return not known


def _pays(layouts: Sequence[Layout], x: Tensor) -> bool:
    """Large layers, long sequences, and room for both."""
    if len(layouts) < 2 or len(x) < SHORTEST_TOGETHER or layouts[-2].hidden < SMALLEST_TOGETHER:
        return False
    return fit_together(layouts[-2], layouts[-1], x.device)


_loaded: set[tuple[object, ...]] = set()


def recorded() -> bool:
    return torch.cuda.is_current_stream_capturing()


def pieces(steps: int) -> list[Span]:
    size = -(-steps // PIECES)
    return [Span(begin, min(begin + size, steps)) for begin in range(0, steps, size)]
