"""The loss of a linear head: every implementation against float64, relative to plain PyTorch."""

import itertools
import logging
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from drill.kernels.loss import chunk_plan
from drill.kernels.loss.checks import IGNORE_INDEX
from drill.kernels.loss.head import Head, NllOptions
from drill.kernels.loss.nll import choose, nll
from drill.kernels.runtime import dispatch as module
from drill.kernels.runtime import padding
from drill.kernels.runtime.dispatch import log_once
from tests.helpers.devices import interpreted, needs_triton, numpy_warnings

pytestmark = numpy_warnings

RAGGED = [(252, 507, 123), (1, 1, 1), (3, 2, 5), (130, 1029, 17)]
SMALL = [(124, 251, 61), (1, 1, 1), (3, 2, 5), (130, 1029, 17)]  # half precision is slow on a CPU
TINY = [(25, 300, 12), (1, 1, 1), (3, 2, 5), (17, 50, 3)]  # for an interpreter of kernels


class Engine(NamedTuple):
    impl: str
    device: str
    sizes: list[tuple[int, int, int]]


ENGINES = {
    "chunked": (Engine("chunked", "cpu", SMALL), []),
    "triton": (Engine("triton", "cpu", TINY), [interpreted]),
    "chunked-gpu": (Engine("chunked", "cuda", RAGGED), [pytest.mark.gpu]),
    "triton-gpu": (Engine("triton", "cuda", RAGGED), [pytest.mark.gpu, needs_triton]),
}
every_engine = pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=marks, id=name) for name, (e, marks) in ENGINES.items()]
)
every_engine_and_size = pytest.mark.parametrize(
    ("engine", "size"),
    [
        pytest.param(e, size, marks=marks, id=f"{name}-{'x'.join(map(str, size))}")
        for name, (e, marks) in ENGINES.items()
        for size in e.sizes
    ],
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def leaf(x: Tensor | None, dtype: torch.dtype, device: str | None) -> Tensor | None:
    """The same numbers of another dtype."""
    return None if x is None else x.detach().to(device, dtype).clone().requires_grad_()


class Problem(NamedTuple):
    hidden: Tensor  # (N, k)
    weight: Tensor  # (V, k)
    bias: Tensor | None  # (V,)
    targets: Tensor  # (N,)

    def to(self, dtype: torch.dtype, device: str | None = None) -> "Problem":
        """The same numbers as fresh leaves of another dtype."""
        return Problem(*(leaf(x, dtype, device) for x in self[:3]), self.targets.to(device))

    def loss(self, **options) -> Tensor:
        return nll(self.hidden, self.weight, self.targets, self.bias, **options)

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in self[:3] if x is not None]

    def solve(self, **options) -> list[Tensor]:
        """The loss and the gradients it leaves; tokens weigh differently if it is not reduced."""
        loss = self.loss(**options)
        weight = torch.linspace(0.5, 1.5, loss.numel()).to(loss) if loss.dim() else 1
        return [loss.detach(), *torch.autograd.grad((loss * weight).sum(), self.leaves)]


def problem(
    N: int, V: int, k: int, bias: bool = True, dtype=torch.float32, device="cpu"
) -> Problem:
    """Logits of the spread that trained models have; some targets are ignored."""
    g = torch.Generator().manual_seed(N * V + k)
    targets = torch.randint(V, (N,), generator=g)
    targets[torch.rand(N, generator=g) < 0.2] = IGNORE_INDEX
    hidden = torch.randn(N, k, generator=g) * 2
    weight = torch.randn(V, k, generator=g) / k**0.5
    b = torch.randn(V, generator=g) if bias else None
    return Problem(hidden, weight, b, targets).to(dtype, device)


def gaps(x: Tensor) -> Tensor:
    """The same values, every second element of a larger tensor, columns first."""
    holes = torch.full([2 * n for n in x.shape[::-1]], 3, dtype=x.dtype, device=x.device)
    view = holes.permute(*range(x.dim())[::-1])[tuple(slice(None, None, 2) for _ in x.shape)]
    return view.copy_(x.detach())


def check_frozen(given, wanted: tuple[bool, ...], impl: str) -> None:
    """Only the wanted inputs of a loss get a gradient, that of the reference."""
    truth = given.solve(impl="reference")[1:]
    for leaf, want in zip(given.leaves, wanted, strict=True):
        leaf.requires_grad_(want)
    loss = given.loss(impl=impl)
    assert loss.requires_grad == any(wanted)
    if any(wanted):
        loss.backward()
    for leaf, want, grad in zip(given.leaves, wanted, truth, strict=True):
        assert (leaf.grad is not None) == want
        if want:
            torch.testing.assert_close(leaf.grad, grad)


