"""Sampled softmax: an unbiased partition function in training, the exact layer everywhere else."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.layers import SampledSoftmax, TiedSoftmax
from drill.layers.wrappers import sampled as module
from drill.layers.wrappers.sampled import distinct
from tests.helpers.devices import no_gpu_sync
from tests.layers.table import MATRIX, V, batch, every_matrix_case, gradients, make

COUNTS = torch.tensor([3, 50, 7, 7, 0, 1, 90, 2, 4, 8, 5])
RANKED = [6, 1, 9, 2, 3, 10, 8, 0, 7, 5, 4]  # ids by falling count, ties in order of id
PROPOSALS = pytest.mark.parametrize("proposal", ["log-uniform", "uniform"])
RANKINGS = pytest.mark.parametrize("counts", [None, COUNTS], ids=["by id", "by counts"])


def sampled(name: str = "deep residual 2", **options) -> SampledSoftmax:
    return SampledSoftmax(make(name, torch.float64), **options).train()


def fix(layer: SampledSoftmax, ranks: list[int]) -> None:
    """Every call draws these frequency ranks."""
    layer.samples = len(ranks)
    layer.sample = lambda count, device: torch.tensor(ranks, device=device)


def probabilities(layer: SampledSoftmax) -> Tensor:
    return layer.log_proposal(torch.arange(layer.vocabulary_size)).exp()


# -- the estimate -------------------------------------------------------------------------------


@PROPOSALS
@RANKINGS
@pytest.mark.parametrize("draws", [1, 2])
def test_the_expected_partition_function_is_exact(draws, counts, proposal):
    """The mean over all V^S possible draws, each with its probability."""
    layer = sampled(samples=draws, proposal=proposal, counts=counts)
    hidden, targets = batch(layer, 4)
    logits = layer.logits(hidden)
    l_target = logits.gather(1, targets[:, None])[:, 0]
    q = probabilities(layer)
    mean = torch.zeros(4, dtype=torch.float64)
    for ranks in itertools.product(range(V), repeat=draws):
        fix(layer, list(ranks))
        Z_hat = (layer.nll(hidden, targets, reduction="none") + l_target).exp()
        mean += q[list(ranks)].prod() * Z_hat
    torch.testing.assert_close(mean, logits.exp().sum(1))


@PROPOSALS
@RANKINGS
def test_the_loss_follows_the_equation(counts, proposal):
    layer = sampled("tied", proposal=proposal, counts=counts)
    hidden, targets = batch(layer, 5)
    ranks = [0, 3, 3, 10]
    ids = ranks if counts is None else [RANKED[r] for r in ranks]
    targets[0], targets[1] = ids[1], ids[0]  # two and one accidental hits
    fix(layer, ranks)
    q, logits = probabilities(layer), layer.logits(hidden)
    for n, target in enumerate(targets.tolist()):
        Z_hat = logits[n, target].exp()
        for r, s in zip(ranks, ids, strict=True):
            if s != target:
                Z_hat = Z_hat + logits[n, s].exp() / (4 * q[r])
        truth = Z_hat.log() - logits[n, target]
        torch.testing.assert_close(layer.nll(hidden, targets, reduction="none")[n], truth)


def test_a_token_whose_draws_are_all_hits_costs_nothing_and_has_finite_gradients():
    layer = sampled()
    hidden, targets = batch(layer, 3)
    targets[:] = torch.tensor([5, 5, 2])
    fix(layer, [5, 5])
    losses = layer.nll(hidden, targets, reduction="none")
    assert losses[:2].tolist() == [0, 0]
    assert losses[2] > 0
    losses.sum().backward()
    assert not hidden.grad[:2].any()
    assert hidden.grad[2].any()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_a_vocabulary_of_one_label_costs_nothing():
    layer = SampledSoftmax(TiedSoftmax(nn.Embedding(1, 4)), samples=3)
    assert layer.nll(torch.randn(5, 4), torch.zeros(5, dtype=torch.long)).item() == 0
    assert layer.log_proposal(torch.zeros(1)).item() == 0


# -- what is drawn ------------------------------------------------------------------------------


@PROPOSALS
def test_draws_follow_the_proposal(proposal):
    """Pearson's statistic of 100,000 draws has mean V - 1 and deviation sqrt(2 (V - 1))."""
    torch.manual_seed(0)
    layer = sampled(proposal=proposal)
    q, n = probabilities(layer), 100_000
    assert q.sum().item() == pytest.approx(1)
    seen = layer.sample(n, torch.device("cpu")).bincount(minlength=V)
    statistic = ((seen - n * q) ** 2 / (n * q)).sum()
    assert abs(statistic - (V - 1)) < 4 * math.sqrt(2 * (V - 1))


