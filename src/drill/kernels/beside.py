"""A second stream of a GPU, for work that need not wait where the first leaves most of it idle.

The steps of an LSTM are small and wait for one another. What depends on none of them, such as the
encoding of labels and its gradient, costs little beside them. Autograd runs the gradient of an
operation on the stream of the operation, and lets streams wait for what they read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch

_two_streams: ContextVar[bool] = ContextVar("two_streams", default=False)


@contextmanager
def two_streams() -> Iterator[None]:
    """Inside, work may go beside other work; for steps recorded as CUDA graphs.

    Launched one by one, work goes to the GPU in the order of the host, so a second stream would
    only add waits.
    """
    token = _two_streams.set(True)
    try:
        yield
    finally:
        _two_streams.reset(token)


def stream_beside(device: torch.device) -> torch.cuda.Stream | None:
    """The stream beside the current one; None where all work goes one after the other."""
    if device.type != "cuda" or not _two_streams.get():
        return None
    return _second(device, torch.cuda.current_stream(device).cuda_stream)


@cache
def _second(device: torch.device, first: int) -> torch.cuda.Stream:
    """One for each first stream, and always the same: cuBLAS has scratch memory for each."""
    return torch.cuda.Stream(device)
