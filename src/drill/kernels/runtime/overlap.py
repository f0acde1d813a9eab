"""Work that runs beside recurrences, which leave half of a GPU idle.

Labels need nothing of the text. Where a recurrence of an LSTM is recorded before them, they begin
where it began, on a stream of their own. They are still recorded after it, so random numbers come
in the same order as in a pass that is launched, and the labels have the same bits.

    with room_for(parameters):           # who records, around one pass
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

from drill.kernels.runtime.streams import awaiting, third_stream


class Room:
    """Where a recurrence began, and the parameters as they were before it."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # Those made under inference_mode count no writes.
        counted = (each for each in parameters if not each.is_inference())
        self.versions = {id(each): each._version for each in counted}
        self.first: torch.cuda.Stream | None = None
        self.begin: torch.cuda.Event | None = None

    def knows(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all are parameters that nothing has written since, by autograd's count.

        What else there is was made too late.
        """
        return all(
            id(each) in self.versions and self.versions[id(each)] == each._version
            for each in tensors
        )


_room: ContextVar[Room | None] = ContextVar("room", default=None)
_awaited_by: ContextVar[torch.cuda.Stream | None] = ContextVar("awaited_by", default=None)


@contextmanager
def room_for(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Inside, what needs these parameters alone may run beside a recurrence.

    One room for one pass, launched or recorded; not for a part of a recording and what follows it.
    """
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


def recurrence_begun() -> bool:
    """Whether there is one in this room, for work to run beside."""
    room = _room.get()
    return room is not None and room.begin is not None


def beside(work: Callable[..., Tensor], *needed: Tensor) -> Tensor:
    """``work(*needed)``, which needs nothing else: beside a recurrence, where there is one.

    The current stream waits for its end. Its gradients are made on the other stream, too, and added
    up on the current one.
    """
    room = _room.get()
    if room is None or room.first is None or room.begin is None or not room.knows(needed):
        return work(*needed)
    first = torch.cuda.current_stream(room.first.device)
    if first != room.first or not torch.cuda.is_current_stream_capturing():
        return work(*needed)
    third = third_stream(first)
    third.wait_event(room.begin)
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
    """The stream that waits for the end of what runs ``beside``; None where nothing does."""
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
