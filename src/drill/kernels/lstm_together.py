"""Two LSTM layers that go through a sequence together, the upper one a piece behind.

The recurrence of a layer waits at every step and leaves multiprocessors idle. Where another layer's
fits beside it, both take hardly longer than one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drill.kernels.lstm_layout import Layout
from drill.kernels.lstm_persistent import Span, fit_together

PIECES = 5
"""Of a sequence that two layers go through together. Each is a launch more of both."""

SHORTEST_TOGETHER, SMALLEST_TOGETHER = 35, 577
"""Steps, and units of the lower layer: below, launches take what is won, or it was not measured."""


def go_together(way: str, layouts: Sequence[Layout], x: Tensor) -> bool:
    """Whether the last two layers go through the sequence together.

    Where it pays: large layers, long sequences, and a pass that is being recorded; launched one by
    one, more launches take a host longer than they save. But the first pass of a shape does, too,
    so that all products it takes are loaded when one is recorded.
    """
    steps, batch, _ = x.shape
    if len(layouts) < 2 or steps < SHORTEST_TOGETHER or layouts[-2].hidden < SMALLEST_TOGETHER:
        return False
    if not fit_together(layouts[-2], layouts[-1], x.device):
        return False
    shape = (way, *layouts[-2:], steps, batch, x.device)
    known = shape in _loaded
    _loaded.add(shape)
    return recorded() or not known


_loaded: set[tuple[object, ...]] = set()


def recorded() -> bool:
    return torch.cuda.is_current_stream_capturing()


def pieces(steps: int) -> list[Span]:
    size = -(-steps // PIECES)
    return [Span(begin, min(begin + size, steps)) for begin in range(0, steps, size)]
