"""Adaptive softmax: a normalised hierarchy, the same by every implementation."""

import math

import pytest
import torch
from torch import Tensor, nn

from drill.layers import AdaptiveSoftmax, FullSoftmax, StaleLabels, TiedSoftmax
from tests.layers.table import V, assert_same_loss, batch, gradients, make
from tests.layers.test_sampled import COUNTS, RANKED, RANKINGS

ALL = torch.arange(V)


def adaptive(name: str = "deep residual 2", cutoffs=(3, 7), **options) -> AdaptiveSoftmax:
    """In eval mode; no parameter is zero, so a forgotten one shows."""
    torch.manual_seed(0)
    layer = AdaptiveSoftmax(make(name, torch.float64), list(cutoffs), **options)
    nn.init.uniform_(layer.cluster_bias, -0.7, 0.7)
    return layer.eval()


@pytest.mark.parametrize("cutoffs", [[5], [5, 9], [2, 9, 20]], ids=str)
def test_it_is_torchs_adaptive_softmax_when_the_weights_are_alike(cutoffs):
    """torch has tail matrices (labels, k_i): the first k_i columns of W, chosen by B = [I 0]."""
    k, labels = 64, 30
    torch.manual_seed(0)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(k, labels, cutoffs, div_value=4.0, head_bias=True)
    ours = AdaptiveSoftmax(FullSoftmax(labels, k), cutoffs, reduction_factor=4.0)
    theirs, ours = theirs.double(), ours.double()
    with torch.no_grad():
        W, c_1 = ours.label_weight, cutoffs[0]
        W[:c_1] = theirs.head.weight[:c_1]
        ours.layer.bias[:c_1] = theirs.head.bias[:c_1]
        ours.cluster_weight[:] = theirs.head.weight[c_1:]
        ours.cluster_bias[:] = theirs.head.bias[c_1:]
        for i, (start, end) in enumerate(zip(cutoffs, [*cutoffs[1:], labels], strict=True)):
            down, up = theirs.tail[i]
            ours.context_maps[i].weight[:] = down.weight
            ours.label_maps[i].weight[:] = torch.eye(up.in_features, k)
            W[start:end, : up.in_features] = up.weight
    hidden = torch.randn(40, k, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(40) % labels
    torch.testing.assert_close(ours.log_probs(hidden), theirs.log_prob(hidden))
    loss, truth = ours.nll(hidden, targets), theirs(hidden, targets).loss
    torch.testing.assert_close(loss, truth)
    (found,), (expected,) = (torch.autograd.grad(x, hidden) for x in (loss, truth))
    torch.testing.assert_close(found, expected)


def test_head_and_clusters_share_one_encoding_and_one_dropout_mask(calls_of):
    layer = adaptive("deep residual standard").train()
    calls = calls_of(layer.layer, "labels")
    hidden, _ = batch(layer, V)
    torch.manual_seed(1)
    losses = layer.nll(hidden, ALL, reduction="none")
    torch.manual_seed(1)
    log_probs = layer.log_probs(hidden)
    assert [call.arguments for call in calls] == [(), ()]
    torch.testing.assert_close(losses, -log_probs.diag())


@RANKINGS
def test_resize_moves_only_the_last_cluster(counts):
    layer = adaptive("tied", counts=counts)
    hidden, targets = batch(layer, 6)
    layer.nll(hidden, targets).backward()
    before = layer.log_probs(hidden)
    first = layer.ranking.labels_of(torch.arange(7))
    layer.resize(V + 2)
    grown = layer.log_probs(hidden)
    torch.testing.assert_close(grown[:, first], before[:, first])
    torch.testing.assert_close(grown.exp().sum(1), torch.ones(6, dtype=torch.float64))
    assert (grown[:, V:].exp() > 0).all()
    layer.nll(hidden, targets + 2).backward()
    layer.resize(V)
    torch.testing.assert_close(layer.log_probs(hidden), before)


def test_resize_takes_no_label_from_before_the_last_cutoff():
    layer = adaptive("tied")
    layer.resize(8)
    with pytest.raises(ValueError, match="last cutoff"):
        layer.resize(7)
    ranked = adaptive("tied", counts=COUNTS)  # id 10 has rank 5
    with pytest.raises(ValueError, match="last cutoff"):
        ranked.resize(10)
    assert (layer.vocabulary_size, ranked.vocabulary_size) == (8, V)
    assert ranked.ranking.ids.tolist() == RANKED


def test_clusters_get_narrower_and_a_factor_of_one_has_no_maps():
    layer = AdaptiveSoftmax(TiedSoftmax(nn.Embedding(100, 64)), [10, 30, 60, 90])
    assert [m.weight.shape for m in layer.context_maps] == [(16, 64), (4, 64), (1, 64), (1, 64)]
    assert [m.weight.shape for m in layer.label_maps] == [(16, 64), (4, 64), (1, 64), (1, 64)]
    plain = AdaptiveSoftmax(TiedSoftmax(nn.Embedding(100, 64)), [10, 30], reduction_factor=1.0)
    names = [n for n, _ in plain.named_parameters()]
    assert names == ["cluster_weight", "cluster_bias", "layer.bias", "layer.embedding.weight"]


def test_maps_start_with_the_scale_of_the_logits_they_replace():
    torch.manual_seed(0)
    k = 64
    layer = AdaptiveSoftmax(TiedSoftmax(nn.Embedding(400, k)), [10, 200])
    contexts, labels = torch.randn(400, k), torch.randn(400, k)
    for A, B in zip(layer.context_maps, layer.label_maps, strict=True):
        assert torch.equal(A.weight, B.weight)
        assert A.weight is not B.weight
        unrelated = A(contexts) @ B(labels).T
        assert unrelated.std().item() == pytest.approx(math.sqrt(k), rel=0.1)
        assert (A(contexts) * B(contexts)).sum(1).min() > 0  # a context agrees with itself


@pytest.mark.parametrize("impl", ["auto", "reference", "chunked"])
@pytest.mark.parametrize("present", [[0, 1, 2], [3, 6], [7, 10], [0, 8], [4, 9]], ids=str)
def test_a_batch_may_leave_clusters_empty(present, impl, nan_in_fresh_memory):
    """Every parameter gets a gradient all the same: zero for those of an empty cluster."""
    layer = adaptive()
    hidden, _ = batch(layer, len(present))
    targets = torch.tensor(present)
    losses = layer.nll(hidden, targets, reduction="none", impl=impl)
    truth = -layer.log_probs(hidden).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(losses, truth)
    found = gradients(losses.sum(), layer, hidden)
    torch.testing.assert_close(found, gradients(truth.sum(), layer, hidden))
    for i, members in enumerate([range(3, 7), range(7, 11)]):
        used = any(target in members for target in present)
        assert found[f"label_maps.{i}.weight"].any() == used
        assert found[f"context_maps.{i}.weight"].any() == used


def test_where_nothing_can_wait_clusters_look_at_all_tokens(monkeypatch):
    layer = adaptive(counts=COUNTS)
    hidden, targets = batch(layer, 20)
    targets[3] = -100
    truth = layer.nll(hidden, targets, reduction="none")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(Tensor, "tolist", None)
    found = layer.nll(hidden, targets, reduction="none")
    assert_same_loss(found, truth, layer, hidden)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["auto", "reference", "chunked"])
