"""Optimizers: their steps, when NT-ASGD switches, and that a saved one goes on."""

import json
import math
from collections import OrderedDict
from itertools import product

import pytest
import torch
from torch import nn

from drill.kernels.optimizer import sgd_step
from drill.training.optim import (
    OPTIMIZERS,
    AdamW,
    AveragedSgd,
    NtAsgd,
    ScheduledOptimizer,
    Sgd,
)
from drill.training.optim.muon import is_table
from drill.training.optim.optimizer import is_label_map
from drill.training.run.checkpoint import split_tensors
from tests.layers.table import every_case, every_matrix_case, make


def model() -> nn.Module:
    torch.manual_seed(3)
    layer = nn.Sequential(OrderedDict(maps=nn.Linear(3, 2)))  # named as label maps are
    net = OrderedDict(encoder=nn.Linear(4, 3), tanh=nn.Tanh(), layer=layer)
    return nn.Sequential(net).double()


def train(
    optimizer: ScheduledOptimizer,
    net: nn.Module,
    steps: int,
    start: int = 0,
    losses: tuple[float, ...] = (),
):
    """``steps`` steps on data that only depends on the step; ``losses`` end epochs, one a step."""
    for i in range(start, start + steps):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        net(x).square().sum().backward()
        optimizer.step(sampled_length=60 + i % 20, bptt=70, progress=i / 40)
        if i < len(losses):
            optimizer.epoch_ended(losses[i])


def begin(optimizer: ScheduledOptimizer) -> tuple[nn.Module, ScheduledOptimizer]:
    """A new model, and its optimizer."""
    net = model()
    optimizer.setup(net.named_parameters())
    return net, optimizer


