"""What every output layer promises, asked of every row of the table."""

import copy
import inspect
import math
import pickle
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.loss.checks import IGNORE_INDEX
from drill.layers import (
    LAYERS,
    AdaptiveSoftmax,
    DirectOutputConnection,
    MatrixLayer,
    Mixtape,
    MixtureOfSoftmaxes,
    NotFoldable,
    OutputLayer,
    PiecewiseLinearSoftmax,
    SampledSoftmax,
    SigSoftmax,
    SoftcappedSoftmax,
    TiedSoftmax,
)
from drill.layers.wrappers.mixture import Mixture
from drill.layers.wrappers.pointwise import PointwiseLayer
from tests.kernels.recorders import Allocations
from tests.layers.table import (
    CASES,
    COUNTS,
    ONE_EACH,
    WRAPPERS,
    V,
    assert_same_loss,
    batch,
    drawing,
    every_case,
    every_matrix_case,
    given,
    gradients,
    make,
    matrix_of,
    one_of_each_layer,
)

LEADS = pytest.mark.parametrize("lead", [(6,), (3, 2), ()], ids=str)
UNFOLDABLE = [name for name in WRAPPERS if CASES[name].layer != "sampled"]
IMPLS = pytest.mark.parametrize("impl", ["reference", "chunked"])


def by_hand(layer: OutputLayer, hidden: Tensor) -> Tensor:
    """log p of every label from the equation, with nothing but ``labels`` and ``context``."""
    if isinstance(layer, PointwiseLayer):
        return pointwise_by_hand(layer, scores_by_hand(layer.layer, hidden)).log_softmax(-1)
    if isinstance(layer, Mixtape):
        return mixtape_by_hand(layer, hidden).log_softmax(-1)
    if isinstance(layer, DirectOutputConnection):
        states = hidden.split(layer.widths, -1)
        prior = torch.softmax(states[-1] @ layer.prior.weight.T, -1)
        latent = [torch.tanh(f(states[int(n)])) for n, f in layer.latents.items()]
        experts = torch.cat(latent, -1).unflatten(-1, (layer.experts, -1))
        return (prior[..., None] * by_hand(layer.layer, experts).exp()).sum(-2).log()
    if isinstance(layer, MixtureOfSoftmaxes):
        prior = torch.softmax(hidden @ layer.prior.weight.T, -1)  # (..., K)
        latent = torch.tanh(hidden @ layer.latent.weight.T + layer.latent.bias)
        experts = latent.unflatten(-1, (layer.experts, -1))  # (..., K, w)
        return (prior[..., None] * by_hand(layer.layer, experts).exp()).sum(-2).log()
    if isinstance(layer, SampledSoftmax):
        return by_hand(layer.layer, hidden)
    if isinstance(layer, AdaptiveSoftmax):
        return torch.stack([adaptive_by_hand(layer, hidden, y) for y in range(V)], -1)
    scores = scores_by_hand(layer, hidden)
    return scores - scores.exp().sum(-1, keepdim=True).log()


def scores_by_hand(layer: OutputLayer, hidden: Tensor) -> Tensor:
    assert isinstance(layer, MatrixLayer)
    scores = torch.einsum("...k,vk->...v", layer.context(hidden), layer.labels())
    return scores if layer.bias is None else scores + layer.bias


def pointwise_by_hand(layer: OutputLayer, z: Tensor) -> Tensor:
    if isinstance(layer, SigSoftmax):
        return (z.exp() * z.sigmoid()).log()
    if isinstance(layer, SoftcappedSoftmax):
        return layer.cap * torch.tanh(z / layer.cap)
    ends = torch.linspace(-layer.limit, layer.limit, layer.pieces + 1).tolist()
    slopes = (1 + layer.slopes.exp() * (math.e - 1)).log()
    open_ends = [-math.inf, *ends[1:-1], math.inf]
    parts = zip(slopes, ends, pairwise(open_ends), strict=False)
    return -layer.limit + sum(s * (z.clamp(*piece) - start) for s, start, piece in parts)


