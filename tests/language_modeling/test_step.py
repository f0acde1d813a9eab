"""Replayed training steps are the launched ones. On a CPU a replay does the work again."""

import pytest
import torch
from torch import nn

from drill.data import Segment, sequence_lengths, training_segments
from drill.kernels.lstm.lstm import LARGEST_PERSISTENT_BATCH, choose
from drill.kernels.optimizer import sgd_step
from drill.kernels.runtime import overlap
from drill.language_modeling.state import LanguageModelState
from drill.language_modeling.step import (
    RecordedSteps,
    Steps,
    capture_blocker,
    steps,
)
from drill.layers import AdaptiveSoftmax, DeepResidual, MixtureOfSoftmaxes, TiedSoftmax
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.training.cuda_graphs import GraphRecorder
from drill.training.distributed import World
from drill.training.loop import AsyncLoss
from drill.training.optim import AdamW, Asgd, NtAsgd, Sgd
from drill.training.state import Limits
from tests.waiting import waiting_forbidden

ROWS, BATCH, WORDS, BPTT = 120, 3, 17, 8
OPTIONS = {"ar_weight": 2.0, "tar_weight": 1.0, "check": False}
SETTINGS = {"bptt": BPTT, "options": OPTIONS}
ALONE, CPU = World(), torch.device("cpu")


def model(device="cpu", layer=TiedSoftmax, dropout=0.3):
    torch.manual_seed(0)
    embedding = nn.Embedding(WORDS, 16)
    encoder = AwdLstm(embedding, 24, 2, weight_drop=dropout)
    return LanguageModel(encoder, layer(embedding)).to(device)


def deep(embedding):
    return DeepResidual(embedding, depth=2, dropout=0.3)


def mixture(embedding):
    return MixtureOfSoftmaxes(TiedSoftmax(embedding), 2)


def text(device="cpu"):
    torch.manual_seed(5)
    return torch.randint(WORDS, (ROWS, BATCH), device=device)


def position(device="cpu"):
    nll = torch.zeros((), dtype=torch.float64, device=device)
    limits = Limits(1, None, None)
    lengths = sequence_lengths(3, BPTT)
    return LanguageModelState(limits=limits, epoch_size=ROWS, lengths=lengths, nll=nll, text=0)


def run(kind, optimizer, device="cpu", layer=TiedSoftmax, epochs=3, **settings):
    """Train a few epochs; gives the position, the parameters and the steps."""
    trained, data, at = model(device, layer), text(device), position(device)
    optimizer.setup(trained.named_parameters())
    step = kind(trained, data, optimizer, **SETTINGS, **settings)
    torch.manual_seed(9)
    losses = []
    for epoch in range(epochs):
        for segment in training_segments(ROWS, at.lengths):
            step(at, segment, (epoch + at.position / ROWS) / epochs)
            at.position += segment.length
        losses.append(float(at.nll))
        optimizer.epoch_ended(1.0)  # averaging starts where the optimizer knows how
        if epoch + 1 < epochs:
            at.next_epoch()
    return at, losses, list(trained.parameters()), step


def late_sgd():
    """The average begins inside an epoch, between two segments."""
    return Sgd(schedule="linear", hold=0.3, average_from=0.45)


def late_adamw():
    return AdamW(schedule="linear", average_from=0.45, average="ema", ema_decay=0.9)