def test_the_log_uniform_proposal_is_its_formula():
    r = torch.arange(V, dtype=torch.float64)
    q = ((r + 2) / (r + 1)).log() / math.log(V + 1)
    torch.testing.assert_close(probabilities(sampled()), q)
    assert probabilities(sampled(proposal="uniform")).tolist() == pytest.approx([1 / V] * V)


def test_every_rank_of_a_large_vocabulary_can_be_drawn():
    """A float32 draw would reach fewer than half of the last ranks of two million."""
    labels, n = 2_000_000, 400_000
    torch.manual_seed(0)
    layer = SampledSoftmax(TiedSoftmax(nn.Embedding(labels, 1)))
    ranks = layer.sample(n, torch.device("cpu"))
    tail = ranks[ranks >= labels // 2]
    expected = n * math.log((labels + 1) / (labels // 2 + 1)) / math.log(labels + 1)
    assert abs(len(tail) - expected) < 4 * math.sqrt(expected)
    birthdays = len(tail) ** 2 / 2 / (labels // 2)  # repeats among draws from labels/2 ranks
    assert len(tail) - len(tail.unique()) < 2 * birthdays


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_are_labels(u, monkeypatch):
    layer = sampled()
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), u, dtype=torch.float64))
    for labels in (1, 2, 11, 33_278, 267_735):
        layer.layer.embedding.weight = nn.Parameter(torch.empty(labels, 1))
        (rank,) = layer.sample(1, torch.device("cpu")).tolist()
        assert rank == (0 if u == 0 else labels - 1)


# -- what is encoded ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRIX)
def test_only_targets_and_samples_are_encoded_and_trained(name, calls_of):
    layer = sampled(name, counts=COUNTS)
    layer.layer.eval()  # no dropout, which may drop all of a label
    hidden, targets = batch(layer, 6)
    targets[:] = torch.tensor([2, 7, 2, -100, 7, -100])
    fix(layer, [0, 1, 0])
    calls = calls_of(layer.layer, "labels")
    layer.nll(hidden, targets).backward()
    touched = [1, 2, 6, 7]
    assert [call.arguments[0].tolist() for call in calls] == [touched]
    if isinstance(layer.layer.embedding, nn.Embedding):
        grad = layer.label_weight.grad
        assert grad.any(1).nonzero()[:, 0].tolist() == touched
    if layer.bias is not None:
        assert layer.bias.grad.nonzero()[:, 0].tolist() == touched


def test_rows_filled_up_give_the_same_loss_and_gradients(monkeypatch):
    layer = sampled(counts=COUNTS)
    hidden, targets = batch(layer, 6)
    fix(layer, [0, 2, 2, 9])
    truth = layer.nll(hidden, targets)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = layer.nll(hidden, targets)
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(gradients(found, layer, hidden), gradients(truth, layer, hidden))


@pytest.mark.parametrize(
    "name",
    ["full of other width", "tied", "bilinear", "dual", "deep residual 2", "deep residual locked"],
)
def test_shared_labels_are_read_and_trained(name, calls_of):
    layer = sampled(name)
    layer.layer.eval()  # no dropout, so that both encode alike
    hidden, targets = batch(layer, 6)
    fix(layer, [1, 4, 4])
    loss = layer.nll(hidden, targets)
    truth = gradients(loss, layer, hidden)
    calls = calls_of(layer.layer, "labels")
    with layer.shared_labels():
        for _ in range(2):
            again = layer.nll(hidden, targets)
            torch.testing.assert_close(again, loss)
            again.backward()
    assert [call.arguments for call in calls] == [()]  # all of them, once
    torch.testing.assert_close(hidden.grad, 2 * truth["hidden"])
    for key, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * truth[key])