def mixtape_by_hand(layer: Mixtape, hidden: Tensor) -> Tensor:
    """Scores (..., V), label by label, from the gates of the tree's leaves."""
    order = list(range(V)) if layer.ranking.ids is None else layer.ranking.ids.tolist()
    U = layer.gate_context.weight.unflatten(0, (layer.experts - 1, -1))  # (K-1, s, d_h)
    gated = torch.tanh(torch.einsum("nsd,...d->...ns", U, hidden))
    latent = torch.tanh(layer.latent(hidden)).unflatten(-1, (layer.experts, -1))
    contexts = layer.layer.context(latent)  # (..., K, k)
    columns = []
    for y in range(V):
        row = min(order.index(y), layer.gates - 1)
        v, b = layer.gate_vectors[row], layer.gate_bias[:, row]
        g = torch.sigmoid(gated @ v + layer.gate_prior(hidden) + b)  # (..., K-1)
        pi = [torch.ones_like(g[..., 0])]
        for n in range(layer.experts - 1):  # a heap: level by level, each node in turn
            p = pi.pop(0)
            pi += [p * g[..., n], p * (1 - g[..., n])]
        z = contexts @ layer.layer.labels()[y]  # (..., K)
        columns.append((torch.stack(pi, -1) * z).sum(-1))
    scores = torch.stack(columns, -1)
    return scores if layer.bias is None else scores + layer.bias


def adaptive_by_hand(layer: AdaptiveSoftmax, hidden: Tensor, label: int) -> Tensor:
    """log p of one label: of the head, or of its cluster in the head and of itself within."""
    inner, context = layer.layer, layer.layer.context(hidden)
    order = list(range(V)) if layer.ranking.ids is None else layer.ranking.ids.tolist()
    bounds = [0, *layer.cutoffs, V]

    def score(y: int, A: nn.Module, B: nn.Module) -> Tensor:
        found = (A(context) * B(inner.labels()[y])).sum(-1)
        return found if inner.bias is None else found + inner.bias[y]

    head = [score(y, nn.Identity(), nn.Identity()) for y in order[: bounds[1]]]
    head += [context @ w + b for w, b in zip(layer.cluster_weight, layer.cluster_bias, strict=True)]
    in_head = torch.stack(head, -1).log_softmax(-1)
    if (rank := order.index(label)) < bounds[1]:
        return in_head[..., rank]
    i = next(i for i in range(1, len(bounds)) if rank < bounds[i + 1])  # the cluster, from 1
    A, B = layer.context_maps[i - 1], layer.label_maps[i - 1]
    cluster = torch.stack([score(y, A, B) for y in order[bounds[i] : bounds[i + 1]]], -1)
    return in_head[..., bounds[1] + i - 1] + cluster.log_softmax(-1)[..., rank - bounds[i]]


def test_every_layer_has_a_row_in_the_table():
    assert {case.layer for case in CASES.values()} == set(LAYERS)
    assert {CASES[name].layer for name in ONE_EACH} | {"sigsoftmax", "softcap"} == set(LAYERS)


OPTIONS = [
    (layer, option.name, option.default)
    for layer in LAYERS
    for option in inspect.signature(LAYERS[layer]).parameters.values()
    if option.default is not option.empty
]


@pytest.mark.parametrize(("layer", "option", "default"), OPTIONS, ids=str)
def test_every_option_has_a_row_with_a_value_that_is_not_its_default(layer, option, default):
    rows = [case.options for case in CASES.values() if case.layer == layer]
    assert any(row.get(option, default) != default for row in rows)


