"""A step of SGD in two launches against the same step of torch's optimisers."""

import pytest
import torch
from torch import nn

from drill.kernels.sgd_step import sgd_step, supported
from drill.optim import Asgd, NtAsgd, Sgd

SIZES = [(3,), (1,), (70, 33), (4096,), (129, 65), (5, 1000)]


def parameters(device):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size, device=device)) for size in SIZES]


def trained(rule, device, fused, steps=6, scale=1.0):
    params = parameters(device)
    rule.begin((str(i), p) for i, p in enumerate(params))
    rule._fused = rule._fused and fused
    torch.manual_seed(1)
    for step in range(steps):
        for p in params:
            p.grad = scale * torch.randn(p.shape, device=device)
        rule.step(70 - step, 70, 0.0)
    assert all(p.grad is None for p in params)
    return params, rule


def test_what_it_can_change():
    assert not supported([])
    assert not supported(parameters("cpu"))


def test_every_tensor_needs_a_gradient():
    params = parameters("cpu")
    with pytest.raises(ValueError, match="6 tensors have 1 gradients; every one needs its own"):
        sgd_step(params, params[:1], None, torch.zeros(2), clip=None, decay=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("clip", [0.25, None])
@pytest.mark.parametrize("kind", [Sgd, Asgd])
def test_it_is_the_optimiser_step(kind, clip, scale):
    settings = {"lr": 0.5, "weight_decay": 1e-2, "clip": clip}
    found, ours = trained(kind(**settings), "cuda", True, scale=scale)
    truth, theirs = trained(kind(**settings), "cuda", False, scale=scale)
    assert ours._fused
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)
    assert ours.numbers() == theirs.numbers()
    for name, tensor in theirs.tensors().items():
        torch.testing.assert_close(ours.tensors()[name], tensor, rtol=2e-6, atol=2e-7)


@pytest.mark.gpu
def test_it_repeats_its_bits_and_hands_nan_on():
    one, other = (trained(Asgd(lr=0.5), "cuda", True)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    params = parameters("cuda")
    rule = Sgd(lr=0.5)
    rule.begin((str(i), p) for i, p in enumerate(params))
    for p in params:
        p.grad = torch.ones_like(p)
    params[2].grad[0, 0] = torch.nan
    rule.step(70, 70, 0.0)
    assert all(p.isnan().all() for p in params)  # the norm is not a number, so no step is


@pytest.mark.gpu
def test_a_parameter_left_out_goes_by_the_optimiser():
    settings = {"lr": 0.5, "weight_decay": 1e-2}
    results = []
    for fused in (True, False):
        rule = NtAsgd(**settings, patience=0)
        params = parameters("cuda")
        rule.begin((str(i), p) for i, p in enumerate(params))
        rule._fused = fused
        rule._average()
        torch.manual_seed(1)
        for step in range(5):
            for p in params[step == 2 :]:
                p.grad = torch.randn(p.shape, device="cuda")
            rule.step(70, 70, 0.0)
        results.append((params, rule.numbers()))
    (found, ours), (truth, theirs) = results
    assert ours == theirs
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)