def check_costs_nothing(given, **options) -> None:
    """No tokens, or only ignored ones: zero loss and gradients of zeros."""
    given.targets.fill_(IGNORE_INDEX)
    loss, *grads = given.solve(**options)
    assert not loss.any()
    assert [grad.shape for grad in grads] == [x.shape for x in given.leaves]
    assert not any(grad.any() for grad in grads)


def no_worse_than_eager(given: Problem, engine: Engine, dtype: torch.dtype, **options) -> None:
    """Error against float64 at most 1.1 times that of plain PyTorch, but for float32 rounding."""
    # Triton's interpreter cuts float32 to bfloat16 where a GPU rounds.
    factor = 2.5 if (engine.impl, engine.device) == ("triton", "cpu") else 1.1
    reduced = {k: v for k, v in options.items() if k != "memory"}
    truth = given.to(torch.float64).solve(impl="reference", **reduced)
    eager = given.solve(impl="reference", **reduced)
    found = given.solve(impl=engine.impl, **options)
    for name, exact, plain, fast in zip(
        ("loss", "hidden", "weight", "bias"), truth, eager, found, strict=False
    ):
        assert fast.dtype == (torch.float32 if name == "loss" else dtype)
        slack = 4 * torch.finfo(torch.float32).eps * exact.norm()
        allowed = factor * (plain.double() - exact).norm() + slack
        error = (fast.double() - exact).norm()
        assert error <= allowed, f"{name}: {error:.3g} against {allowed:.3g}"


# -- how exact ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "none"},
        {"label_smoothing": 0.1},
        {"sigsoftmax": True, "label_smoothing": 0.1, "reduction": "none"},
    ],
    ids=str,
)
@every_dtype
@every_engine_and_size
def test_errors_are_those_of_plain_pytorch(engine, size, dtype, options):
    given = problem(*size, dtype=dtype, device=engine.device)
    no_worse_than_eager(given, engine, dtype, **options)


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [*((each, False) for each in DTYPES.values()), (torch.float32, True)],
    ids=[*DTYPES, "autocast"],
)
@every_engine
def test_a_head_without_bias_and_autocast_are_as_exact(engine, dtype, autocast):
    given = problem(*engine.sizes[0], bias=autocast, dtype=dtype, device=engine.device)
    with torch.autocast(engine.device, torch.bfloat16, enabled=autocast):
        no_worse_than_eager(given, engine, dtype, reduction="mean" if autocast else "sum")


@pytest.mark.parametrize("bias", [True, False])
@every_engine
def test_rows_of_several_blocks_and_a_padding_are_as_exact(
    engine, bias, monkeypatch, nan_in_fresh_memory
):
    monkeypatch.setitem(padding.ALIGN, engine.device, 64)
    given = problem(5, 8203, 3, bias=bias, device=engine.device)
    no_worse_than_eager(given, engine, torch.float32, label_smoothing=0.1)