@pytest.mark.parametrize("targets", [[0, 1, 2], [3, 10, -100], list(range(V))], ids=str)
def test_on_a_gpu_it_agrees_with_the_cpu(targets, impl):
    layer = adaptive(counts=COUNTS).float()
    hidden, _ = batch(layer, len(targets))
    targets = torch.tensor(targets)
    truth = layer.nll(hidden, targets, impl="reference")
    expected = gradients(truth, layer, hidden)
    layer, remote = layer.cuda(), hidden.detach().cuda().requires_grad_()
    found = layer.nll(remote, targets.cuda(), impl=impl)
    torch.testing.assert_close(found.cpu(), truth)
    torch.testing.assert_close(gradients(found, layer, remote), expected, check_device=False)
    assert layer.nll(remote, targets.cuda() + V, impl=impl, check=False).isnan()


@RANKINGS
def test_a_cluster_masked_as_a_whole_has_no_mass(counts):
    layer = adaptive("tied", counts=counts)
    hidden, _ = batch(layer, 4)
    gone = layer.ranking.labels_of(torch.arange(3, 7))  # all of the first cluster
    with torch.no_grad():
        layer.bias[gone] = -torch.inf
    log_probs = layer.log_probs(hidden)
    assert (log_probs[:, gone] == -torch.inf).all()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, dtype=torch.float64))
    targets = layer.ranking.labels_of(torch.tensor([0, 2, 7, 10]))
    losses = layer.nll(hidden, targets, reduction="none")
    torch.testing.assert_close(losses, -log_probs.gather(1, targets[:, None])[:, 0])
    assert all(x.isfinite().all() for x in gradients(losses.sum(), layer, hidden).values())


def test_one_masked_label_leaves_its_cluster_its_mass():
    layer = adaptive("tied")
    hidden, _ = batch(layer, 4)
    before = layer.log_probs(hidden).exp()[:, 3:7].sum(-1)
    with torch.no_grad():
        layer.bias[4] = -torch.inf
    torch.testing.assert_close(layer.log_probs(hidden).exp()[:, 3:7].sum(-1), before)


def test_cached_labels_are_mapped_by_their_cluster_once():
    layer = adaptive(reduction_factor=2.0, counts=COUNTS)
    hidden, _ = batch(layer, 4)
    calls = []
    for B in layer.label_maps:
        B.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad(), layer.cached_labels():
        for _ in range(3):
            layer.log_probs(hidden)
    assert len(calls) == len(layer.label_maps)


CHANGES = {
    "cluster_weight": lambda layer: layer.cluster_weight.data.add_(1),
    "cluster_bias": lambda layer: layer.cluster_bias.data.add_(1),
    "label_maps": lambda layer: layer.label_maps[1].weight.data.add_(1),
    "ranking": lambda layer: layer.ranking.ids[:2].copy_(layer.ranking.ids[:2].flip(0)),
    "cutoffs": lambda layer: setattr(layer, "cutoffs", (2, 7)),
    "bias": lambda layer: layer.bias.data.add_(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_cached_clusters_were_made_of_may_not_change(change):
    layer = adaptive(reduction_factor=2.0, counts=COUNTS)
    hidden, _ = batch(layer, 4)
    with torch.no_grad(), layer.cached_labels():
        layer.log_probs(hidden)
        CHANGES[change](layer)
        with pytest.raises(StaleLabels):
            layer.log_probs(hidden)