def values(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_nt_asgd_is_sgd_then_averaged_sgd():
    losses = (5.0, 4.0, 3.0, 4.5)
    (net, optimizer), (other, plain) = begin(NtAsgd(0.1, patience=1)), begin(Sgd(0.1))
    train(optimizer, net, 4, losses=losses)  # 4.5 > min(5, 4) ends SGD
    train(plain, other, 4)
    assert same(values(net), values(other))
    assert isinstance(optimizer.optimizer, AveragedSgd)
    assert not optimizer.averaging  # no average before a step
    before = values(net)
    with optimizer.averaged_weights():
        assert same(values(net), before)
    train(optimizer, net, 3, start=4)
    assert optimizer.averaging
    now = values(net)
    with optimizer.averaged_weights():
        assert not same(values(net), now)
    assert same(values(net), now)


# -- schedules over a run -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Sgd, AdamW])
@pytest.mark.parametrize(
    ("settings", "wanted"),  # rates at 0, 1/8, 1/4, 1/2, 3/4, 7/8 and 1
    [
        ({"schedule": "constant"}, [8, 8, 8, 8, 8, 8, 8]),
        ({"schedule": "constant", "warmup": 0.25}, [0, 4, 8, 8, 8, 8, 8]),
        ({"schedule": "linear"}, [8, 7, 6, 4, 2, 1, 0]),
        ({"schedule": "linear", "hold": 0.5}, [8, 8, 8, 8, 4, 2, 0]),
        ({"schedule": "linear", "hold": 0.5, "final": 0.25}, [8, 8, 8, 8, 5, 3.5, 2]),
        ({"schedule": "linear", "warmup": 0.25, "hold": 0.25}, [0, 4, 8, 8, 4, 2, 0]),
        ({"schedule": "linear", "warmup": 0.25}, [0, 4, 8, 16 / 3, 8 / 3, 4 / 3, 0]),
        ({"schedule": "cosine", "hold": 0.5, "final": 0.5}, [8, 8, 8, 8, 6, 4.585786, 4]),
        ({"schedule": "cosine"}, [8, 7.695518, 6.828427, 4, 1.171573, 0.304482, 0]),
    ],
)
def test_rates_over_a_run(kind, settings, wanted):
    optimizer = kind(8.0, **{"warmup": 0.0, **settings})
    found = [optimizer.rate(at) for at in (0, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 1)]
    assert found == pytest.approx(wanted, abs=1e-4)
    assert optimizer.rate(1.0) == wanted[-1]
    assert optimizer.rate(1.5) == wanted[-1]


def resumed(optimizer: ScheduledOptimizer, settings: dict) -> ScheduledOptimizer:
    _, again = begin(type(optimizer)(**settings))
    tensors, numbers = split_tensors(optimizer.state_dict())
    again.load_state_dict(tensors | json.loads(json.dumps(numbers)))
    return again


def test_rates_decay_by_epochs():
    settings = {"lr": 8.0, "lr_decay": 2.0, "lr_decay_after": 2}
    (_, optimizer), found = begin(Sgd(**settings)), []
    for epoch in range(5):
        found.append(optimizer.rate(0.3))
        optimizer.epoch_ended(1.0)
        if epoch == 2:
            optimizer = resumed(optimizer, settings)
    assert found == [8.0, 8.0, 4.0, 2.0, 1.0]


def test_averaging_starts_early_without_better_validations():
    settings = {"lr": 0.01, "average_from": 0.9, "average_patience": 2}
    (net, optimizer), found = begin(AdamW(**settings)), []
    for i, loss in enumerate((5.0, 4.0, 4.5, 3.0, 3.0, 3.5, 9.0)):
        train(optimizer, net, 1, start=i)
        found.append(optimizer.averaging)
        optimizer.epoch_ended(loss)
        if i == 4:
            optimizer = resumed(optimizer, settings)
            optimizer.setup(net.named_parameters())
    assert found == [False] * 6 + [True]


LATE = {"average_from": 0.5}
WRONG: list[dict[str, object]] = [  # the last one is named
    {"lr": math.nan}, {"max_grad_norm": 0.0}, {"weight_decay": -1.0}, {"map_lr_scale": -1.0},
    {"map_lr_scale": math.nan}, {"schedule": "noam"}, {"warmup": 1.0},
    *({"schedule": "linear", "hold": hold} for hold in (-0.1, math.nan)),
    {"schedule": "linear", "warmup": 0.4, "hold": 0.6}, {"schedule": "constant", "hold": 0.5},
    {"schedule": "cosine", "final": 1.5}, {"schedule": "constant", "final": 0.5},
    {"average_from": 1.0}, {"average_from": math.nan},
]  # fmt: skip
WRONG_OF_ADAMW: list[dict[str, object]] = [
    {**LATE, "average_patience": 0}, {"average_patience": 3}, {"warmup_steps": 0}, {"beta1": 1.5},
    {"beta2": math.nan}, {"eps": 0.0}, {"eps": math.inf},
    {"schedule": "one-cycle", "hold": 0.3}, {"schedule": "one-cycle", "warmup": 0.0},
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *product([Sgd, AdamW], WRONG),
        *product([Sgd], [{"lr_decay": 0.9}, {"lr_decay_after": -1}]),
        *product([AdamW], WRONG_OF_ADAMW),
    ],
)
def test_wrong_settings_are_named(kind, settings):
    with pytest.raises(ValueError, match=rf"(WeightAverage|{kind.__name__}): {[*settings][-1]} "):
        kind(**settings)


def test_an_optimizer_needs_parameters():
    with pytest.raises(ValueError, match="no parameter to train"):
        Sgd().setup([])


# -- which parameters of a layer ------------------------------------------------------------------

OTHERS = {
    "bias", "context_map", "context_maps", "prior", "latent", "latents", "slopes", "cluster_bias",
    "gate_context", "gate_prior",
    "label_maps",  # of adaptive: narrower vectors, which take part in its own loss alone
}  # fmt: skip
"""Attributes that are neither label maps nor rows of labels."""


@every_case
def test_every_parameter_of_a_layer_is_classified(name):
    for parameter, _ in make(name).named_parameters():
        attribute = next(part for part in parameter.split(".") if part != "layer")
        kinds = [is_label_map(f"layer.{parameter}"), is_table(f"layer.{parameter}")]
        assert [*kinds, attribute in OTHERS].count(True) == 1, parameter


@every_matrix_case
def test_label_maps_are_what_makes_labels_of_rows(name):
    layer = make(name)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    grads = torch.autograd.grad(layer.labels().sum(), parameters, allow_unused=True)
    for parameter, grad in zip(names, grads, strict=True):
        filed = is_label_map(f"layer.{parameter}") or is_table(f"layer.{parameter}")
        assert filed == (grad is not None), parameter


# -- averages of late weights ---------------------------------------------------------------------

