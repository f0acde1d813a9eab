"""What runs beside recurrences: where it begins, who waits for it, and that no bit changes."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from drill.encoders import AwdLstm
from drill.kernels import beside as module
from drill.kernels import lstm_layers_forward
from drill.kernels.beside import awaited_by, beside, on_stream, recurrence_begins, room_for
from drill.layers import DeepResidual, deep_residual
from drill.models import LanguageModel
from drill.precision import autocast_to
from tests.kernels.hopper import needs_hopper

TOLD: list[str] = []


class Stream:
    def __init__(self, name):
        self.name, self.device = name, "cuda"

    def record_event(self):
        return f"where {self.name} was"

    def wait_event(self, event):
        TOLD.append(f"{self.name} waits for {event}")

    def wait_stream(self, other):
        TOLD.append(f"{self.name} waits for {other.name}")


class Result:
    def record_stream(self, stream):
        TOLD.append(f"read on {stream.name}")


@pytest.fixture
def first(monkeypatch):
    """The current stream, which is recorded; TOLD is what is told to streams."""
    TOLD.clear()
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
    TOLD.append(f"work on {torch.cuda.current_stream().name}, awaited by {awaiting and 'first'}")
    return Result()


ALONE = ["work on first, awaited by None"]


def test_work_begins_where_the_first_recurrence_did(first):
    E, U = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    with room_for([E, U]):
        recurrence_begins(first)
        recurrence_begins(Stream("second"))  # that of a later layer
        beside(work, U, E)
    assert TOLD == [
        "third waits for where first was",
        "work on third, awaited by first",
        "first waits for third",
        "read on first",
    ]
    assert awaited_by() is None


def test_gradients_reach_parameters_from_the_stream_that_reads_them(first):
    E, seen = nn.Parameter(torch.ones(3)), []

    def twice(view):
        seen.append(view)
        result = 2 * view
        result.record_stream = lambda stream: None
        return result

    with room_for([E]):
        beside(twice, E).sum().backward()
        recurrence_begins(first)
        beside(twice, E).sum().backward()
    assert seen[0] is E
    assert seen[1] is not E  # made before the streams were switched
    assert seen[1].data_ptr() == E.data_ptr()
    assert E.grad.tolist() == [4.0, 4.0, 4.0]


def test_the_first_stream_waits_for_work_that_fails(first):
    def fail(E):
        raise KeyError

    E = nn.Parameter(torch.ones(3))
    with room_for([E]):
        recurrence_begins(first)
        with pytest.raises(KeyError):
            beside(fail, E)
    assert TOLD[-1] == "first waits for third"
    assert awaited_by() is None


def test_what_was_made_or_written_since_is_not_read_too_early(first):
    E, made = nn.Parameter(torch.ones(3)), torch.ones(3)
    with room_for([E]):
        recurrence_begins(first)
        beside(work, E, made)
        with torch.no_grad():
            E.mul_(2)
        beside(work, E)
    assert TOLD == 2 * ALONE


def test_without_a_recurrence_nothing_is_beside(first, monkeypatch):
    E = nn.Parameter(torch.ones(3))
    beside(work, E)
    recurrence_begins(first)
    beside(work, E)
    with room_for([E]):
        beside(work, E)
    beside(work, E)
    with room_for([E]):  # launched
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        recurrence_begins(first)
        beside(work, E)
    assert TOLD == 5 * ALONE


def test_a_recording_that_has_forked_is_left_alone(first):
    E = nn.Parameter(torch.ones(3))
    with room_for([E]):
        recurrence_begins(Stream("another"))
        beside(work, E)
    assert TOLD == ALONE


def test_gradients_may_go_back_to_the_first_stream(first):
    with on_stream(Stream("other"), [Result()]):
        work()
    assert TOLD == [
        "other waits for first",
        "work on other, awaited by None",
        "first waits for other",
        "read on other",
    ]
    TOLD.clear()
    with on_stream(None, [Result()]):
        work()
    assert TOLD == ALONE


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("late", [None, "labels", "recurrence"])
@pytest.mark.parametrize("locked", [True, False])
def test_recorded_labels_have_the_bits_of_launched_ones(locked, late, monkeypatch):
    torch.manual_seed(0)
    embedding = nn.Embedding(700, 64)
    layer = DeepResidual(embedding, depth=3, dropout=0.5, locked=locked)
    model = LanguageModel(AwdLstm(embedding, hidden_size=96, layers=2), layer).cuda()
    ids = torch.randint(700, (13, 4), device="cuda")
    parameters, state, streams = list(model.parameters()), model.initial_state(4), []

    def delayed(place, name, slow):
        whole = getattr(place, name)

        def run(*given, **options):
            if slow:
                torch.cuda._sleep(3_000_000)
            streams.append(torch.cuda.current_stream())
            return whole(*given, **options)

        monkeypatch.setattr(place, name, run)

    delayed(deep_residual, "encode_labels", late == "labels")
    delayed(lstm_layers_forward, "run_forward", late == "recurrence")

    def step():
        streams.clear()
        with autocast_to(ids.device, torch.bfloat16), room_for(parameters):
            loss = model(ids[:-1], ids[1:], state, check=False)
        return [loss.nll, *torch.autograd.grad(loss.total, parameters)]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    assert len(set(streams)) == 1
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        replayed = step()
    *recurrences, labels = streams
    assert labels not in recurrences
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        graph.replay()
        torch.manual_seed(seed)
        launched = step()
        assert all(torch.equal(a, b) for a, b in zip(replayed, launched, strict=True))
