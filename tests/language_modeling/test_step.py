"""Replayed training steps equal launched ones. On a CPU a replay does the work again."""

from functools import partial

import pytest
import torch
from torch import nn

from drill.data import Segment, SequenceLengths, training_segments
from drill.kernels.lstm.lstm import choose
from drill.kernels.lstm.persistent.layout import LARGEST_BATCH
from drill.kernels.optimizer import sgd_step
from drill.kernels.runtime import overlap
from drill.language_modeling.step import CapturedSteps, LanguageModelState, Steps, capture_blocker
from drill.layers import (
    AdaptiveSoftmax,
    DeepResidual,
    FeatureBags,
    Mixtape,
    MixtureOfSoftmaxes,
    SigSoftmax,
    TiedSoftmax,
)
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.training.cuda_graphs import GraphCapture
from drill.training.distributed import World
from drill.training.optim import AdamW, Asgd, NtAsgd, Sgd
from drill.training.run.checkpoint import split_tensors
from tests.helpers.devices import no_gpu_sync

ROWS, BATCH, WORDS, BPTT = 120, 3, 17, 8
OPTIONS = {"ar_weight": 2.0, "tar_weight": 1.0, "check": False}
MORE = {**OPTIONS, "adversarial": 0.05, "state_reset": 0.3}
ALONE, CPU = World(), torch.device("cpu")


def model(device="cpu", layer=TiedSoftmax, dropout=0.3):
    torch.manual_seed(0)
    bags = [[[i % 6, i % 5], [6 + i % 3]] for i in range(WORDS)]
    embedding = FeatureBags(bags, 9, 16) if layer is described else nn.Embedding(WORDS, 16)
    encoder = AwdLstm(embedding, 24, 2, weight_drop=dropout)
    return LanguageModel(encoder, layer(embedding)).to(device)


def over_tied(kind, **options):
    return lambda embedding: kind(TiedSoftmax(embedding), **options)


deep = partial(DeepResidual, depth=2, dropout=0.3)
described = partial(DeepResidual, depth=1)  # over a label source in the place of the embedding
mixture = over_tied(MixtureOfSoftmaxes, experts=2)
sigsoftmax = over_tied(SigSoftmax)
mixtape = over_tied(Mixtape, experts=2, gates=5)

# The average starts inside an epoch, between two segments.
LATE = {"schedule": "linear", "average_from": 0.45}
late_sgd = partial(Sgd, **LATE, hold=0.3)
late_adamw = partial(AdamW, **LATE)


def prepared(optimizer, kind=CapturedSteps, *, trained=None, batch=BATCH, **settings):
    """Steps of a new model, and its state."""
    trained = model() if trained is None else trained
    device = next(trained.parameters()).device
    torch.manual_seed(5)
    data = torch.randint(WORDS, (ROWS, batch), device=device)
    optimizer.setup(trained.named_parameters())
    settings = {"bptt": BPTT, "options": OPTIONS, **settings}
    nll = torch.zeros((), dtype=torch.float64, device=device)
    numbers = {"epochs": 1, "epoch_size": ROWS, "data_checksum": 0}
    state = LanguageModelState(lengths=SequenceLengths(3, BPTT), nll=nll, **numbers)
    return kind(trained, data, optimizer, **settings), state


def run(kind, optimizer, device="cpu", layer=TiedSoftmax, epochs=3, **settings):
    """Train a few epochs; gives the state, the losses and the steps."""
    trained = model(device, layer)
    step, state = prepared(optimizer, kind, trained=trained, **settings)
    torch.manual_seed(9)
    losses = []
    for epoch in range(epochs):
        for segment in training_segments(ROWS, state.lengths):
            step(state, segment, (epoch + state.position / ROWS) / epochs)
            state.position += segment.length
        losses.append(float(state.nll))
        optimizer.epoch_ended(1.0)  # NT-ASGD starts to average
        if epoch + 1 < epochs:
            state.next_epoch()
    return state, losses, step