@pytest.mark.parametrize("layer", [TiedSoftmax, deep, mixture])
@pytest.mark.parametrize(
    "optimizer", [Sgd, Asgd, lambda: NtAsgd(patience=0), AdamW, late_sgd, late_adamw]
)
def test_replays_train_as_launches_do(optimizer, layer):
    ours, theirs = optimizer(), optimizer()
    at, losses, found, step = run(RecordedSteps, ours, layer=layer)
    plain, wanted, truth, _ = run(Steps, theirs, layer=layer)
    assert same_state(ours, theirs)
    assert losses == wanted
    for a, b in zip(found, truth, strict=True):
        assert torch.equal(a, b)
    for ours, theirs in zip(at.hidden, plain.hidden, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert step.cache.replays


MORE = {**OPTIONS, "adversarial": 0.05, "state_reset": 0.3}


@pytest.mark.parametrize("layer", [TiedSoftmax, deep])
def test_so_they_do_with_lowered_targets_and_reset_states(layer, monkeypatch):
    plain = run(Steps, Sgd(), layer=layer)[1]
    monkeypatch.setitem(SETTINGS, "options", MORE)
    at, losses, found, _ = run(RecordedSteps, Sgd(), layer=layer)
    other, wanted, truth, _ = run(Steps, Sgd(), layer=layer)
    assert losses == wanted != plain
    assert all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))
    assert torch.equal(at.hidden[0][0], other.hidden[0][0])


def same_state(one, other):
    """Whether two optimizers have the same bits to save, averages among them."""
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys()
    assert one.numbers() == other.numbers()
    return all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("optimizer", [late_sgd, late_adamw])
def test_steps_are_recorded_anew_for_the_first_averaged_one(optimizer):
    trained, data, at, optimizer = model(), text(), position(), optimizer()
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS)
    for _ in range(3):
        step(at, Segment(0, 5, 5), 0.4)
    first = step.cache.replays[5]
    step(at, Segment(0, 5, 5), 0.45)
    second = step.cache.replays[5]
    assert second is not first
    assert optimizer.averaging
    step(at, Segment(0, 5, 5), 0.5)
    assert step.cache.replays[5] is second
    assert optimizer.average.count == 2


def test_labels_have_room_for_the_whole_of_a_step():
    """Beside recurrences: ``drill.kernels.runtime.overlap``."""
    trained, data, at, optimizer = model(), text(), position(), Sgd()
    optimizer.setup(trained.named_parameters())
    known = []
    trained.register_forward_pre_hook(lambda *_: known.append(knows_all(trained)))
    trained.layer.bias.register_hook(lambda grad: known.append(knows_all(trained)))
    step = RecordedSteps(trained, data, optimizer, **SETTINGS)
    for _ in range(2):
        step(at, Segment(0, 5, 5), 0.0)
    assert known == 4 * [True]
    assert overlap._scope.get() is None


def knows_all(trained):
    room = overlap._scope.get()
    return room is not None and room.knows(list(trained.parameters()))


def test_a_length_is_launched_once_and_recorded_at_its_second_segment():
    recorded = []

    class Recorder(GraphRecorder):
        def record(self, work):
            recorded.append(work)
            return work

    trained, data, at, optimizer = model(), text(), position(), Sgd()
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(
        trained, data, optimizer, **SETTINGS, graphs=Recorder(CPU, instead="do without")
    )
    for count, length in ((0, 5), (0, 7), (1, 5), (1, 5), (2, 7)):
        step(at, Segment(0, length, length), 0.0)
        assert len(recorded) == count


def test_another_way_to_step_and_longer_segments_are_recorded_anew():
    trained, data, at, optimizer = model(), text(), position(), NtAsgd(patience=0)
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS)
    for _ in range(3):
        step(at, Segment(0, 5, 5), 0.0)
    assert set(step.cache.replays) == {5}
    optimizer._average()
    step(at, Segment(0, 6, 6), 0.0)
    assert not step.cache.replays
    step(at, Segment(0, 6, 6), 0.0)
    step(at, Segment(0, 4 * BPTT, 4 * BPTT), 0.0)  # longer than the room for ids
    assert not step.cache.replays


def test_a_given_state_is_taken_and_a_new_epoch_starts_from_zero():
    trained, data, at, optimizer = model(dropout=0.0), text(), position(), Sgd(lr=1e-9)
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS)
    given = tuple(
        tuple(torch.ones_like(t) for t in layer) for layer in trained.initial_state(BATCH)
    )
    at.hidden = given
    trained.eval()
    step(at, Segment(0, 5, 5), 0.0)
    _, state = trained.log_probs(data[:5], given)
    torch.testing.assert_close(at.hidden[0][0], state[0][0])
    assert given[0][0].eq(1).all()
    at.next_epoch()
    step(at, Segment(0, 5, 5), 0.0)
    _, state = trained.log_probs(data[:5])
    torch.testing.assert_close(at.hidden[0][0], state[0][0])


