"""Work that overlaps with recurrences: where it starts, who waits for it; no bit changes."""

import gc
import warnings
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from drill.kernels.label_encoder import encode_labels
from drill.kernels.label_encoder.chain import chain
from drill.kernels.lstm.persistent import stack_forward
from drill.kernels.runtime import overlap as module
from drill.kernels.runtime.overlap import (
    awaited_by,
    mark_start,
    on_stream,
    overlap_scope,
    run_overlapped,
)
from drill.layers import DeepResidual
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.training.cuda_graphs import GraphCapture
from drill.training.precision import autocast_to
from tests.helpers.devices import on_hopper

EVENTS: list[str] = []


class Stream:
    def __init__(self, name):
        self.name, self.device = name, "cuda"

    def record_event(self):
        return f"where {self.name} was"

    def wait_event(self, event):
        EVENTS.append(f"{self.name} waits for {event}")

    def wait_stream(self, other):
        EVENTS.append(f"{self.name} waits for {other.name}")


class Result:
    def record_stream(self, stream):
        EVENTS.append(f"read on {stream.name}")


@pytest.fixture
def first(monkeypatch):
    """The current stream, which is recorded; EVENTS is what streams are called with."""
    EVENTS.clear()
    now = [Stream("first")]

    @contextmanager
    def switched(stream):
        now.append(stream)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: now[-1])
    monkeypatch.setattr(torch.cuda, "stream", switched)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    third = Stream("third")
    monkeypatch.setattr(module, "third_stream", lambda stream: third)
    return now[0]


def work(*needed):
    awaiting = awaited_by()
    EVENTS.append(
        f"work on {torch.cuda.current_stream().name}, awaited by {awaiting and awaiting.name}"
    )
    return Result()


ALONE = ["work on first, awaited by None"]


def test_work_begins_where_the_first_recurrence_did(first):
    E, U = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    with overlap_scope([E, U]):
        mark_start(first)
        mark_start(Stream("second"))  # that of a later layer
        run_overlapped(work, U, E)
    assert EVENTS == [
        "third waits for where first was",
        "work on third, awaited by first",
        "first waits for third",
        "read on first",
    ]
    assert awaited_by() is None


def test_the_first_stream_waits_for_work_that_fails(first):
    E = nn.Parameter(torch.ones(3))
    with overlap_scope([E]):
        mark_start(first)
        with pytest.raises(KeyError):
            run_overlapped(Mock(side_effect=KeyError), E)
    assert EVENTS[-1] == "first waits for third"
    assert awaited_by() is None


def test_what_was_made_or_written_since_is_not_read_too_early(first):
    E, made = nn.Parameter(torch.ones(3)), torch.ones(3)
    with overlap_scope([E]):
        mark_start(first)
        run_overlapped(work, E, made)
        with torch.no_grad():
            E.mul_(2)
        run_overlapped(work, E)
    assert EVENTS == 2 * ALONE


def test_without_a_recurrence_nothing_overlaps(first, monkeypatch):
    E = nn.Parameter(torch.ones(3))
    run_overlapped(work, E)
    mark_start(first)
    run_overlapped(work, E)
    with overlap_scope([E]):
        run_overlapped(work, E)
    run_overlapped(work, E)
    with overlap_scope([E]):  # launched
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        mark_start(first)
        run_overlapped(work, E)
    assert EVENTS == 5 * ALONE


def test_gradients_may_go_back_to_the_first_stream(first):
    with on_stream(Stream("other"), [Result()]):
        work()
    assert EVENTS == [
        "other waits for first",
        "work on other, awaited by None",
        "first waits for other",
        "read on other",
    ]
    EVENTS.clear()
    with on_stream(None, [Result()]):
        work()
    assert EVENTS == ALONE


OPTIONS = [{"locked": True}, {"locked": False}, {"locked": True, "norm": "rms"}]


def language_model(options):
    torch.manual_seed(0)
    embedding = nn.Embedding(700, 64)
    layer = DeepResidual(embedding, depth=3, dropout=0.5, **options)
    return LanguageModel(AwdLstm(embedding, hidden_size=96, layers=2), layer).cuda()


@on_hopper
@pytest.mark.parametrize("late", [None, "labels", "recurrence"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_recorded_labels_have_the_bits_of_launched_ones(options, late, monkeypatch):
    model = language_model(options)
    ids = torch.randint(700, (13, 4), device="cuda")
    parameters, state, streams = list(model.parameters()), model.initial_state(4), []

    def watched(place, name, slow=False):
        whole = getattr(place, name)

        def run(*given, **others):
            if slow:
                torch.cuda._sleep(3_000_000)
            streams.append(torch.cuda.current_stream())
            return whole(*given, **others)

        monkeypatch.setattr(place, name, run)

    watched(stack_forward, "run_forward", late == "recurrence")
    watched(encode_labels, "encode_labels", late == "labels")
    watched(chain, "_gradients")

    def step():
        streams.clear()
        with autocast_to(ids.device, torch.bfloat16), overlap_scope(parameters):
            loss = model(ids[:-1], ids[1:], state, check=False)
        return [loss.nll, *torch.autograd.grad(loss.total, parameters)]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    assert set(streams) == {aside}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        replayed = step()
    first, second, labels, *gradients = streams
    assert first == second == aside
    assert labels != aside
    assert gradients == ([] if options["locked"] else [aside])  # in one launch, or map after map
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        graph.replay()
        torch.manual_seed(seed)
        launched = step()
        assert all(torch.equal(a, b) for a, b in zip(replayed, launched, strict=True))


@on_hopper
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_recordings_share_their_memory_and_torch_has_nothing_to_warn_of(options):
    model = language_model(options)
    ids = torch.randint(700, (13, 4), device="cuda")
    parameters, state = list(model.parameters()), model.initial_state(4)
    graphs = GraphCapture(ids.device, instead="do without")

    def step():
        with autocast_to(ids.device, torch.bfloat16), overlap_scope(parameters):
            model(ids[:-1], ids[1:], state, check=False).total.backward()
        for each in parameters:
            each.grad = None

    def reserved():
        graphs.capture(step)
        return torch.cuda.memory_reserved()

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*AccumulateGrad")
            gc.collect()
            torch.cuda.empty_cache()  # of other tests
            graphs.warm_up(step)
            settling = max(reserved() for _ in range(8))
            assert max(reserved() for _ in range(4)) <= settling
    finally:
        torch.set_warn_always(always)


@on_hopper
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_labels_may_be_checkpointed(options):
    layer = language_model(options).layer
    hidden = torch.randn(5, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        torch.manual_seed(1)
        plain = torch.autograd.grad(layer(hidden).sum(), layer.embedding.weight)
        torch.manual_seed(1)
        again = checkpoint(layer, hidden, use_reentrant=False)
    (found,) = torch.autograd.grad(again.sum(), layer.embedding.weight)
    assert torch.equal(found, plain[0])