SHARES = [20.0, 1.5, 0.5, 0.1]  # of the logits' bytes
BUDGET_SIZE = N, V, k = 8, 40, 3
every_engine_and_share = pytest.mark.parametrize(
    ("engine", "share"),
    [
        # Interpreted kernels take seconds where there are many chunks.
        pytest.param(
            e, share, marks=[*m, *([pytest.mark.slow] if name == "triton" and i % 2 else [])]
        )
        for name, (e, m) in ENGINES.items()
        for i, share in enumerate(SHARES)
    ],
)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few tokens, so that small problems need several."""
    monkeypatch.setattr(chunk_plan, "MIN_BLOCK", 3)


def budget(dtype: torch.dtype, share: float) -> int:
    return int(share * N * V * dtype.itemsize)


def test_budgets_keep_everything_a_part_and_nothing_in_one_block_of_rows_or_several(small_blocks):
    plans = []
    for dtype, share in itertools.product((torch.float32, torch.bfloat16), SHARES):
        settings = NllOptions(IGNORE_INDEX, 0.0, dtype, "chunked", budget(dtype, share))
        hidden, weight = (torch.empty(n, k, dtype=dtype) for n in (N, V))
        plans.append(chunk_plan.plan(Head(hidden, weight, None, hidden, settings), keep=True))
    kept = [{chunk.saved is not None for chunk in plan.chunks} for plan in plans]
    assert all(case in kept for case in ({True}, {True, False}, {False}))
    assert {plan.by_label is not None for plan in plans} == {True, False}
    for tiles in (tiles for plan in plans for tiles in (plan.chunks, plan.by_label) if tiles):
        met = torch.zeros(N, V)
        for chunk in tiles:
            met[chunk.rows, chunk.labels] += 1
        assert (met == 1).all()


@every_dtype
@every_engine_and_share
def test_any_memory_budget_is_as_exact(engine, dtype, share, small_blocks):
    given = problem(*BUDGET_SIZE, dtype=dtype, device=engine.device)
    options = {"memory": budget(dtype, share), "label_smoothing": 0.1}
    no_worse_than_eager(given, engine, dtype, **options)
    if dtype == torch.float32:
        no_worse_than_eager(given, engine, dtype, sigsoftmax=True, **options)


# -- which gradients ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3]
)
@every_engine
def test_frozen_inputs_get_no_gradient_and_change_no_other(engine, wanted):
    check_frozen(problem(20, 30, 6, device=engine.device), wanted, engine.impl)


@every_engine_and_share
def test_backward_can_run_twice(engine, share, small_blocks):
    given = problem(*BUDGET_SIZE, device=engine.device)
    loss = given.loss(impl=engine.impl, memory=budget(torch.float32, share))
    once = torch.autograd.grad(loss, given.leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, given.leaves), once)


@every_engine
def test_second_derivatives_raise(engine):
    given = problem(4, 5, 3, device=engine.device)
    loss = given.loss(impl=engine.impl)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, given.hidden, create_graph=True)[0].sum().backward()


# -- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        *((0, {"label_smoothing": smoothing}) for smoothing in (0.0, 0.1)),
        *((20, {"reduction": each, "label_smoothing": 0.1}) for each in ("mean", "sum", "none")),
    ],
)
@every_engine
def test_no_tokens_or_only_ignored_ones_cost_nothing(
    engine, tokens, options, bias, nan_in_fresh_memory
):
    given = problem(tokens, 30, 6, bias, device=engine.device)
    check_costs_nothing(given, impl=engine.impl, **options)


@every_engine
def test_ignored_targets_may_be_any_label(engine):
    given = problem(20, 30, 6, device=engine.device)
    given.targets[3] = given.targets[5] = 7
    found = given.solve(impl=engine.impl, ignore_index=7, check=False)
    truth = given.solve(impl="reference", ignore_index=7, check=False)
    assert torch.equal(found[0].isnan(), truth[0].isnan())  # -100 is out of range now
    given.targets[given.targets == IGNORE_INDEX] = 7
    found, truth = (given.solve(impl=each, ignore_index=7) for each in (engine.impl, "reference"))
    torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("sigsoftmax", [False, True])
@pytest.mark.parametrize("memory", [20 * 4 * 24, 10**6])
@every_engine
def test_masked_labels_get_no_probability_and_no_gradient(engine, memory, sigsoftmax):
    given = problem(20, 30, 6, device=engine.device)
    with torch.no_grad():
        given.bias[:12] = -torch.inf  # the first chunks hold nothing else
        given.bias[20] = -torch.inf
    given.targets.copy_(torch.arange(20, device=engine.device) % 8 + 12)
    found = given.solve(impl=engine.impl, memory=memory, sigsoftmax=sigsoftmax)
    torch.testing.assert_close(found, given.solve(impl="reference", sigsoftmax=sigsoftmax))
    assert all(x.isfinite().all() for x in found)
    assert not found[2][:12].any()
    given.targets[0] = 0
    assert given.loss(impl=engine.impl, reduction="none")[0] == torch.inf


@pytest.mark.parametrize("wrong", [30, -(10**6)])
@every_engine
def test_an_unchecked_target_out_of_range_spoils_its_own_token_only(engine, wrong):
    given = problem(20, 30, 6, device=engine.device)
    clean = given.loss(impl="reference", reduction="none")
    given.targets[4] = wrong
    losses = given.loss(impl=engine.impl, reduction="none", check=False)
    assert losses.isnan().nonzero().tolist() == [[4]]
    others = torch.arange(20, device=engine.device) != 4
    torch.testing.assert_close(losses[others], clean[others])
    found = torch.autograd.grad(losses[others].sum(), given[:3])
    torch.testing.assert_close(found, torch.autograd.grad(clean[others].sum(), given[:3]))


def test_targets_out_of_range_are_named():
    hidden, weight, targets = torch.zeros(4, 5, 6), torch.zeros(30, 6), torch.zeros(4, 5).long()
    targets[0, 0] = IGNORE_INDEX
    targets[1, 3], targets[1, 4], targets[3, 0] = 31, -2, 40
    with pytest.raises(IndexError, match=r"31 at \[1, 3\].*41 labels"):  # the hint serves all
        nll(hidden, weight, targets)
    with pytest.raises(IndexError, match=r"targets hold 30, but"):  # no dimension, no position
        nll(hidden[0, 0], weight, torch.tensor(30))
    with pytest.raises(IndexError, match=r"200 at \[1\]"):
        nll(hidden[0, :2], weight, torch.tensor([7, 200]).byte())
    with pytest.raises(IndexError, match=r"31 at \[1\].*32 labels"):
        nll(hidden[0, :2], weight, torch.tensor([900, 31]), ignore_index=900)
    assert not nll(hidden[0, :2], weight, torch.tensor([900, 900]), ignore_index=900)


def test_a_byte_that_equals_ignore_index_modulo_256_counts():
    given = problem(20, 300, 6)
    given.targets.fill_(156)  # -100 as an unsigned byte
    narrow = given._replace(targets=given.targets.byte())
    for impl in ("reference", "chunked"):
        torch.testing.assert_close(narrow.loss(impl=impl), given.loss(impl="reference"))


@pytest.mark.parametrize("memory", [20 * 4 * 24, 10**6])
@every_engine
def test_tensors_with_gaps_in_memory(engine, memory):
    given = problem(20, 30, 6, device=engine.device)
    spread = Problem(*(gaps(x).requires_grad_() for x in given[:3]), gaps(given.targets))
    assert not any(x.is_contiguous() for x in spread)
    options = {"memory": memory, "label_smoothing": 0.1}
    torch.testing.assert_close(
        spread.solve(impl=engine.impl, **options),
        given.solve(impl="reference", label_smoothing=0.1),
    )
    weights = torch.randn(20, 2, device=engine.device)[:, 0]  # two elements apart
    losses = (given.loss(impl=impl, reduction="none") for impl in (engine.impl, "reference"))
    torch.testing.assert_close(*(torch.autograd.grad(x, given[:3], weights) for x in losses))


# -- which implementation -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "device", "dtype", "installed", "impl"),
    [
        (10, "cpu", torch.float32, True, "reference"),
        (1000, "cpu", torch.float32, True, "chunked"),
        (10, "cuda", torch.bfloat16, True, "triton"),
        (10, "cuda", torch.float64, True, "chunked"),
        (10, "cuda", torch.float32, False, "chunked"),
        (10, "meta", torch.float32, True, "reference"),
    ],
)
def test_auto_logs_what_it_takes(tokens, device, dtype, installed, impl, monkeypatch, caplog):
    monkeypatch.setattr(module, "TRITON_INSTALLED", installed)
    caplog.set_level(logging.DEBUG, logger="drill")
    choice = choose(tokens, 10_000, dtype, torch.device(device))
    assert choice.impl == impl
    assert f"auto -> {impl} ({choice.reason})" in caplog.text


def test_without_a_c_compiler_triton_cannot_launch_and_auto_logs_it_once(monkeypatch, caplog):
    monkeypatch.setattr(module, "TRITON_INSTALLED", True)
    monkeypatch.setattr(module, "C_COMPILER", None)
    gpu = torch.device("cuda")
    monkeypatch.setattr(module, "INTERPRETED", True)
    assert module.triton_missing(gpu, torch.float32) is None  # nothing is launched there
    monkeypatch.setattr(module, "INTERPRETED", False)
    log_once.cache_clear()
    caplog.set_level(logging.INFO, logger="drill")
    assert {choose(10, labels, torch.float32, gpu).impl for labels in (5, 6)} == {"chunked"}
    (message,) = caplog.messages
    assert "C compiler" in message


@pytest.mark.parametrize(
    ("setting", "value", "dtype"),
    [
        ("TRITON_INSTALLED", False, torch.float32),
        ("INTERPRETED", False, torch.float32),  # needs a CUDA device
        ("INTERPRETED", True, torch.float64),
    ],
)
def test_triton_where_it_cannot_run_raises(setting, value, dtype, monkeypatch):
    monkeypatch.setattr(module, "TRITON_INSTALLED", True)
    monkeypatch.setattr(module, setting, value)
    with pytest.raises(ValueError, match='impl="triton": '):
        problem(4, 5, 3, dtype=dtype).loss(impl="triton")
