"""Adversarial softmax is a softmax over logits of which that of the target is lowered."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    SampledSoftmax,
    TiedSoftmax,
)
from drill.layers.base import with_lowered_target

V, WIDTH, EPSILON = 23, 6, 0.3

LAYERS = {
    "tied": TiedSoftmax,
    "full": lambda e: FullSoftmax(e, hidden_size=WIDTH),
    "bilinear": Bilinear,
    "dual": lambda e: DualNonlinear(e, joint_size=5, residual=False),
    "deep-residual": lambda e: DeepResidual(e, depth=2),
}


def made(name, dtype=torch.float64):
    torch.manual_seed(2)
    layer = LAYERS[name](nn.Embedding(V, WIDTH)).to(dtype)
    hidden = torch.randn(4, 3, WIDTH, dtype=dtype, requires_grad=True)
    return layer, hidden, torch.randint(V, (4, 3))


def by_hand(layer, hidden, targets):
    """Per token: plain losses, and those of shifted logits in memory."""
    logits = layer.logits(hidden)
    with torch.no_grad():
        rows = layer.weight[targets]
        delta = EPSILON * rows.norm(dim=-1) * layer.context(hidden).norm(dim=-1)
    shifted = logits - delta[..., None] * F.one_hot(targets, V)
    return [
        F.cross_entropy(each.reshape(-1, V), targets.reshape(-1), reduction="none").view(4, 3)
        for each in (logits, shifted)
    ]


def gradients(loss, layer, hidden):
    tensors = [hidden, *layer.parameters()]
    return torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_plain_pytorch_with_shifted_logits(name, impl):
    layer, hidden, targets = made(name)
    plain, lowered = layer.adversarial_nll(hidden, targets, EPSILON, impl=impl)
    wanted, truth = by_hand(layer, hidden, targets)
    assert not plain.requires_grad
    torch.testing.assert_close(plain, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lowered, truth, rtol=1e-12, atol=1e-12)
    assert (truth - wanted).min() > 0.01
    found = gradients(lowered.mean(), layer, hidden)
    expected = gradients(truth.mean(), layer, hidden)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("nll", [0.0, 1e-12, 1e-6, 1e-3, 0.7, 5.0, 30.0, 90.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.01, 0.5, 5.0, 15.0])
def test_float32_is_as_exact_as_the_losses_it_is_given(nll, delta):
    given = torch.tensor(nll, requires_grad=True)
    found = with_lowered_target(given, torch.tensor(delta))
    found.backward()
    exact = torch.tensor(nll, dtype=torch.float64, requires_grad=True)
    p = torch.exp(-exact)
    truth = exact + delta + torch.log1p(p * math.expm1(-delta))
    truth.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-6, abs=4e-6)
    assert float(given.grad) == pytest.approx(float(exact.grad), rel=1e-5)


def test_one_token_by_hand():
    # p = 1/4 and a logit lowered by log 3: 1/4 becomes (1/3) / (1/3 + 3) = 1/10
    lowered = with_lowered_target(torch.tensor(math.log(4.0)), torch.tensor(math.log(3.0)))
    assert float(lowered) == pytest.approx(math.log(10.0))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda e: MixtureOfSoftmaxes(TiedSoftmax(e), 2),
        lambda e: SampledSoftmax(TiedSoftmax(e), samples=5),
        lambda e: AdaptiveSoftmax(TiedSoftmax(e), [5, 10]),
    ],
)
def test_layers_without_it_say_so(wrapped):
    layer = wrapped(nn.Embedding(V, WIDTH))
    with pytest.raises(TypeError, match=type(layer).__name__):
        layer.adversarial_nll(torch.zeros(2, WIDTH), torch.zeros(2, dtype=torch.long), 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["tied", "deep-residual"])
def test_the_kernels_of_a_gpu_take_a_weight_for_every_token(name, dtype):
    layer, hidden, targets = (each.cuda() for each in made(name, torch.float32))
    hidden = hidden.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        _, lowered = layer.adversarial_nll(hidden, targets, EPSILON, impl="triton")
        _, truth = by_hand(layer, hidden, targets)
    loose = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(lowered, truth.to(lowered.dtype), **loose)
    found = gradients(lowered.mean(), layer, hidden)
    torch.testing.assert_close(found, gradients(truth.mean(), layer, hidden), **loose)
