"""Recording work: what happens to work that cannot be recorded."""

from contextlib import nullcontext

import pytest
import torch

from drill.graphs import CaptureError, Graphs


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
    made = Graphs(torch.device("cpu"), instead="set training.capture=false")
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
        "stream is capturing); set training.capture=false"
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
    graphs = Graphs(device, instead="do without")
    x = torch.ones(3, device=device)
    graphs.warm_up(lambda: x.add_(1))
    with pytest.raises(CaptureError, match="do without"):
        graphs.record(lambda: x.add_(x.sum().item()))
    replay = graphs.record(lambda: x.add_(1))
    replay()
    assert x.tolist() == [3.0, 3.0, 3.0]