def test_where_steps_are_launched_one_by_one_it_says_why():
    trained, optimizer = model(), Sgd()
    optimizer.setup(trained.named_parameters())
    assert capture_blocker(trained, optimizer, False, 1, None) == "asked for"
    assert "not cpu" in capture_blocker(trained, optimizer, True, 1, None)
    made = steps(
        trained,
        trained,
        text(),
        optimizer,
        cuda_graphs=True,
        world_size=1,
        micro_batch=None,
        **SETTINGS,
    )
    assert type(made) is Steps


def test_lengths_beyond_the_most_graphs_are_launched_and_told_once(monkeypatch, caplog):
    monkeypatch.setattr("drill.training.cuda_graphs.MOST_GRAPHS", 1)
    trained, data, at, optimizer = model(), text(), position(), AdamW()
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS)
    with caplog.at_level("WARNING", logger="drill"):
        for length in (5, 5, 6, 6, 6, 7, 7):
            step(at, Segment(0, length, length), 0.0)
    assert list(step.cache.replays) == [5]
    (told,) = caplog.messages
    assert "steps of 1 lengths are replayed" in told


def test_a_cpu_is_looked_at_at_once():
    at = position()
    at.nll += 6.0
    at.position = 3
    assert AsyncLoss(CPU)(at, ALONE) == 2.0


def with_unused(embedding):
    """A layer with a trained parameter that its loss does not touch."""
    layer = TiedSoftmax(embedding)
    layer.unused = nn.Parameter(torch.zeros(3))
    return layer


def test_a_parameter_without_a_gradient_is_named_and_steps_are_launched(monkeypatch, caplog):
    monkeypatch.setattr(sgd_step, "supported", lambda tensors: None)  # as on a GPU
    with caplog.at_level("INFO", logger="drill"):
        _, losses, found, step = run(RecordedSteps, Asgd(), layer=with_unused)
    reason = "layer.unused has no gradient"
    assert caplog.messages.count(f"training: steps are launched one by one: {reason}") == 1
    assert step.obstacle == reason
    assert not step.cache.replays
    _, wanted, truth, _ = run(Steps, Asgd(), layer=with_unused)
    assert losses == wanted
    for a, b in zip(found, truth, strict=True):
        assert torch.equal(a, b)


def test_other_modes_and_other_places_of_parameters_are_recorded_anew():
    trained, data, at, optimizer = model(), text(), position(), AdamW()
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS)

    def record():
        for _ in range(2):
            step(at, Segment(0, 5, 5), 0.0)
        held = step.cache.replays[5]
        step(at, Segment(0, 5, 5), 0.0)
        assert step.cache.replays[5] is held
        return held

    first = record()
    trained.encoder.eval()
    second = record()
    weight = trained.encoder.lstms[0].weight_hh_l0
    weight.data = weight.data.clone()
    assert len({first, second, record()}) == 3


