"""The chunked loss for any size and option, and what it never puts into memory."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drill.kernels.loss import chunk_plan
from drill.kernels.loss.nll import nll
from tests.kernels.recorders import Allocations


@settings(derandomize=True)
@given(
    N=st.integers(0, 12),
    V=st.integers(1, 80),
    k=st.integers(1, 9),
    bias=st.booleans(),
    ignored=st.sampled_from(["none", "some", "all"]),
    ignore_index=st.sampled_from([-100, 0, 7]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    memory=st.integers(1, 20_000),
    min_block=st.integers(1, 13),
    spread=st.sampled_from([0.1, 1.0, 100.0]),
    seed=st.integers(0, 2**31),
)
def test_the_chunked_loss_is_the_cross_entropy_of_the_logits(
    N, V, k, bias, ignored, ignore_index, smoothing, reduction, memory, min_block,
    spread, seed,
):  # fmt: skip
    g = torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).mul_(spread).requires_grad_()

    hidden, weight, b = leaf(N, k), leaf(V, k), leaf(V) if bias else None
    leaves = [x for x in (hidden, weight, b) if x is not None]
    targets = torch.randint(V, (N,), generator=g)
    share = {"none": 0.0, "some": 0.5, "all": 1.0}[ignored]
    targets[torch.rand(N, generator=g) < share] = ignore_index
    options = {"ignore_index": ignore_index, "label_smoothing": smoothing}

    losses = F.cross_entropy(F.linear(hidden, weight, b), targets, reduction="none", **options)
    counted = (targets != ignore_index).sum().clamp(min=1)
    truth = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counted}[reduction]
    options |= {"reduction": reduction, "memory": memory}
    with mock.patch.object(chunk_plan, "MIN_BLOCK", min_block):
        found = nll(hidden, weight, targets, b, impl="chunked", **options)
        grads = torch.autograd.grad(found.square().sum(), leaves)
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(grads, torch.autograd.grad(truth.square().sum(), leaves))


V, k = 1500, 8


def spent(N: int, impl: str, *, train: bool = True, **options) -> Allocations:
    hidden, weight = (torch.randn(n, k, requires_grad=True) for n in (N, V))
    targets = torch.randint(V, (N,))
    with torch.set_grad_enabled(train), Allocations() as allocations:
        loss = nll(hidden, weight, targets, impl=impl, **options)
        if train:
            loss.backward()
    return allocations


def test_what_is_measured_shows_the_logits_of_plain_pytorch():
    assert spent(256, "reference").largest == 256 * V * 4


@pytest.mark.parametrize("sigsoftmax", [False, True])
@pytest.mark.parametrize(("N", "V", "k"), [(4, 20_000, 16), (750, 500, 16), (400, 1500, 8)])
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]
)
def test_peak_memory_is_the_budget_and_the_gradients(dtype, N, V, k, autocast, sigsoftmax):
    budget = 2**19
    hidden, weight = (torch.randn(n, k, dtype=dtype, requires_grad=True) for n in (N, V))
    targets = torch.randint(V, (N,))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), Allocations() as allocations:
        options = {"memory": budget, "label_smoothing": 0.1, "sigsoftmax": sigsoftmax}
        nll(hidden, weight, targets, impl="chunked", **options).backward()
    gradients = (N + V) * k * dtype.itemsize
    tokens = 64 * N  # targets, running sums and the like
    assert allocations.peak <= 1.25 * budget + gradients + tokens
    assert allocations.largest <= max(budget, N * k * 4, V * k * 4)  # gradients are in float32


def test_evaluation_keeps_no_logits():
    logits = 1024 * V * 4
    assert spent(1024, "chunked", memory=4 * logits).largest > logits / 2
    assert spent(1024, "chunked", train=False, memory=4 * logits).largest < logits / 2


def test_a_compiled_loss_is_one_graph_by_default_and_for_every_length():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    step = torch.compile(lambda h, w, y: nll(h, w, y, impl="chunked"), backend=counter)
    weight = torch.randn(40, 8, requires_grad=True)
    for N in range(2, 12):
        step(torch.randn(N, 8, requires_grad=True), weight, torch.randint(40, (N,)))
    assert counter.frame_count <= 2  # one for a fixed length, one for all others