@LEADS
@every_case
def test_log_probs_follow_the_equation(name, lead):
    layer, hidden, targets = given(name, *lead, dtype=torch.float64)
    found = layer.log_probs(hidden)
    assert found.shape == (*lead, layer.vocabulary_size)
    torch.testing.assert_close(found, by_hand(layer, hidden))
    torch.testing.assert_close(found, F.log_softmax(layer.logits(hidden), -1))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(lead, dtype=torch.float64))
    assert torch.equal(layer(hidden), layer.logits(hidden))
    losses = -found.gather(-1, targets[..., None])[..., 0]
    for reduction, truth in {"none": losses, "mean": losses.mean(), "sum": losses.sum()}.items():
        torch.testing.assert_close(layer.nll(hidden, targets, reduction), truth)


@IMPLS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@every_case
def test_nll_is_the_cross_entropy_of_log_probs(name, smoothing, impl):
    layer, hidden, targets = given(name, 3, 2, dtype=torch.float64)
    targets[1, 0] = targets[2, 1] = 7
    options = {
        "reduction": "mean" if smoothing else "none",
        "ignore_index": 7,
        "label_smoothing": smoothing,
    }
    truth = F.cross_entropy(by_hand(layer, hidden).movedim(-1, 1), targets, **options)
    found = layer.nll(hidden, targets, **options, impl=impl)
    assert_same_loss(found, truth, layer, hidden)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@one_of_each_layer
def test_targets_may_have_any_integer_dtype(name, dtype):
    layer, hidden, targets = given(name, 6)
    assert layer.nll(hidden, targets.to(dtype)) == layer.nll(hidden, targets)


@pytest.mark.parametrize("name", UNFOLDABLE)
def test_smoothed_losses_made_a_few_tokens_at_a_time_are_the_same(name, monkeypatch):
    layer, hidden, targets = given(name, 7, dtype=torch.float64)
    truth = layer.nll(hidden, targets, label_smoothing=0.1)
    monkeypatch.setattr("drill.layers.wrappers.base.MOST_ROWS", 3)
    found = layer.nll(hidden, targets, label_smoothing=0.1, impl="chunked")
    assert_same_loss(found, truth, layer, hidden)


@IMPLS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("lead", [(3, 2), (), (0,)], ids=["all ignored", "one", "no tokens"])
@one_of_each_layer
def test_a_batch_without_targets_has_zero_loss_and_gradients(
    name, lead, smoothing, impl, nan_in_fresh_memory
):
    layer = make(name).train(not smoothing)  # which training by samples does not take
    hidden, targets = batch(layer, *lead)
    targets.fill_(IGNORE_INDEX)
    loss = layer.nll(hidden, targets, label_smoothing=smoothing, impl=impl)
    assert loss.item() == 0
    assert not any(grad.any() for grad in gradients(loss, layer, hidden).values())


@every_case
def test_a_bias_of_counts_starts_at_the_frequencies(name):
    layer = make(name)
    if matrix_of(layer).bias is None:
        with pytest.raises(ValueError, match="bias"):
            layer.init_bias(COUNTS)
        return
    for parameter in layer.parameters():
        parameter.data.zero_()  # contexts of some layers are not zero otherwise
    layer.init_bias(COUNTS)
    seen = torch.tensor(COUNTS).clamp(min=1)
    probs = layer.log_probs(torch.zeros(layer.hidden_size)).exp()
    torch.testing.assert_close(probs, seen / seen.sum())
    with pytest.raises(ValueError, match="counts"):
        layer.init_bias(COUNTS[1:])