AVERAGED = {
    "averaged sgd": lambda **more: Sgd(0.05, average_from=0.1, **more),
    "averaged adamw": lambda **more: AdamW(0.05, average_from=0.1, **more),
}
every_average = pytest.mark.parametrize("name", AVERAGED)


@every_average
def test_averages_are_those_of_the_iterates_and_leave_training_as_it_is(name):
    net, optimizer = begin(AVERAGED[name]())
    other, plain = begin((Sgd if "sgd" in name else AdamW)(0.05))
    train(plain, other, 10)
    iterates = []
    for i in range(10):
        train(optimizer, net, 1, start=i)  # progress is i / 40: averaged from the fifth step on
        assert optimizer.averaging == (i >= 4)
        iterates.append(values(net))
    late = [torch.stack(each) for each in zip(*iterates[4:], strict=True)]
    before = values(net)
    with optimizer.averaged_weights():
        means = [each.mean(0) for each in late]
        torch.testing.assert_close(values(net), means, rtol=1e-12, atol=1e-14)
    assert same(values(net), before)
    assert same(before, values(other))


def test_averaging_goes_on_when_the_run_is_given_more_time():
    net, optimizer = begin(Sgd(0.05, average_from=0.5))
    for progress in (0.4, 0.6, 0.3):
        net(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
        optimizer.step(70, 70, progress)
    assert optimizer.late_average.count == 2


@every_average
def test_the_start_of_an_average_is_another_phase_before_its_first_step(name):
    net, optimizer = begin(AVERAGED[name]())
    train(optimizer, net, 2)
    before = optimizer.phase
    optimizer.prepare(0.05)
    assert optimizer.phase is before
    optimizer.prepare(0.1)
    after = optimizer.phase
    assert after is not before
    assert not optimizer.averaging
    train(optimizer, net, 2, start=4)
    assert optimizer.phase is after


def test_one_pass_gets_the_rate_of_its_own_step_and_the_share_of_the_average(monkeypatch):
    passes = []  # numbers and count of averages of every group that would be stepped on a GPU

    def launched(groups, *, clip):
        for each in groups:
            passes.append((each.numbers.tolist(), each.averages and len(each.averages)))

    monkeypatch.setattr(sgd_step, "unsupported_reason", lambda tensors: None)
    monkeypatch.setattr(sgd_step, "sgd_step", launched)
    net, optimizer = begin(Sgd(2.0, schedule="linear", average_from=0.5))
    for progress in (0.25, 0.5, 0.75):
        net(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
        optimizer.step(35, 70, progress)
    assert [count for _, count in passes] == [None, 4, 4]
    found = [number for numbers, _ in passes for number in numbers]
    assert found == pytest.approx([0.75, 0.0, 0.5, 1.0, 0.25, 0.5], abs=1e-5)


# -- AdamW ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_autograd_counts_every_step(name):
    net, optimizer = begin(OPTIMIZERS[name](0.1))
    before = [p._version for p in net.parameters()]
    train(optimizer, net, 1)
    assert all(p._version > old for p, old in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_label_maps_have_a_rate_of_their_own(name):
    nets = model(), model()
    before = dict(model().named_parameters())
    for net, scale in zip(nets, (0.5, 1.0), strict=True):
        optimizer = OPTIMIZERS[name](0.05, weight_decay=0.0, max_grad_norm=None, map_lr_scale=scale)
        optimizer.setup(net.named_parameters())
        train(optimizer, net, 1, start=10)
    for (key, found), plain in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        wanted = plain if key.startswith("encoder") else before[key] + 0.5 * (plain - before[key])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_label_maps_with_a_rate_of_their_own_are_clipped_by_themselves(name):
    """Their gradients, however large, leave the steps of the others as they are."""
    nets = model(), model()
    for net, factor in zip(nets, (1.0, 1000.0), strict=True):
        optimizer = OPTIMIZERS[name](0.05, max_grad_norm=0.01, map_lr_scale=0.5)
        optimizer.setup(net.named_parameters())
        for key, p in net.named_parameters():
            p.grad = torch.ones_like(p) * (1.0 if key.startswith("encoder") else factor)
        optimizer.step(70, 70, 0.0)
    torch.testing.assert_close(*([*net.parameters()] for net in nets))
