"""A stream for what another one does not wait for."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def second_stream(first: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    """A stream that begins where ``first`` is, and which ``first`` waits for at the end.

    However the end comes: memory that is freed then may be asked for at once. So all that both
    streams use is to be memory of ``first``, and held until the end if the second one uses it.

    PyTorch has 32 streams a device, which it hands out in turns: the second one may be another's,
    too, who asked for a stream of their own. What both put there then runs in the order in which it
    came, later than it could. But a recording that others make there at the same time, in another
    thread, is broken by it.
    """
    second, _ = _others(first.device_index, first.cuda_stream)
    second.wait_stream(first)
    try:
        yield second
    finally:
        first.wait_stream(second)


def third_stream(first: torch.cuda.Stream) -> torch.cuda.Stream:
    """Another one for what ``first`` waits for, not its second."""
    return _others(first.device_index, first.cuda_stream)[1]


@cache
def _others(index: int, first: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    device = torch.device("cuda", index)
    streams = [torch.cuda.Stream(device) for _ in range(3)]
    # PyTorch's next ones, 32 streams on, may be the first again: nothing would run beside it.
    second, third, *_ = [each for each in streams if each.cuda_stream != first]
    return second, third