def assert_replays_equal_launches(optimizer, **given):
    ours, theirs = optimizer(), optimizer()
    state, losses, step = run(CapturedSteps, ours, **given)
    plain, wanted, launched = run(Steps, theirs, **given)
    assert losses == wanted
    mine, numbers = split_tensors(ours.state_dict())
    expected, wanted_numbers = split_tensors(theirs.state_dict())
    assert numbers == wanted_numbers
    assert mine.keys() == expected.keys()
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    assert all(map(torch.equal, step.trained.parameters(), launched.trained.parameters()))
    for one, other in zip(state.hidden, plain.hidden, strict=True):
        assert all(map(torch.equal, one, other))
    assert step.cache.replays
    return losses


EVERY_DEVICE = pytest.mark.parametrize(
    ("device", "autocast"),
    [
        ("cpu", None),
        *(pytest.param("cuda", each, marks=pytest.mark.gpu) for each in (None, torch.bfloat16)),
    ],
)


@EVERY_DEVICE
@pytest.mark.parametrize("layer", [TiedSoftmax, deep, mixture])
@pytest.mark.parametrize(
    "optimizer", [Sgd, Asgd, lambda: NtAsgd(patience=0), AdamW, late_sgd, late_adamw]
)
def test_replays_train_as_launches_do(optimizer, layer, device, autocast):
    given = {"device": device, "layer": layer, "autocast": autocast}
    assert_replays_equal_launches(optimizer, **given, epochs=4)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        *((each, MORE) for each in (TiedSoftmax, deep, described, mixture, sigsoftmax)),
        (mixtape, {**MORE, "memory": 2**12}),  # in blocks of tokens
    ],
)
@EVERY_DEVICE
def test_replays_with_all_regularisers_equal_launches(layer, options, device, autocast):
    given = {"device": device, "layer": layer, "autocast": autocast}
    losses = assert_replays_equal_launches(Sgd, **given, options=options)
    assert losses[:1] != run(Steps, Sgd(), **given, epochs=1)[1]


def test_overlap_scope_knows_all_parameters_for_the_whole_step():
    step, state = prepared(Sgd())
    known = []

    def look(*_):
        scope = overlap._scope.get()
        known.append(scope is not None and scope.knows(list(step.model.parameters())))

    step.model.register_forward_pre_hook(look)
    step.model.layer.bias.register_hook(look)
    for _ in range(2):
        step(state, Segment(0, 5, 5), 0.0)
    assert known == 4 * [True]
    assert overlap._scope.get() is None


def test_averaging_and_longer_segments_are_captured_again():
    step, state = prepared(NtAsgd(patience=0))
    for _ in range(3):
        step(state, Segment(0, 5, 5), 0.0)
    assert set(step.cache.replays) == {5}
    step.optimizer._average()
    step(state, Segment(0, 6, 6), 0.0)
    assert not step.cache.replays
    step(state, Segment(0, 6, 6), 0.0)
    step(state, Segment(0, 4 * BPTT, 4 * BPTT), 0.0)  # longer than the room for ids
    assert not step.cache.replays


def test_given_state_is_used_and_a_new_epoch_starts_from_zero():
    step, state = prepared(Sgd(lr=1e-9), trained=model(dropout=0.0))
    initial = step.model.initial_state(BATCH)
    given = tuple(tuple(torch.ones_like(t) for t in layer) for layer in initial)
    state.hidden = given
    step.model.eval()
    for start in (given, None):
        step(state, Segment(0, 5, 5), 0.0)
        _, wanted = step.model.log_probs(step.data[:5], start)
        torch.testing.assert_close(state.hidden[0][0], wanted[0][0])
        state.next_epoch()
    assert given[0][0].eq(1).all()


def test_capture_blocker_says_why_steps_are_launched():
    step, _ = prepared(Sgd())
    blocker = capture_blocker(step.model, step.optimizer, False, 1, None)
    assert blocker == "training.cuda_graphs is false"
    assert "not cpu" in capture_blocker(step.model, step.optimizer, True, 1, None)


