"""The loss in one sweep over the tokens: when it is taken, how exact it is and what it makes."""

import itertools
import logging
import math

import pytest
import torch
from torch import Tensor

from drill.kernels.loss import chunked, token_sweep
from drill.kernels.loss.head import Head, NllOptions
from tests.helpers.devices import numpy_warnings
from tests.kernels.loss.test_nll import ENGINES, every_engine_and_size, no_worse_than_eager, problem
from tests.kernels.recorders import Allocations, Products

N, V, k = 25, 40, 6
CHUNKED = ENGINES["chunked"][0]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Seven tokens a block, the last one ragged."""
    monkeypatch.setattr(token_sweep, "BLOCK_ELEMENTS", 7 * V)
    monkeypatch.setattr(token_sweep, "FEWEST_ROWS", 3)


CASES = {
    "one sweep, 7 of 25 tokens at once": {},
    "one sweep, 5 of 25 tokens at once": {"memory": 25 * 40 + 5 * (V + k) * 4},
    "each token's gradient has a factor of its own": {"reduction": "none"},
    "hold the logits of 2 tokens": {"memory": 25 * 40 + 2 * (V + k) * 4},
    "hold the logits of 0 tokens": {"memory": 1},
}


@pytest.mark.parametrize("message", CASES)
def test_the_log_names_the_plan_and_all_plans_agree(message, caplog):
    caplog.set_level(logging.DEBUG, logger="drill")
    given = problem(N, V, k)
    found = given.solve(impl="chunked", **CASES[message])
    assert message in caplog.text
    torch.testing.assert_close(
        found, given.solve(impl="reference", reduction=CASES[message].get("reduction", "mean"))
    )


def test_half_precision_and_autocast_go_by_labels(caplog):
    caplog.set_level(logging.DEBUG, logger="drill")
    problem(N, V, k, dtype=torch.bfloat16).solve(impl="chunked")
    with torch.autocast("cpu", torch.bfloat16):
        problem(N, V, k).solve(impl="chunked")
    assert caplog.text.count("extra sums in float32") == 2
    assert "one sweep" not in caplog.text


@pytest.mark.parametrize("size", CHUNKED.sizes, ids=str)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"sigsoftmax": True}], ids=str)
def test_several_blocks_are_as_exact_as_plain_pytorch(size, options, monkeypatch):
    monkeypatch.setattr(token_sweep, "BLOCK_ELEMENTS", max(3, size[0] // 3) * size[1])
    no_worse_than_eager(problem(*size), CHUNKED, torch.float32, **options)


def test_a_sharp_softmax_keeps_the_digits_of_small_gradients():
    given = problem(N, V, k)
    with torch.no_grad():
        given.hidden.add_(20 * given.weight[given.targets.clamp(min=0)])
    no_worse_than_eager(given, CHUNKED, torch.float32)


@pytest.mark.parametrize("scale", [1.0, 20.0])  # by 20 exponentials of targets underflow
@pytest.mark.parametrize("shift", [-300.0, -20.0, 0.0, 20.0, 300.0])
def test_sigsoftmax_is_exact_for_logits_of_any_size(shift, scale):
    given = problem(N, V, k)
    with torch.no_grad():
        given.bias.add_(shift)
        given.hidden.mul_(scale)
    no_worse_than_eager(given, CHUNKED, torch.float32, sigsoftmax=True)


@pytest.mark.parametrize("options", [{}, {"memory": 1}, {"reduction": "none"}], ids=str)
def test_a_batch_of_gradients_raises_and_the_reference_has_it(options):
    given = problem(N, V, k)

    def grads(impl: str) -> Tensor:
        loss = given.loss(impl=impl, **options)
        factors = torch.randn(3, *loss.shape, generator=torch.Generator().manual_seed(0))
        return torch.autograd.grad(loss, given.hidden, factors, is_grads_batched=True)[0]

    with pytest.raises(RuntimeError, match='use impl="reference"'):
        grads("chunked")
    assert grads("reference").shape == (3, N, k)


def test_each_loss_of_a_graph_holds_its_gradients_until_backward():
    given = problem(N, V, k)
    each = sum(x.nbytes for x in given[:3])
    with Allocations() as allocations:
        losses = [given.loss(impl="chunked") for _ in range(5)]
        assert 5 * each <= allocations.now < 5 * each + V * k * 4  # nothing else of this size
        for loss in losses:
            torch.autograd.grad(loss, given[:3])
        assert allocations.now < each


def test_a_target_that_is_no_label_makes_the_loss_nan_and_no_gradient_of_others_wrong():
    given = problem(N, V, k)
    given.targets[4] = 10**6
    loss = given.loss(impl="chunked", check=False)
    assert loss.isnan()
    (found,) = torch.autograd.grad(loss, given.hidden)
    given.targets[4] = 0
    (right,) = torch.autograd.grad(given.loss(impl="reference"), given.hidden)
    others = torch.arange(N) != 4
    torch.testing.assert_close(found[others], right[others])


@pytest.mark.parametrize("wanted", list(itertools.product([True, False], repeat=3)), ids=str)
def test_only_the_products_that_are_asked_for_are_made(wanted):
    given = problem(N, V, k)
    for leaf, want in zip(given[:3], wanted, strict=True):
        leaf.requires_grad_(want)
    with Products() as made:
        loss = given.loss(impl="chunked")
        if any(wanted):
            loss.backward()
    assert sum(map(math.prod, made.shapes)) == (1 + wanted[0] + wanted[1]) * N * V * k
    assert [leaf.grad is not None for leaf in given[:3]] == list(wanted)


@pytest.fixture
def gpu_sweep(monkeypatch):
    """The sweep of a GPU on any device, a third of the tokens at once."""
    monkeypatch.setattr(chunked, "rows_at_once", lambda _, head: -(-len(head.hidden) // 3))
    monkeypatch.setattr(token_sweep, "_cpu_block", token_sweep._gpu_block)


@numpy_warnings
@pytest.mark.parametrize(
    "options",
    [{}, {"label_smoothing": 0.1, "reduction": "sum"}, {"sigsoftmax": True}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@every_engine_and_size
def test_the_sweep_of_a_gpu_is_as_exact_as_plain_pytorch(engine, size, dtype, options, gpu_sweep):
    given = problem(*size, dtype=dtype, device=engine.device)
    no_worse_than_eager(given, engine, dtype, **options)


def test_the_sweep_of_a_gpu_under_autocast_sums_in_float32(gpu_sweep):
    given = problem(100, V, k)
    with torch.autocast("cpu", torch.bfloat16):
        found = given.solve(impl="chunked")
        plain = given.solve(impl="reference")
    for ours, theirs, exact in zip(found, plain, given.solve(impl="reference"), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm() + 1e-6


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({}, 3277),  # 10 blocks of 32,768 tokens
        ({"memory": 2**32}, 10923),
        ({"memory": 2**33 + 2**29}, 0),  # all logits fit: they are saved
        ({"memory": 2**26}, 0),
        ({"engine": "chunked", "memory": 2**31}, 1093),
        ({"dtype": torch.float16}, 0),
        ({"reduction": "none"}, 0),
    ],
    ids=str,
)
def test_blocks_on_a_gpu_fill_the_memory(changed, rows):
    hidden, weight = (torch.empty(n, 640, device="meta") for n in (2**15, 128_000))
    given = {"dtype": torch.bfloat16, "engine": "triton", "memory": 2**30} | changed
    reduction = given.pop("reduction", "mean")
    head = Head(hidden, weight, None, hidden[:, 0], NllOptions(-100, 0.0, **given))
    assert token_sweep.rows_at_once(reduction, head) == rows
