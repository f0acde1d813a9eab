"""Run the label encoder concurrently with an LSTM's recurrence, which leaves half of a GPU idle.

Encoding labels does not depend on the text. In a captured CUDA graph it starts together with the
first recurrence, on a stream of its own. It is still recorded after it, so that random numbers are
drawn in the same order as without overlap, and the labels have the same bits.

    with overlap_scope(parameters):            # the training step, around one pass
        ...
        mark_start(stream)                     # an LSTM
        ...
        labels = run_overlapped(encode, E, U)  # an output layer: encode(E, U)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from drill.kernels.runtime.streams import awaiting, third_stream


class Scope:
    """Where a recurrence started, and the versions of the parameters before it."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # Those made under inference_mode count no writes.
        counted = (each for each in parameters if not each.is_inference())
        self.versions = {id(each): each._version for each in counted}
        self.start: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None

    def knows(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all are parameters that were not written since, by their version counters."""
        return all(
            id(each) in self.versions and self.versions[id(each)] == each._version
            for each in tensors
        )


_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)
_awaited_by: ContextVar[torch.cuda.Stream | None] = ContextVar("awaited_by", default=None)


@contextmanager
def overlap_scope(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Inside, work that needs these parameters alone may overlap with a recurrence.

    One scope for one pass, captured or not; a scope must not contain part of a capture only.
    """
    token = _scope.set(Scope(parameters))
    try:
        yield
    finally:
        _scope.reset(token)


def mark_start(stream: torch.cuda.Stream) -> None:
    """Called where a recurrence starts; the first one in a captured pass counts."""
    scope = _scope.get()
    if scope is not None and scope.start is None and torch.cuda.is_current_stream_capturing():
        scope.start = stream, stream.record_event()


def has_started() -> bool:
    """Whether a recurrence has started in this scope, while a CUDA graph is captured."""
    scope = _scope.get()
    return scope is not None and scope.start is not None


def run_overlapped(work: Callable[..., Tensor], *needed: Tensor) -> Tensor:
    """``work(*needed)``, which needs nothing else, concurrently with a recurrence if there is one.

    The current stream waits for its end. Its gradients are computed on the other stream, too, and
    accumulated on the current one.
    """
    scope = _scope.get()
    if scope is None or scope.start is None or not scope.knows(needed):
        return work(*needed)
    first, begin = scope.start
    current = torch.cuda.current_stream(first.device)
    if current != first or not torch.cuda.is_current_stream_capturing():
        return work(*needed)
    third = third_stream(first)
    third.wait_event(begin)
    # Views of the current stream, where gradients of parameters are to arrive: torch warns of those
    # that come to one from two.
    views = [each.view_as(each) for each in needed]
    token = _awaited_by.set(first)
    try:
        with awaiting(third, first), torch.cuda.stream(third):
            result = work(*views)
    finally:
        _awaited_by.reset(token)
    result.record_stream(first)  # its memory is the third one's, and must not be taken too early
    return result


def awaited_by() -> torch.cuda.Stream | None:
    """Inside ``run_overlapped``, the stream that waits for its end; else None."""
    return _awaited_by.get()


@contextmanager
def on_stream(stream: torch.cuda.Stream | None, read: Sequence[Tensor]) -> Iterator[None]:
    """On this stream instead of the current one, whose memory it reads; None changes nothing."""
    if stream is None:
        yield
        return
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with awaiting(stream, current), torch.cuda.stream(stream):
        yield
    for each in read:
        each.record_stream(stream)