# -- evaluation and what is handed on -----------------------------------------------------------


@every_matrix_case
def test_evaluation_is_exact(name):
    layer = sampled(name, samples=2).eval()
    hidden, targets = batch(layer, 3, 2)
    inner = layer.layer
    options = {"reduction": "none", "label_smoothing": 0.1, "impl": "chunked"}
    assert torch.equal(layer.nll(hidden, targets, **options), inner.nll(hidden, targets, **options))
    assert torch.equal(layer.log_probs(hidden), inner.log_probs(hidden))
    assert torch.equal(layer.logits(hidden), inner.logits(hidden))
    assert torch.equal(layer.fold().weight, inner.fold().weight)
    assert torch.equal(layer.weight, inner.weight)
    if isinstance(inner.embedding, nn.Embedding):
        assert layer.label_weight is inner.embedding.weight


@RANKINGS
def test_resize_gives_new_labels_the_last_ranks(counts):
    layer = sampled("tied", counts=counts)
    layer.resize(V + 2)
    assert layer.vocabulary_size == layer.bias.shape[0] == V + 2
    order = layer.ranking.labels_of(torch.arange(V + 2)).tolist()
    assert order == (list(range(V)) if counts is None else RANKED) + [V, V + 1]
    hidden, targets = batch(layer, 50)
    layer.nll(hidden, targets).backward()
    layer.resize(8)
    order = layer.ranking.labels_of(torch.arange(8)).tolist()
    assert order == (list(range(8)) if counts is None else [6, 1, 2, 3, 0, 7, 5, 4])
    layer.nll(hidden, targets % 8).backward()


# -- reductions, ignored targets, dtypes --------------------------------------------------------


def test_reductions_are_over_the_tokens_that_count():
    layer = sampled()
    hidden, targets = batch(layer, 2, 3)
    fix(layer, [7, 0, 1])
    targets[:] = torch.tensor([[2, 7, 2], [9, 7, 10]])
    losses = layer.nll(hidden, targets, reduction="none", ignore_index=7)
    assert losses.shape == (2, 3)
    assert losses[targets == 7].tolist() == [0, 0]
    kept = layer.nll(hidden[targets != 7], targets[targets != 7], reduction="none")
    torch.testing.assert_close(losses[targets != 7], kept)
    total, mean = (layer.nll(hidden, targets, r, ignore_index=7) for r in ("sum", "mean"))
    torch.testing.assert_close((total, mean), (kept.sum(), kept.mean()))
    mean.backward()
    assert not hidden.grad[targets == 7].any()
    assert hidden.grad[targets != 7].any(-1).all()


@pytest.mark.parametrize("mode", ["bfloat16", "float16", "autocast"])
@pytest.mark.parametrize("name", ["tied", "dual", "deep residual 2"])
def test_half_precision_keeps_the_loss_in_float32(name, mode):
    layer = SampledSoftmax(make(name)).train()
    hidden, targets = batch(layer, 6)
    fix(layer, [7, 0, 1, 1])
    truth = layer.nll(hidden, targets)
    expected = gradients(truth, layer, hidden)
    if mode == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found = layer.nll(hidden, targets)
    else:
        dtype = getattr(torch, mode)
        layer, hidden = layer.to(dtype), hidden.detach().to(dtype).requires_grad_()
        found = layer.nll(hidden, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth, rtol=0.02, atol=0)
    grads = gradients(found, layer, hidden)
    torch.testing.assert_close(grads, expected, rtol=0.1, atol=0.02, check_dtype=False)


