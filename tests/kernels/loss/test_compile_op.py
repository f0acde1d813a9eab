"""The loss as an operator for ``torch.compile``, called without the compiler, which is slow."""

import pytest
import torch
from torch import library

from drill.kernels.loss import chunk_plan
from drill.kernels.loss.chunk_plan import fits_in_one_chunk
from drill.kernels.loss.chunked import backward_pass, forward_pass
from drill.kernels.loss.compile_op import compiled_nll, nll_op
from drill.kernels.loss.head import Head, NllOptions
from drill.kernels.runtime import padding
from tests.helpers.devices import interpreted, numpy_warnings
from tests.kernels.loss.test_nll import IGNORE_INDEX, Problem, every_engine, problem
from tests.kernels.recorders import Products

pytestmark = numpy_warnings

N, V, k = 9, 37, 5  # ragged: 37 labels are padded to 40 below
BUDGETS = pytest.mark.parametrize("memory", [400, 2 * N * V, 2**20])  # nothing kept, some, all


@pytest.fixture
def padded(monkeypatch):
    """Labels are padded to eights, as they are to 64 on a GPU."""
    monkeypatch.setitem(padding.ALIGN, "cpu", 8)


def options(
    engine: str, memory: int = 2**20, dtype=torch.float32, sigsoftmax: bool = False
) -> NllOptions:
    return NllOptions(IGNORE_INDEX, 0.1, dtype, engine, memory, sigsoftmax)


def head(given: Problem, settings: NllOptions) -> Head:
    return Head(given.hidden, given.weight, given.bias, given.targets, settings)


@pytest.mark.parametrize("sigsoftmax", [False, True])
@BUDGETS
@every_engine
def test_the_operator_is_the_loss(engine, memory, sigsoftmax, padded, nan_in_fresh_memory):
    given = problem(N, V, k, device=engine.device)
    weights = torch.linspace(0.5, 1.5, N, device=engine.device)
    found = compiled_nll(head(given, options(engine.impl, memory, sigsoftmax=sigsoftmax)))
    kind = {"label_smoothing": 0.1, "sigsoftmax": sigsoftmax}
    truth = given.loss(impl="reference", reduction="none", **kind)
    torch.testing.assert_close(found, truth)
    once = torch.autograd.grad(found, given.leaves, weights, retain_graph=True)
    torch.testing.assert_close(once, torch.autograd.grad(truth, given.leaves, weights))
    again = torch.autograd.grad(found, given.leaves, weights)
    assert all(map(torch.equal, once, again))  # backward writes into no input


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False)])
def test_the_operator_passes_opcheck(wanted):
    given = problem(N, V, k)
    for leaf, want in zip(given[:3], wanted, strict=True):
        leaf.requires_grad_(want)
    arguments = (given.hidden, given.weight, given.bias, given.targets, *options("chunked"), True)
    library.opcheck(nll_op, arguments)


@interpreted
def test_ragged_labels_are_padded_in_every_product_compiled_or_not(padded):
    """cuBLAS is two to three times slower on ragged ones; the operator runs these passes too."""
    given = problem(N, V, k)
    given = head(Problem(*(x.detach() for x in given)), options("triton"))
    with Products() as products:
        _, lse, kept = forward_pass(given, keep=True)
        grads = backward_pass(given, torch.ones(N), lse, kept, (True, True, True))
    assert products.shapes == [(N, k, 40), (N, 40, k), (40, N, k)]
    assert [grad.shape for grad in grads] == [(N, k), (V, k), (V,)]


@pytest.mark.parametrize(
    ("labels", "dtype", "copied"),
    [
        (40, torch.float32, 0),
        (37, torch.float32, 40 * k * 4),  # padded
        (40, torch.bfloat16, (40 + N) * k * 2),  # cast, as is hidden
    ],
)
def test_a_copy_of_the_weight_counts_against_the_budget(labels, dtype, copied, padded):
    def fits(engine: str, memory: int) -> bool:
        tensors = torch.empty(N, k), torch.empty(labels, k), None, torch.empty(N)
        return fits_in_one_chunk(Head(*tensors, options(engine, memory, dtype)))

    exactly = N * 40 * dtype.itemsize + copied + N * chunk_plan.ROW_BYTES
    assert fits("triton", exactly)
    assert not fits("triton", exactly - 1)
    assert not fits("chunked", exactly)
