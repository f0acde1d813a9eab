"""A stream for what another one does not wait for."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch


@contextmanager
def second_stream(first: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    """A stream that begins where ``first`` is, and which ``first`` waits for at the end.

    However the end comes: memory that is freed then may be asked for at once. So all that both
    streams use is to be memory of ``first``, and held until the end if the second one uses it.

    PyTorch has 32 streams a device, which it hands out in turns: the second one, and the third of
    ``third_stream``, may be another's, too, who asked for a stream of their own. What both put
    there then runs in the order in which it came, later than it could. But a recording that others
    make there at the same time, in another thread, is broken by it.
    """
    second = _second_to(first.device_index, first.cuda_stream)
    second.wait_stream(first)
    with awaiting(second, first):
        yield second


@contextmanager
def awaiting(other: torch.cuda.Stream, first: torch.cuda.Stream) -> Iterator[None]:
    """At the end ``first`` waits for the other, however the end comes."""
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # of a recording that has failed: the reason is on its way
            first.wait_stream(other)
        raise
    first.wait_stream(other)


def third_stream(first: torch.cuda.Stream) -> torch.cuda.Stream:
    """One more, neither the first nor its second; who uses it has them wait for one another."""
    return _third_to(first.device_index, first.cuda_stream)


@cache
def _second_to(index: int, first: int) -> torch.cuda.Stream:
    return _another(index, first)


@cache
def _third_to(index: int, first: int) -> torch.cuda.Stream:
    return _another(index, first, _second_to(index, first).cuda_stream)


def _another(index: int, *taken: int) -> torch.cuda.Stream:
    """PyTorch's next one, 32 streams on, may be one of these: nothing would run beside it."""
    device = torch.device("cuda", index)
    streams = (torch.cuda.Stream(device) for _ in range(len(taken) + 1))
    return next(each for each in streams if each.cuda_stream not in taken)