def with_unused(embedding):
    """A layer with a trained parameter that its loss does not touch."""
    layer = TiedSoftmax(embedding)
    layer.unused = nn.Parameter(torch.zeros(3))
    return layer


def test_parameter_without_a_gradient_is_named_and_steps_are_launched(monkeypatch, caplog):
    monkeypatch.setattr(sgd_step, "unsupported_reason", lambda tensors: None)  # as on a GPU
    with caplog.at_level("INFO", logger="drill"):
        _, losses, step = run(CapturedSteps, Asgd(), layer=with_unused)
    assert step.blocker == "layer.unused has no gradient"
    assert sum(step.blocker in message for message in caplog.messages) == 1
    assert not step.cache.replays
    _, wanted, launched = run(Steps, Asgd(), layer=with_unused)
    assert losses == wanted
    assert all(map(torch.equal, step.trained.parameters(), launched.trained.parameters()))


def test_replay_increments_the_versions_of_what_it_changes():
    class Silent(GraphCapture):
        """Replays of which torch sees nothing, as of CUDA's."""

        def capture(self, work):
            return lambda: None

    step, state = prepared(Asgd())
    step.graphs = Silent(CPU, instead="")
    step(state, Segment(0, 5, 5), 0.0)
    changed = [*step.model.parameters(), *split_tensors(step.optimizer.state_dict())[0].values()]
    assert len(changed) == 2 * len(list(step.model.parameters()))
    before = [tensor._version for tensor in changed]
    loss = step.model.encoder.lstms[0].weight_hh_l0.square().sum()
    step(state, Segment(0, 5, 5), 0.0)
    assert all(tensor._version > old for tensor, old in zip(changed, before, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.gpu
def test_capture_blocker_on_a_gpu():
    trained = model("cuda", lambda embedding: AdaptiveSoftmax(TiedSoftmax(embedding), [5, 10]))
    step, _ = prepared(Sgd(), trained=trained)
    assert "AdaptiveSoftmax" in capture_blocker(trained, step.optimizer, True, 1, None)
    step, _ = prepared(Sgd(), trained=model("cuda"))
    assert capture_blocker(step.model, step.optimizer, True, 1, None) is None
    assert "several processes" in capture_blocker(step.model, step.optimizer, True, 2, None)
    assert "in parts" in capture_blocker(step.model, step.optimizer, True, 1, 2)


@pytest.mark.gpu
def test_replays_of_a_large_batch_equal_launches_of_the_stepwise_lstm():
    """There the LSTMs are a product and a kernel per step, inside the same graph."""
    results = []
    for kind in (CapturedSteps, Steps):
        trained = model("cuda", dropout=0.5)
        step, state = prepared(
            Sgd(), kind, trained=trained, batch=LARGEST_BATCH + 1, autocast=torch.bfloat16
        )
        with torch.autocast("cuda", torch.bfloat16):
            weight = trained.encoder.lstms[0].weight_hh_l0
            assert choose("auto", trained.encoder.embedding(step.data[:5]), weight)[0] == "graph"
        torch.manual_seed(9)
        for start in range(0, 60, 6):
            step(state, Segment(start, 6, 6), 0.0)
        results.append((state.nll, *trained.parameters()))
    assert all(map(torch.equal, *results))


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [Sgd, Asgd, AdamW, late_sgd, late_adamw])
def test_replays_do_not_wait_for_the_device(optimizer):
    step, state = prepared(optimizer(), trained=model("cuda"), autocast=torch.bfloat16)
    lengths = (5, 6, 7)
    for length in lengths * 2:  # launched, then captured
        step(state, Segment(0, length, length), 0.5)
    with no_gpu_sync():
        for length in lengths * 3:
            step(state, Segment(10, length, length), 0.5)
    assert state.nll.isfinite()
