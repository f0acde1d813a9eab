"""Rules: what each does with a gradient, when NT-ASGD switches, and that a saved rule goes on."""

import math

import pytest
import torch
from torch import nn

from drill.training.optim import RULES, AdamW, Asgd, AveragedSgd, NtAsgd, Rule, Sgd


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def train(rule: Rule, net: nn.Module, steps: int, start: int = 0, losses: tuple[float, ...] = ()):
    """``steps`` steps on data that only depends on the step; ``losses`` end epochs, one a step."""
    for i in range(start, start + steps):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        net(x).square().sum().backward()
        rule.step(sampled_length=60 + i % 20, bptt=70, progress=i / 40)
        if i < len(losses):
            rule.epoch_ended(losses[i])


def values(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def test_sgd_is_clipped_decayed_and_scaled_by_the_sampled_length():
    net = model()
    rule = Sgd(2.0, weight_decay=0.1, clip=0.25)
    rule.begin(net.named_parameters())
    net(torch.ones(1, 4, dtype=torch.float64)).square().sum().backward()
    before, grads = values(net), [p.grad.clone() for p in net.parameters()]
    norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
    assert norm > 0.25
    rule.step(sampled_length=35, bptt=70, progress=0.0)
    for new, old, grad in zip(values(net), before, grads, strict=True):
        expected = old - 1.0 * (grad * 0.25 / norm + 0.1 * old)
        torch.testing.assert_close(new, expected, rtol=1e-5, atol=1e-9)  # clipping adds 1e-6
    assert all(p.grad is None for p in net.parameters())


def test_nt_asgd_is_sgd_then_averaged_sgd():
    losses = (5.0, 4.0, 3.0, 4.5)
    net, other = model(), model()
    rule, plain = NtAsgd(0.1, patience=1), Sgd(0.1)
    rule.begin(net.named_parameters())
    plain.begin(other.named_parameters())
    train(rule, net, 4, losses=losses)  # 4.5 > min(5, 4) ends SGD
    train(plain, other, 4)
    assert all(torch.equal(a, b) for a, b in zip(values(net), values(other), strict=True))
    assert isinstance(rule.optimizer, AveragedSgd)
    assert not rule.averaging  # no average before a step
    before = values(net)
    with rule.evaluated():
        assert all(torch.equal(a, b) for a, b in zip(values(net), before, strict=True))
    train(rule, net, 3, start=4)
    assert rule.averaging
    held = values(net)
    with rule.evaluated():
        assert not all(torch.equal(a, b) for a, b in zip(values(net), held, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values(net), held, strict=True))


def test_asgd_averages_from_the_first_step():
    net = model()
    rule = Asgd(0.1)
    rule.begin(net.named_parameters())
    train(rule, net, 1)
    assert rule.averaging


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one-cycle"])
def test_adamw_schedules_rise_and_fall(schedule):
    rule = AdamW(1.0, schedule=schedule, warmup=0.25)
    rates = [rule.rate(i / 100) for i in range(101)]
    assert rates[0] < 0.05
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates[25] == pytest.approx(1.0, abs=1e-3)
    assert rates == sorted(rates[:26]) + sorted(rates[26:], reverse=True)
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.0, abs=1e-3)
    assert rule.rate(7.0) == rates[-1]  # more epochs than planned do not raise it again


def test_adamw_decays_matrices_only():
    net = model()
    rule = AdamW(0.1, weight_decay=0.5)
    rule.begin(net.named_parameters())
    decays = {p.dim(): g["weight_decay"] for g in rule.optimizer.param_groups for p in g["params"]}
    assert decays == {2: 0.5, 1: 0.0}


@pytest.mark.parametrize("name", RULES)
def test_autograd_counts_every_step(name):
    net = model()
    rule = RULES[name](0.1)
    rule.begin(net.named_parameters())
    before = [p._version for p in net.parameters()]
    train(rule, net, 1)
    assert all(p._version > old for p, old in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("cut", [0, 2, 6])
def test_a_saved_rule_goes_on_bit_for_bit(name, cut):
    losses = (5.0, 4.0, 3.0, 4.5)
    whole, part = model(), model()
    straight = RULES[name](0.05)
    straight.begin(whole.named_parameters())
    train(straight, whole, 10, losses=losses)

    first = RULES[name](0.05)
    first.begin(part.named_parameters())
    train(first, part, cut, losses=losses)
    tensors = {key: value.clone() for key, value in first.tensors().items()}
    second = RULES[name](0.05)
    second.begin(part.named_parameters())
    second.load(tensors, first.numbers())
    train(second, part, 10 - cut, start=cut, losses=losses)
    assert all(torch.equal(a, b) for a, b in zip(values(part), values(whole), strict=True))


def test_wrong_settings_name_the_rule_and_the_mend():
    with pytest.raises(ValueError, match="NtAsgd: lr is a finite positive number, not nan"):
        NtAsgd(math.nan)
    with pytest.raises(ValueError, match="clip is a positive number or none, not 0"):
        Sgd(clip=0.0)
    with pytest.raises(ValueError, match="schedule is constant, cosine, one-cycle or inverse-sqrt"):
        AdamW(schedule="linear")
    for name, wrong in (("beta1", 1.5), ("beta2", 1.0), ("beta2", math.nan), ("beta1", -0.1)):
        with pytest.raises(ValueError, match=rf"AdamW: {name} lies in \[0, 1\), not {wrong}"):
            AdamW(**{name: wrong})
    for wrong in (0.0, -1e-8, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"AdamW: epsilon is a finite positive .* {wrong}"):
            AdamW(epsilon=wrong)
    with pytest.raises(ValueError, match="no parameter to train"):
        Sgd().begin([])
    with pytest.raises(RuntimeError, match="call begin"):
        Sgd().step(70, 70, 0.0)


def test_a_rule_knows_the_rate_of_its_last_full_length_step():
    rule = AdamW(lr=1.0, schedule="cosine", warmup=0.0)
    parameter = nn.Parameter(torch.ones(3))
    rule.begin([("w", parameter)])
    assert rule.now == 1.0
    parameter.grad = torch.ones(3)
    rule.step(35, 70, 0.5)
    assert rule.now == pytest.approx(0.5, abs=1e-3)


def test_adamw_on_a_cpu_is_the_rule_of_torch_in_one_pass():
    torch.manual_seed(0)
    start = [torch.randn(30, 20), torch.randn(20)]
    ours, theirs = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    rule = AdamW(0.01, weight_decay=0.3, clip=None, schedule="constant", warmup=0.0)
    rule.begin(zip("ab", ours, strict=True))
    assert rule.optimizer.defaults["fused"]
    groups = [{"params": theirs[:1], "weight_decay": 0.3}, {"params": theirs[1:]}]
    loop = torch.optim.AdamW(groups, lr=0.01, betas=rule.betas, weight_decay=0.0, foreach=False)
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        rule.step(1, 1, 0.5)
        loop.step()
    torch.testing.assert_close(ours, theirs)
    assert not torch.equal(ours[0], start[0])
