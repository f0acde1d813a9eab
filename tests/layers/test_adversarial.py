"""Adversarial softmax: the loss when the logit of the target is lowered."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from drill.kernels.loss.checks import IGNORE_INDEX
from drill.layers import MatrixLayer
from drill.layers.losses import nll_with_lowered_target
from drill.layers.wrappers.mixture import Mixture
from tests.layers.table import ONE_EACH, V, batch, given, gradients, make

EPSILON = 0.3
PARTIAL_VOCABULARY = ("sampled deep residual", "adaptive deep residual")


def log_probs_of(layer, context, targets):
    """Per token: log p(target) of the plain logits, and of those with the target's lowered."""
    logits = F.linear(context, layer.weight, layer.bias)
    with torch.no_grad():
        delta = EPSILON * layer.weight[targets].norm(dim=-1) * context.norm(dim=-1)
    shifted = logits - delta[..., None] * F.one_hot(targets, layer.vocabulary_size)
    return [F.log_softmax(z, -1).gather(-1, targets[..., None])[..., 0] for z in (logits, shifted)]


def by_hand(layer, hidden, targets):
    if isinstance(layer, MatrixLayer):
        return [-p for p in log_probs_of(layer, layer.context(hidden), targets)]
    inner = layer.layer
    if isinstance(layer, Mixture):
        log_pi, contexts = layer.expert_contexts(hidden)
        each = targets[:, None].expand(log_pi.shape)
        found = log_probs_of(inner, inner.context(contexts), each)
        return [-(log_pi + p).logsumexp(-1) for p in found]
    # Move the vector of each target against its context, and score it again.
    log_probs = layer.log_probs(hidden)
    truth = []
    for n, y in enumerate(targets.tolist()):
        with torch.no_grad():
            moved = copy.deepcopy(layer)
            w, h = inner.weight[y], single_context(layer, hidden[n], y)
            lower = inner.weight.clone()
            lower[y] = w - EPSILON * w.norm() * h / h.norm()
            moved.layer._cache.block = lambda lower=lower: lower
            drop = layer.logits(hidden[n])[y] - moved.logits(hidden[n])[y]
        plain = log_probs[n]
        truth.append((plain - drop * F.one_hot(targets[n], V)).log_softmax(-1)[y])
    return [-log_probs.gather(-1, targets[:, None])[:, 0], -torch.stack(truth)]


def single_context(layer, hidden, label):
    """What the vector of a label is multiplied with: the gradient of its score, up to a factor."""
    weight = layer.layer.weight.detach().requires_grad_()
    inputs = layer.inputs(hidden)
    with torch.enable_grad():
        score = layer.scores(tuple(x.detach() for x in inputs), weight)[label]
    return torch.autograd.grad(score, weight)[0][label]


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("name", [n for n in ONE_EACH if n not in PARTIAL_VOCABULARY])
def test_it_is_plain_pytorch_with_shifted_logits(name, impl):
    layer, hidden, targets = given(name, 12, dtype=torch.float64)
    plain, lowered = layer.adversarial_nll(hidden, targets, EPSILON, impl=impl)
    wanted, truth = by_hand(layer, hidden, targets)
    assert not plain.requires_grad
    torch.testing.assert_close(plain, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lowered, truth, rtol=1e-12, atol=1e-12)
    assert (truth - wanted).min() > 0.01
    found = gradients(lowered.mean(), layer, hidden)
    expected = gradients(truth.mean(), layer, hidden)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_an_adaptive_softmax_lowers_the_target_in_its_own_cluster():
    layer, hidden, targets = given("adaptive deep residual", 30, dtype=torch.float64)
    plain, lowered = layer.adversarial_nll(hidden, targets, EPSILON)
    rank = layer.ranking.ranks_of(targets)
    context, _, softmaxes = layer._encode(hidden)
    starts = [0, *layer.cutoffs, V]
    for n, r in enumerate(rank.tolist()):
        i = sum(r >= c for c in layer.cutoffs)
        s = softmaxes[i]
        mapped, place = s.map(context[n]), r - starts[i]
        logits = F.linear(mapped, s.weight, s.bias)
        delta = EPSILON * s.weight[place].norm() * mapped.norm()
        shifted = logits - delta * F.one_hot(torch.tensor(place), len(logits))
        before, after = (z.log_softmax(0)[place] for z in (logits, shifted))
        torch.testing.assert_close(lowered[n], plain[n] + before - after)


def test_a_sampled_softmax_lowers_the_target_among_its_samples():
    layer, hidden, targets = given("sampled tied", 12, dtype=torch.float64, train=True)
    torch.manual_seed(0)
    plain, lowered = layer.adversarial_nll(hidden, targets, EPSILON)
    torch.manual_seed(0)
    torch.testing.assert_close(plain, layer.nll(hidden, targets, reduction="none").detach())
    delta = EPSILON * layer.weight[targets].norm(dim=-1) * hidden.norm(dim=-1)
    torch.testing.assert_close(lowered, nll_with_lowered_target(plain, delta))
    found = layer.eval().adversarial_nll(hidden, targets, EPSILON)
    torch.testing.assert_close(found, layer.layer.adversarial_nll(hidden, targets, EPSILON))


@pytest.mark.parametrize("name", ONE_EACH)
def test_ignored_targets_have_no_loss(name):
    layer, hidden, targets = given(name, 4, dtype=torch.float64, train=True)
    targets[1] = IGNORE_INDEX
    for losses in layer.adversarial_nll(hidden, targets, EPSILON):
        assert (losses.abs() < 1e-12).tolist() == [False, True, False, False]


@pytest.mark.parametrize("nll", [0.0, 1e-12, 1e-6, 1e-3, 0.7, 5.0, 30.0, 90.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.01, 0.5, 5.0, 15.0])
def test_float32_is_as_exact_as_the_losses_it_is_given(nll, delta):
    given = torch.tensor(nll, requires_grad=True)
    found = nll_with_lowered_target(given, torch.tensor(delta))
    found.backward()
    exact = torch.tensor(nll, dtype=torch.float64, requires_grad=True)
    truth = exact + delta + torch.log1p(torch.exp(-exact) * math.expm1(-delta))
    truth.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-6, abs=4e-6)
    assert float(given.grad) == pytest.approx(float(exact.grad), rel=1e-5)


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