def test_autograd_hears_of_a_replay():
    class Silent(GraphRecorder):
        """Replays of which torch sees nothing, as of CUDA's."""

        def record(self, work):
            return lambda: None

    trained, data, at, optimizer = model(), text(), position(), Asgd()
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS, graphs=Silent(CPU, instead=""))
    step(at, Segment(0, 5, 5), 0.0)
    held = [*trained.parameters(), *optimizer.tensors().values()]
    assert len(held) == 2 * len(list(trained.parameters()))
    before = [tensor._version for tensor in held]
    loss = trained.encoder.lstms[0].weight_hh_l0.square().sum()
    step(at, Segment(0, 5, 5), 0.0)
    assert all(tensor._version > old for tensor, old in zip(held, before, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [TiedSoftmax, deep, mixture])
@pytest.mark.parametrize(
    "optimizer", [Sgd, lambda: NtAsgd(patience=0), AdamW, late_sgd, late_adamw]
)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_graphs_train_as_launches_do(optimizer, layer, autocast):
    given = {"device": "cuda", "layer": layer, "epochs": 4, "autocast": autocast}
    ours, theirs = optimizer(), optimizer()
    at, losses, found, step = run(RecordedSteps, ours, **given)
    _, wanted, truth, _ = run(Steps, theirs, **given)
    assert losses == wanted
    assert same_state(ours, theirs)
    for a, b in zip(found, truth, strict=True):
        assert torch.equal(a, b)
    assert step.cache.replays
    assert at.hidden is step.hidden


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [TiedSoftmax, deep])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_graphs_lower_targets_and_reset_states_as_launches_do(layer, autocast, monkeypatch):
    monkeypatch.setitem(SETTINGS, "options", MORE)
    given = {"device": "cuda", "layer": layer, "autocast": autocast}
    _, losses, found, step = run(RecordedSteps, Sgd(), **given)
    _, wanted, truth, _ = run(Steps, Sgd(), **given)
    assert step.cache.replays
    assert losses == wanted
    assert all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))


@pytest.mark.gpu
def test_what_cannot_be_recorded_says_so():
    trained = model("cuda", lambda embedding: AdaptiveSoftmax(TiedSoftmax(embedding), [5, 10]))
    optimizer = Sgd()
    optimizer.setup(trained.named_parameters())
    assert "AdaptiveSoftmax" in capture_blocker(trained, optimizer, True, 1, None)
    plain = model("cuda")
    optimizer.setup(plain.named_parameters())
    assert capture_blocker(plain, optimizer, True, 1, None) is None
    assert "several processes" in capture_blocker(plain, optimizer, True, 2, None)
    assert "in parts" in capture_blocker(plain, optimizer, True, 1, 2)


@pytest.mark.gpu
def test_a_glance_at_a_gpu_does_not_wait():
    at, glance = position("cuda"), AsyncLoss(torch.device("cuda"))
    at.nll += 6.0
    at.position = 3
    assert glance(at, ALONE) is None
    torch.cuda.synchronize()
    assert glance(at, ALONE) == 2.0


@pytest.mark.gpu
def test_replays_of_a_large_batch_are_launches_of_the_stepwise_lstm():
    """There the LSTMs are a product and a kernel per step, inside the same graph."""
    results = []
    for kind in (RecordedSteps, Steps):
        trained, at, optimizer = model("cuda", dropout=0.5), position("cuda"), Sgd()
        torch.manual_seed(5)
        data = torch.randint(WORDS, (ROWS, LARGEST_PERSISTENT_BATCH + 1), device="cuda")
        optimizer.setup(trained.named_parameters())
        step = kind(trained, data, optimizer, **SETTINGS, autocast=torch.bfloat16)
        with torch.autocast("cuda", torch.bfloat16):
            weight = trained.encoder.lstms[0].weight_hh_l0
            assert choose("auto", trained.encoder.embedding(data[:5]), weight)[0] == "graph"
        torch.manual_seed(9)
        for start in range(0, 60, 6):
            step(at, Segment(start, 6, 6), 0.0)
        results.append((float(at.nll), *trained.parameters()))
    (loss, *found), (wanted, *truth) = results
    assert loss == wanted
    for a, b in zip(found, truth, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [Sgd, Asgd, AdamW, late_sgd, late_adamw])
def test_replays_wait_for_nothing(optimizer):
    trained, data, at, optimizer = model("cuda"), text("cuda"), position("cuda"), optimizer()
    optimizer.setup(trained.named_parameters())
    step = RecordedSteps(trained, data, optimizer, **SETTINGS, autocast=torch.bfloat16)
    lengths = (5, 6, 7)
    for length in lengths * 2:  # launched, then recorded
        step(at, Segment(0, length, length), 0.5)
    with waiting_forbidden():
        for length in lengths * 3:
            step(at, Segment(10, length, length), 0.5)
    assert at.nll.isfinite()