# -- faults -------------------------------------------------------------------------------------


def test_label_smoothing_in_training_raises():
    layer = sampled()
    with pytest.raises(ValueError, match=r"label_smoothing=0\.1"):
        layer.nll(*batch(layer, 5), label_smoothing=0.1)


# -- on a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@RANKINGS
def test_on_a_gpu_it_agrees_with_the_cpu_and_its_draws_wait_for_nothing(counts):
    layer = SampledSoftmax(make("deep residual 2"), samples=5, counts=counts).train()
    hidden, targets = batch(layer, 6)
    fix(layer, [7, 0, 1, 1, 9])
    truth = layer.nll(hidden, targets)
    expected = gradients(truth, layer, hidden)
    layer, remote = layer.cuda(), hidden.detach().cuda().requires_grad_()
    for check in (True, False):
        found = layer.nll(remote, targets.cuda(), check=check)
        torch.testing.assert_close(found.cpu(), truth)
        grads = gradients(found, layer, remote)
        torch.testing.assert_close(grads, expected, check_device=False)
    assert layer.nll(remote, targets.cuda() + V, check=False).isnan()
    del layer.sample
    with no_gpu_sync():
        ranks = layer.sample(1000, remote.device)
        layer.log_proposal(ranks)
        distinct(layer.ranking.labels_of(ranks), V, wait=False)
    assert F.one_hot(ranks, V).sum(0).argmax() == 0


def test_gradients_of_a_repeated_label_are_summed_in_float32():
    torch.manual_seed(0)
    embedding = nn.Embedding(50, 8, dtype=torch.bfloat16)
    layer = SampledSoftmax(TiedSoftmax(embedding), 4)
    fix(layer, [1, 2, 3, 4])
    hidden, targets = torch.randn(8192, 8, dtype=torch.bfloat16), torch.full((8192,), 7)

    def gradients_of(hidden: Tensor) -> list[Tensor]:
        layer.zero_grad()
        layer.nll(hidden, targets, reduction="sum").backward()
        return [embedding.weight.grad[7].double(), layer.bias.grad.double()]

    found = gradients_of(hidden)
    layer.double()
    for rough, exact in zip(found, gradients_of(hidden.double()), strict=True):
        assert (rough - exact).norm() / exact.norm() < 2e-2


def test_masked_draws_count_nothing_and_leave_finite_gradients():
    layer = sampled("tied")
    with torch.no_grad():
        layer.bias[[1, 2]] = -torch.inf
    fix(layer, [1, 2, 2])
    hidden, targets = batch(layer, 4)
    targets[:] = torch.tensor([0, 3, 5, 9])
    losses = layer.nll(hidden, targets, reduction="none")
    assert torch.equal(losses, torch.zeros_like(losses))  # Z_hat is the target alone
    assert all(x.isfinite().all() for x in gradients(losses.sum(), layer, hidden).values())
    fix(layer, [1, 4, 2])
    found = layer.nll(hidden, targets, reduction="none")
    fix(layer, [4])
    shift = math.log(3)  # of three draws, one counts
    l_target = layer.logits(hidden).gather(1, targets[:, None])[:, 0]
    rest = layer.nll(hidden, targets, reduction="none") + l_target
    truth = torch.logaddexp(l_target, (rest.exp() - l_target.exp()).log() - shift) - l_target
    torch.testing.assert_close(found, truth)


@PROPOSALS
def test_a_device_without_float64_gets_labels_drawn_on_the_cpu(proposal, monkeypatch):
    monkeypatch.setattr(module, "WITHOUT_FLOAT64", ("meta",))
    layer = sampled("tied", proposal=proposal)
    assert layer.sample(3, torch.device("meta")).is_meta
    with pytest.raises(NotImplementedError, match="copy out of meta"):  # it asks for the CPU
        layer.log_proposal(torch.empty(3, device="meta", dtype=torch.long))
