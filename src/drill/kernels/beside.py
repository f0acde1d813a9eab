"""Work that runs beside recurrences, which leave half of a GPU idle.

Labels need nothing of the text. Where a recurrence of an LSTM is recorded before them, they begin
where it began, on a stream of their own. They are still recorded after it, so random numbers come
in the same order as in a pass that is launched, and all results have the same bits.

    with room_for(layer.parameters()):   # a model, around one pass
        ...
        recurrence_begins(stream)        # an LSTM
        ...
        labels = beside(encode, E, U)    # an output layer: encode(E, U)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from drill.kernels.second_stream import third_stream


class Room:
    """Where a recurrence began, and the parameters as they were then."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.versions = {id(each): each._version for each in parameters}
        self.first: torch.cuda.Stream | None = None
        self.begin: torch.cuda.Event | None = None

    def knows(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all are parameters that nothing has written since: what else is made too late."""
        return all(self.versions.get(id(each)) == each._version for each in tensors)


_room: ContextVar[Room | None] = ContextVar("room", default=None)
_awaiting: ContextVar[torch.cuda.Stream | None] = ContextVar("awaiting", default=None)


@contextmanager
def room_for(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Inside, what needs these parameters alone may run beside a recurrence."""
    token = _room.set(Room(parameters))
    try:
        yield
    finally:
        _room.reset(token)


def recurrence_begins(stream: torch.cuda.Stream) -> None:
    """Said by the first one of a pass. Not where it is launched: a host is slower than either."""
    room = _room.get()
    if room is not None and room.begin is None and torch.cuda.is_current_stream_capturing():
        room.first, room.begin = stream, stream.record_event()


def beside(work: Callable[..., Tensor], *needed: Tensor) -> Tensor:
    """``work(*needed)``, which needs nothing else: beside a recurrence, where there is one.

    The current stream waits for its end. Its gradients are made on the other stream, too, and added
    up on the current one.
    """
    room = _room.get()
    first = room.first if room is not None and room.knows(needed) else None
    if first is None or first != torch.cuda.current_stream(first.device):
        return work(*needed)
    assert room is not None
    assert room.begin is not None
    third = third_stream(first)
    third.wait_event(room.begin)
    # Views of the current stream, where gradients of parameters are to arrive: torch warns of those
    # that come to one from two.
    views = [each.view_as(each) for each in needed]
    token = _awaiting.set(first)
    try:
        with torch.cuda.stream(third):
            result = work(*views)
    finally:
        _awaiting.reset(token)
        first.wait_stream(third)
    result.record_stream(first)  # its memory is the third one's, and must not be taken too early
    return result


def awaited_by() -> torch.cuda.Stream | None:
    """The stream that waits for the end of what runs ``beside``; None where nothing does."""
    return _awaiting.get()


@contextmanager
def on_stream(stream: torch.cuda.Stream | None, read: Sequence[Tensor]) -> Iterator[None]:
    """On this stream instead of the current one, whose memory it reads; None changes nothing."""
    if stream is None:
        yield
        return
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)
        for each in read:
            each.record_stream(stream)
