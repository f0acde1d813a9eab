"""Recording work: what happens to work that cannot be recorded."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from drill.errors import CaptureError
from drill.training.cuda_graphs import GraphRecorder


class FakeGraph:
    """Of a device whose recording is broken by an error inside it."""

    broken = False

    def capture_begin(self, **_):
        self.broken = False

    def capture_end(self):
        raise RuntimeError("the capture was invalidated")


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Mock(torch.cuda.Stream))
    made = GraphRecorder(torch.device("cpu"), instead="set training.cuda_graphs=false")
    made._stream = object()
    return made


def failing(error):
    def work():
        raise error

    return work


def test_work_that_waits_is_refused_in_one_sentence(graphs):
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile")
    with pytest.raises(CaptureError) as caught:
        graphs.record(failing(error))
    assert str(caught.value) == (
        "this work cannot be recorded as a CUDA graph (CUDA error: operation not permitted when "
        "stream is capturing); set training.cuda_graphs=false"
    )
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), ValueError("wrong"), KeyError()])
def test_what_is_no_fault_of_recording_is_handed_on(graphs, error):
    with pytest.raises(type(error)) as caught:
        graphs.record(failing(error))
    assert caught.value is error


@pytest.mark.gpu
def test_after_a_refusal_the_device_goes_on():
    device = torch.device("cuda")
    graphs = GraphRecorder(device, instead="do without")
    x = torch.ones(3, device=device)
    graphs.warm_up(lambda: x.add_(1))
    with pytest.raises(CaptureError, match="do without"):
        graphs.record(lambda: x.add_(x.sum().item()))
    replay = graphs.record(lambda: x.add_(1))
    replay()
    assert x.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.gpu
@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_right_after_a_recording_has_random_numbers_of_its_own(monkeypatch, fails):
    """A recording sets them back on its own stream, which may be late: here by some 50 ms."""
    graphs = GraphRecorder(torch.device("cuda", 0), instead="do without")
    drawn = torch.empty(4, device="cuda")

    def work():
        drawn.copy_(torch.rand(4, device="cuda"))

    def late(device):
        waits(device)
        with torch.cuda.stream(graphs._stream):
            torch.cuda._sleep(100_000_000)

    torch.manual_seed(1)
    for _ in range(3):
        graphs.warm_up(work)
    wanted = drawn.tolist()
    torch.manual_seed(1)
    graphs.warm_up(work)
    replay = graphs.record(work)
    replay()
    waits = torch.cuda.synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", late)
    if fails:
        with pytest.raises(CaptureError):
            graphs.record(lambda: drawn.add_(drawn.sum().item()))
    else:
        replay = graphs.record(work)
    replay()
    assert drawn.tolist() == wanted
