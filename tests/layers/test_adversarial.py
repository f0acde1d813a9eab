"""Adversarial softmax is a softmax over logits of which that of the target is lowered."""

import math

import pytest
import torch
import torch.nn.functional as F

from drill.layers.base import with_lowered_target
from tests.layers.table import MATRIX, ONE_EACH, WRAPPERS, V, batch, gradients, make

EPSILON = 0.3
one_matrix_layer_each = pytest.mark.parametrize("name", [n for n in ONE_EACH if n in MATRIX])


def by_hand(layer, hidden, targets):
    """Per token: plain losses, and those of shifted logits in memory."""
    logits = layer.logits(hidden)
    with torch.no_grad():
        delta = EPSILON * layer.weight[targets].norm(dim=-1) * layer.context(hidden).norm(dim=-1)
    shifted = logits - delta[..., None] * F.one_hot(targets, V)
    return [F.cross_entropy(each, targets, reduction="none") for each in (logits, shifted)]


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@one_matrix_layer_each
def test_it_is_plain_pytorch_with_shifted_logits(name, impl):
    layer = make(name, torch.float64)
    hidden, targets = batch(layer, 12)
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
    truth = exact + delta + torch.log1p(torch.exp(-exact) * math.expm1(-delta))
    truth.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-6, abs=4e-6)
    assert float(given.grad) == pytest.approx(float(exact.grad), rel=1e-5)


@pytest.mark.parametrize("name", [n for n in ONE_EACH if n in WRAPPERS])
def test_layers_without_it_raise(name):
    layer = make(name)
    with pytest.raises(TypeError, match=type(layer).__name__):
        layer.adversarial_nll(*batch(layer, 2), 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["tied", "deep residual 2"])
def test_the_kernels_of_a_gpu_take_a_weight_for_every_token(name, dtype):
    layer = make(name).cuda()
    hidden, targets = (each.cuda() for each in batch(layer, 12))
    hidden = hidden.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        _, lowered = layer.adversarial_nll(hidden, targets, EPSILON, impl="triton")
        _, truth = by_hand(layer, hidden, targets)
    loose = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(lowered, truth.to(lowered.dtype), **loose)
    found = gradients(lowered.mean(), layer, hidden)
    torch.testing.assert_close(found, gradients(truth.mean(), layer, hidden), **loose)
