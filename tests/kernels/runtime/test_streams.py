"""Second and third streams are others, and a second is waited for however its work ends."""

from functools import cache
from itertools import cycle

import pytest
import torch

from drill.kernels.runtime import streams as streams_module


class Stream:
    """One of a pool, as PyTorch hands them out; notes whom it waits for."""

    pool = cycle([0])

    def __init__(self, device):
        self.device_index, self.cuda_stream = 0, next(Stream.pool)
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other.cuda_stream)


@pytest.fixture
def streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(Stream, "pool", cycle([7, 8, 9, 10]))
    monkeypatch.setattr(streams_module, "_others", cache(streams_module._others.__wrapped__))


def test_the_second_is_not_the_first(streams):
    first = Stream("cuda")  # 7, and the next ones are taken by others
    for _ in range(3):
        Stream("cuda")
    with streams_module.second_stream(first) as second:
        assert second.cuda_stream == 8
    with streams_module.second_stream(first) as again:
        assert again is second
    third = streams_module.third_stream(first)
    assert third.cuda_stream == 9
    assert streams_module.third_stream(first) is third


@pytest.mark.parametrize("broken", [False, True])
def test_each_waits_for_the_other_even_where_something_fails(streams, broken, monkeypatch):
    first, waits = Stream("cuda"), []

    def break_recording(other):
        raise RuntimeError("the recording is broken")

    def fail():
        with streams_module.second_stream(first) as second:
            waits.append((list(first.waited_for), list(second.waited_for)))
            if broken:  # which does not hide the failure
                monkeypatch.setattr(first, "wait_stream", break_recording)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert waits == [([], [7])]
    assert first.waited_for == ([] if broken else [8])