@every_case
def test_gradients_agree_with_finite_differences(name):
    layer, hidden, targets = given(name, 3, dtype=torch.float64, train=True)

    def losses(hidden: Tensor, *_: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same dropout masks at every call
        return layer.nll(hidden, targets, reduction="none", impl="chunked")

    # gradcheck moves the entries of the parameters where they are.
    assert torch.autograd.gradcheck(losses, (hidden, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", [n for n in CASES if n != "mixture of one"])  # its prior is 1
def test_every_parameter_receives_a_gradient(name):
    layer, hidden, targets = given(name, 20)
    layer.nll(hidden, targets).backward()
    idle = [n for n, p in layer.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@pytest.mark.parametrize("name", [n for n in CASES if matrix_of(make(n)).bias is not None])
def test_a_label_masked_by_its_bias_has_no_probability_and_spoils_no_gradient(name):
    layer = make(name)
    with torch.no_grad():
        matrix_of(layer).bias[3] = -torch.inf
    hidden, targets = batch(layer, 20)
    targets[targets == 3] = 4
    log_probs = layer.log_probs(hidden)
    assert (log_probs[:, 3] == -torch.inf).all()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(20))
    gathered = -log_probs.gather(1, targets[:, None]).mean()
    for loss in (gathered, *(layer.nll(hidden, targets, impl=i) for i in ("reference", "chunked"))):
        grads = gradients(loss, layer, hidden)
        assert [n for n, grad in grads.items() if not grad.isfinite().all()] == []


@pytest.mark.parametrize("training", [False, True])
@every_matrix_case
def test_a_loss_that_reads_weight_and_bias_trains_every_parameter(name, training):
    layer, hidden, targets = given(name, 7, dtype=torch.float64, train=training)
    torch.manual_seed(0)
    truth = layer.nll(hidden, targets)
    torch.manual_seed(0)
    context, weight = layer.context(hidden), layer.weight
    assert (context is hidden) == (CASES[name].layer != "dual")
    found = F.cross_entropy(F.linear(context, weight, layer.bias), targets)
    assert_same_loss(found, truth, layer, hidden)


# -- folding ------------------------------------------------------------------------------------


@every_matrix_case
def test_the_folded_head_is_the_layer_without_dropout_and_leaves_its_modes(name):
    layer, hidden, _ = given(name, 6, train=True)
    layer.embedding.eval()
    before = [module.training for module in layer.modules()]
    head = layer.fold()
    assert [module.training for module in layer.modules()] == before
    assert head.training
    assert type(head) is nn.Linear
    assert (head.in_features, head.out_features) == (layer.joint_size, layer.vocabulary_size)
    assert torch.equal(head(layer.context(hidden)), layer.eval().logits(hidden))
    assert not layer.fold().training  # the model it is put into is in one mode throughout


@every_matrix_case
def test_the_folded_head_shares_no_memory_with_the_layer(name):
    layer = make(name)
    head = layer.fold()
    before = [p.clone() for p in head.parameters()]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    assert all(torch.equal(p, old) for p, old in zip(head.parameters(), before, strict=True))
    assert all(p.requires_grad and p.is_leaf for p in head.parameters())


@pytest.mark.parametrize("name", UNFOLDABLE)
def test_a_layer_that_is_no_single_product_does_not_fold(name):
    layer = make(name)
    with pytest.raises(NotFoldable):
        layer.fold()
    with pytest.raises(NotFoldable, match=r"layer\.nll"):
        _ = layer.weight


# -- training and evaluation --------------------------------------------------------------------


@pytest.mark.parametrize("name", drawing(CASES))
def test_training_draws_a_fresh_mask_at_every_call(name):
    layer, hidden, targets = given(name, 6, train=True)
    torch.manual_seed(0)
    losses = {layer.nll(hidden, targets).item() for _ in range(8)}
    assert len(losses) > 1
    assert layer.eval().nll(hidden, targets).item() not in losses


@pytest.mark.parametrize("name", sorted(set(CASES) - set(drawing(CASES))))
def test_without_dropout_training_equals_evaluation(name):
    layer, hidden, _ = given(name, 6)
    assert torch.equal(layer.train().log_probs(hidden), layer.eval().log_probs(hidden))


@every_matrix_case
def test_labels_of_rows_are_rows_of_the_labels(name):
    layer = make(name, torch.float64)
    rows = torch.tensor([3, 0, 3, 9])
    torch.testing.assert_close(layer.labels(rows), layer.labels()[rows])
    assert layer.labels(rows[:0]).shape == (0, layer.joint_size)


@pytest.mark.parametrize("kind", ["locked", "standard"])
def test_a_mixture_drops_by_one_mask_over_time_or_by_one_per_token(kind):
    layer = make(f"mixture {kind}", torch.float64).train()
    hidden = torch.randn(1, 50, layer.hidden_size, dtype=torch.float64).expand(4, -1, -1)
    _, contexts = layer.expert_contexts(hidden)  # (time, batch, K, w)
    dropped = contexts == 0
    assert (dropped == dropped[:1]).all() == (kind == "locked")
    assert dropped.double().mean().sub(0.5).abs() < 0.15
    assert not torch.equal(dropped[0, 0], dropped[0, 1])
    _, whole = layer.eval().expert_contexts(hidden)
    torch.testing.assert_close(contexts, torch.where(dropped, 0, whole * 2))


def test_locked_dropout_of_a_mixture_draws_a_mask_per_token_where_there_is_no_time():
    """Of hidden states (N, h) nobody knows which are of one sequence; (h,) is one token."""
    layer = make("mixture locked", torch.float64).train()
    hidden = torch.randn(1, layer.hidden_size, dtype=torch.float64).expand(50, -1)
    together = layer.expert_contexts(hidden)[1]  # (N, K, w)
    alone = torch.stack([layer.expert_contexts(hidden[0])[1] for _ in range(9)])
    for contexts, least in ((together, 11), (alone, 2)):
        assert len((contexts == 0).flatten(1).unique(dim=0)) >= least


# -- how a layer presents itself ----------------------------------------------------------------


@every_case
def test_a_printed_layer_shows_its_sizes_and_options(name):
    layer, options = make(name), CASES[name].options
    assert layer.extra_repr().startswith(f"labels={V}, hidden_size={layer.hidden_size}")
    at_the_start = {"init_range", "zero_start", "map_bias", "counts"}
    assert all(
        f"{option}={options[option]!r}" in repr(layer) for option in options.keys() - at_the_start
    )


# -- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@every_case
def test_copies_answer_the_same_and_share_nothing(name, duplicate):
    layer, hidden, _ = given(name, 6)
    before = layer.log_probs(hidden)
    double = duplicate(layer)
    assert torch.equal(double.log_probs(hidden), before)
    with torch.no_grad():
        for parameter in double.parameters():
            parameter.add_(torch.rand_like(parameter))
    assert torch.equal(layer.log_probs(hidden), before)
    assert not torch.equal(double.log_probs(hidden), before)


@pytest.mark.parametrize(
    ("build", "smoothing"),
    [
        (lambda tied: MixtureOfSoftmaxes(tied, 5), 0.1),
        (PiecewiseLinearSoftmax, 0.0),
        (SoftcappedSoftmax, 0.0),
        (Mixtape, 0.0),
    ],
)
def test_a_loss_in_blocks_stays_within_its_memory(build, smoothing):
    torch.manual_seed(0)
    embedding = nn.Embedding(2000, 8)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    layer = build(TiedSoftmax(embedding))
    hidden, targets = torch.randn(200, 8), torch.randint(2000, (200,))
    with Allocations() as allocations:
        layer.nll(hidden, targets, label_smoothing=smoothing, memory=2**20).backward()
    assert allocations.peak < 3 * 2**20  # all rows at once take 7 to 40 MiB


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_gives_the_labels_bias_and_contexts_of_its_layer(name):
    layer = make(name)
    inner = layer.layer
    assert layer.bias is inner.bias
    rows = torch.tensor([2, 0])
    assert torch.equal(layer.labels(), inner.labels())
    assert torch.equal(layer.labels(rows), inner.labels(rows))
    hidden, _ = batch(layer, 3)
    if isinstance(layer, Mixture | Mixtape):
        with pytest.raises(NotFoldable):
            layer.context(hidden)
    else:
        assert torch.equal(layer.context(hidden), inner.context(hidden))
