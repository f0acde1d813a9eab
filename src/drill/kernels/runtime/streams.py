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
    second, _ = _others(first.device_index, first.cuda_stream)
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
    return _others(first.device_index, first.cuda_stream)[1]


@cache
def _others(index: int, first: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The second and the third stream; PyTorch hands out 32 in turns, one may be the first."""
    device = torch.device("cuda", index)
    streams = (torch.cuda.Stream(device) for _ in range(3))
    second, third, *_ = (each for each in streams if each.cuda_stream != first)
    return second, third
