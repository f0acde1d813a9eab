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
    """
    second = _second_to(first.device_index, first.cuda_stream)
    second.wait_stream(first)
    try:
        yield second
    finally:
        first.wait_stream(second)


@cache
def _second_to(index: int, first: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(torch.device("cuda", index))
