"""A second and a third CUDA stream for work that the first one does not wait for."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch


@contextmanager
def second_stream(first: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    """A stream that begins where ``first`` is, and which ``first`` waits for at the end.

    Also after an exception: memory that is freed may be reused at once. So all that both streams
    use must be memory of ``first``, and referenced until the end if the second one uses it.

    PyTorch reuses 32 streams per device, so the second and third stream may be in use elsewhere.
    Work then only runs later than it could; but a capture by another thread on the same stream
    at the same time fails.
    """
    second = _second_to(first.device_index, first.cuda_stream)
    second.wait_stream(first)
    with awaiting(second, first):
        yield second


@contextmanager
def awaiting(other: torch.cuda.Stream, first: torch.cuda.Stream) -> Iterator[None]:
    """At the end ``first`` waits for the other, also after an exception."""
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # of a recording that has failed: the reason is on its way
            first.wait_stream(other)
        raise
    first.wait_stream(other)


def third_stream(first: torch.cuda.Stream) -> torch.cuda.Stream:
    """Another stream, neither the first nor its second; the caller makes them wait."""
    return _third_to(first.device_index, first.cuda_stream)


@cache
def _second_to(index: int, first: int) -> torch.cuda.Stream:
    return _another(index, first)


@cache
def _third_to(index: int, first: int) -> torch.cuda.Stream:
    return _another(index, first, _second_to(index, first).cuda_stream)


def _another(index: int, *taken: int) -> torch.cuda.Stream:
    """A stream that is none of these; PyTorch hands out 32 in turns."""
    device = torch.device("cuda", index)
    streams = (torch.cuda.Stream(device) for _ in range(len(taken) + 1))
    return next(each for each in streams if each.cuda_stream not in taken)
