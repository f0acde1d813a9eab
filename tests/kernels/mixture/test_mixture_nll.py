"""The loss of a mixture in one sweep: against float64, relative to plain PyTorch."""

import logging
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drill.kernels.mixture import mixture_nll as mixture_module
from drill.kernels.mixture import passes
from drill.kernels.mixture.mixture_nll import mixture_nll
from drill.kernels.runtime import padding
from drill.kernels.runtime.dispatch import TRITON_INSTALLED, log_once
from tests.helpers.devices import numpy_warnings
from tests.kernels.loss.test_nll import (
    IGNORE_INDEX,
    Engine,
    check_costs_nothing,
    check_frozen,
    every_engine,
    gaps,
    leaf,
)
from tests.kernels.recorders import Allocations, Products

pytestmark = [
    numpy_warnings,
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]

SIZES = [(7, 3, 37, 6), (1, 1, 1, 1), (3, 2, 2, 5), (4, 15, 50, 13)]  # N, K, V, k
N, K, V, k = SIZES[0]
NONE = (False, False, False, False)


class Mixture(NamedTuple):
    log_prior: Tensor  # (N, K)
    contexts: Tensor  # (N, K, k)
    weight: Tensor  # (V, k)
    bias: Tensor | None  # (V,)
    targets: Tensor  # (N,)

    def to(self, dtype: torch.dtype, device: str | None = None) -> "Mixture":
        """The same numbers as fresh leaves of another dtype; log pi is float32 at least."""
        log_prior = leaf(self.log_prior, torch.promote_types(dtype, torch.float32), device)
        others = (leaf(x, dtype, device) for x in self[1:4])
        return Mixture(log_prior, *others, self.targets.to(device))

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in self[:4] if x is not None]

    def loss(self, **options) -> Tensor:
        return mixture_nll(
            self.log_prior, self.contexts, self.weight, self.targets, self.bias, **options
        )

    def solve(self, factor: float = 1.0, **options) -> list[Tensor]:
        """The loss and the gradients of some multiple of it."""
        loss = self.loss(**options)
        return [loss.detach(), *torch.autograd.grad((factor * loss).sum(), self.leaves)]


def mixture(
    N: int, K: int, V: int, k: int, bias: bool = True, dtype=torch.float32, device="cpu"
) -> Mixture:
    g = torch.Generator().manual_seed(N * V + k)
    targets = torch.randint(V, (N,), generator=g)
    targets[torch.rand(N, generator=g) < 0.2] = IGNORE_INDEX
    log_prior = torch.randn(N, K, generator=g).log_softmax(-1)
    contexts = torch.randn(N, K, k, generator=g) * 2
    weight = torch.randn(V, k, generator=g) / k**0.5
    b = torch.randn(V, generator=g) if bias else None
    return Mixture(log_prior, contexts, weight, b, targets).to(dtype, device)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of four tokens at the first size: a whole one and a rest."""
    monkeypatch.setattr(mixture_module, "MIN_ROWS", 1)
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(padding.ALIGN, device, 8)  # 37 labels are padded to 40
        monkeypatch.setitem(mixture_module.WIDTH_ALIGN, device, 16)
        monkeypatch.setitem(mixture_module.CHUNK_ELEMENTS, device, 4 * K * 40)
        monkeypatch.setitem(passes.SLICE_ELEMENTS, device, 3 * K * 40)


@pytest.fixture(params=[True, False], ids=["one block", "several blocks"])
def rows_of_both_kinds(request, monkeypatch):
    """Rows that are one block, and longer ones."""
    if TRITON_INSTALLED and not request.param:
        monkeypatch.setattr("drill.kernels.loss.passes_triton._REDUCE_BLOCK", 16)


@pytest.fixture
def tf32():
    """Lets float32 products use tf32 units or not, by one of torch's two settings."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision

    def allow(setting: str, value: bool) -> None:
        setattr(matmul, setting, value if setting == "allow_tf32" else ("ieee", "tf32")[value])

    yield allow
    matmul.allow_tf32 = before == "tf32"


def eager(given: Mixture, reduction: str = "mean") -> list[Tensor]:
    """Plain PyTorch: a linear head for the experts, its logits rounded after the bias."""
    logits = F.linear(given.contexts, given.weight, given.bias)
    each = F.cross_entropy(
        logits.flatten(0, 1).to(given.log_prior.dtype),
        given.targets.repeat_interleave(given.contexts.shape[1]),
        reduction="none",
    )
    losses = -torch.logsumexp(given.log_prior - each.view(given.log_prior.shape), 1)
    loss = getattr(losses[given.targets != IGNORE_INDEX], reduction)()
    return [loss.detach(), *torch.autograd.grad(loss, given.leaves)]


def no_worse_than_eager(given: Mixture, engine: Engine, dtype: torch.dtype) -> None:
    """Gradients err by 1.2 times what eager's err and a third of a digit at most.

    The digit: operands are rounded twice where eager rounds one, P and gamma C.
    """
    # Triton's interpreter cuts float32 to bfloat16 where a GPU rounds.
    factor = 2.5 if (engine.impl, engine.device) == ("triton", "cpu") else 1.2
    products = torch.bfloat16 if torch.is_autocast_enabled(engine.device) else dtype
    digit = torch.finfo(products).eps
    truth, plain = eager(given.to(torch.float64)), eager(given)
    found = given.solve(impl=engine.impl)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), truth[0], rtol=digit, atol=0)
    names = ("log prior", "contexts", "weight", "bias")
    for name, exact, rough, fast in zip(names, truth[1:], plain[1:], found[1:], strict=False):
        assert fast.dtype == (torch.float32 if name == "log prior" else dtype)
        allowed = factor * (rough.double() - exact).norm() + digit / 3 * exact.norm()
        error = (fast.double() - exact).norm()
        assert error <= allowed, f"{name}: {error:.3g} against {allowed:.3g}"


# -- how exact ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_the_loss_is_that_of_the_mixed_probabilities(impl, reduction, bias, nan_in_fresh_memory):
    given = mixture(N, K, V, k, bias, torch.float64)
    loss, *grads = given.solve(3.0, impl=impl, reduction=reduction)
    truth, *right = eager(given, reduction)
    torch.testing.assert_close(loss, truth)
    torch.testing.assert_close(grads, [3 * grad for grad in right])


@pytest.mark.parametrize("size", SIZES, ids=str)
@every_engine
def test_any_size_gives_what_the_reference_gives(engine, size, rows_of_both_kinds):
    given = mixture(*size, device=engine.device)
    found = given.solve(impl=engine.impl, reduction="sum")
    torch.testing.assert_close(found, given.solve(impl="reference", reduction="sum"))


@pytest.mark.parametrize(
    ("dtype", "bias", "autocast"),
    [
        (torch.float32, True, False),
        (torch.bfloat16, True, False),
        (torch.float16, False, False),
        (torch.float32, True, True),
    ],
)
@every_engine
def test_errors_are_those_of_plain_pytorch(engine, dtype, bias, autocast):
    # Enough that roundings average out: fifteen chunks, or six where rows are interpreted.
    tokens = 22 if (engine.impl, engine.device) == ("triton", "cpu") else 60
    given = mixture(tokens, K, V, k, bias, dtype, engine.device)
    with torch.autocast(engine.device, torch.bfloat16, enabled=autocast):
        no_worse_than_eager(given, engine, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_labels_of_half_precision_are_summed_over_chunks_in_float32(dtype):
    given = mixture(400, 3, 5, 4, dtype=dtype)  # a hundred chunks
    truth = given.to(torch.float64).solve(impl="reference", reduction="sum")
    mixture_module.CHUNK_ELEMENTS["cpu"] = 4 * 3 * 8
    found = given.solve(impl="chunked", reduction="sum")
    for fast, exact in zip(found[3:], truth[3:], strict=True):
        assert (fast.double() - exact).norm() < 2 * torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["half", "tf32"])
@every_engine
def test_a_bias_in_narrow_products_keeps_the_digits_of_float32(
    engine, dtype, monkeypatch, nan_in_fresh_memory
):
    monkeypatch.setattr(mixture_module, "_rounds_to_tf32", lambda *_: dtype == torch.float32)
    bias = torch.tensor([1 / 3, -20.123456, 1e-3, 0.0, -torch.inf, torch.nan], device=engine.device)
    weight = torch.randn(6, k, device=engine.device).to(dtype)
    w = mixture_module._with_bias(weight, bias, dtype, mixture_module._passes(engine.impl))
    assert w.shape == (8, 16)  # both padded
    assert torch.equal(w[:6, :k], weight)
    columns, rtol = w[:6, k:], 1e-7 if dtype == torch.bfloat16 else 0
    summed = columns.double().sum(1)
    torch.testing.assert_close(summed, bias.double(), rtol=rtol, atol=0, equal_nan=True)
    assert not w[6:].any()
    if dtype == torch.float32:  # tf32 holds each
        assert not (columns[:4].contiguous().view(torch.int32) % 2**13).any()
        given = mixture(N, K, V, k, device=engine.device)
        torch.testing.assert_close(given.solve(impl=engine.impl), given.solve(impl="reference"))


@pytest.mark.parametrize("setting", ["allow_tf32", "fp32_precision"])
@pytest.mark.parametrize("value", [True, False])
def test_tf32_is_known_by_either_setting(setting, value, tf32):
    tf32(setting, value)
    cuda = torch.device("cuda")
    assert mixture_module._rounds_to_tf32(cuda, torch.float32) == value
    assert not mixture_module._rounds_to_tf32(cuda, torch.bfloat16)
    assert not mixture_module._rounds_to_tf32(torch.device("cpu"), torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["allow_tf32", "fp32_precision"])
@pytest.mark.parametrize("impl", ["chunked", "triton"])
def test_the_loss_under_tf32_has_the_bias_in_float32(impl, setting, tf32):
    given = mixture(N, K, V, k, device="cuda")
    with torch.no_grad():
        given.contexts.zero_()  # the products add nothing but the bias
        given.bias.mul_(10)
    truth = eager(given.to(torch.float64))[0]
    tf32(setting, True)
    torch.testing.assert_close(given.loss(impl=impl).double(), truth, rtol=1e-6, atol=0)


# -- which gradients, which products ------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [(True, False, False, True), (False, True, False, False), (False, False, True, False), NONE],
    ids=str,
)
@every_engine
def test_frozen_inputs_get_no_gradient_and_change_no_other(engine, wanted):
    check_frozen(mixture(N, K, V, k, device=engine.device), wanted, engine.impl)


@pytest.mark.parametrize(
    ("frozen", "products"),
    [
        ([], [(15, 16, 40), (15, 40, 6), (40, 15, 16)]),  # k = 6 and the bias make 16 at most
        (["contexts"], [(15, 16, 40), (40, 15, 16)]),
        (["weight", "bias"], [(15, 16, 40), (15, 40, 6)]),
        (["weight"], [(15, 16, 40), (15, 40, 6), (40, 15, 10)]),
        (["contexts", "weight", "bias"], [(15, 16, 40)]),
    ],
)
def test_only_the_products_that_are_asked_for_are_made(frozen, products):
    given = mixture(5, K, V, k)
    mixture_module.CHUNK_ELEMENTS["cpu"] = passes.SLICE_ELEMENTS["cpu"] = 5 * K * 40
    for name in frozen:
        getattr(given, name).requires_grad_(False)
    with Products() as made:
        given.loss(impl="chunked").backward()
    assert made.shapes == products


@every_engine
def test_backward_can_run_twice(engine):
    given = mixture(N, K, V, k, device=engine.device)
    loss = given.loss(impl=engine.impl)
    once = torch.autograd.grad(loss, given.leaves, retain_graph=True)
    again = torch.autograd.grad(loss, given.leaves)
    assert all(map(torch.equal, once, again))


@every_engine
def test_second_derivatives_and_batches_of_gradients_raise(engine):
    given = mixture(N, K, V, k, device=engine.device)
    loss, factors = given.loss(impl=engine.impl), torch.ones(3, device=engine.device)
    with pytest.raises(RuntimeError, match=r'second derivatives.* impl="reference"'):
        torch.autograd.grad(loss, given.contexts, create_graph=True)
    with pytest.raises(RuntimeError, match=r'at a time.* impl="reference"'):
        torch.autograd.grad(loss, given.contexts, factors, is_grads_batched=True)


# -- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [0, N])
@every_engine
def test_no_tokens_or_only_ignored_ones_cost_nothing(engine, tokens, bias, nan_in_fresh_memory):
    check_costs_nothing(mixture(tokens, K, V, k, bias, device=engine.device), impl=engine.impl)


@every_engine
def test_masked_labels_get_no_probability_and_no_gradient(engine, rows_of_both_kinds):
    given = mixture(N, K, V, k, device=engine.device)
    with torch.no_grad():
        given.bias[:18] = -torch.inf  # the first blocks hold nothing else
    given.targets.copy_(torch.arange(N, device=engine.device) % 8 + 18)
    found = given.solve(impl=engine.impl)
    torch.testing.assert_close(found, given.solve(impl="reference"))
    assert all(x.isfinite().all() for x in found)
    assert not found[3][:18].any()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@every_engine
def test_a_masked_target_costs_infinity_and_spoils_no_gradient(engine, reduction):
    given = mixture(N, K, V, k, device=engine.device)
    with torch.no_grad():
        given.bias[3] = -torch.inf
    given.targets.copy_(torch.arange(N, device=engine.device) % 8 + 4)
    given.targets[::5] = 3
    for impl in (engine.impl, "reference"):
        loss, *grads = given.solve(impl=impl, reduction=reduction)
        assert loss.max() == torch.inf
        assert all(grad.isfinite().all() for grad in grads)
        assert not any(grad[::5].any() for grad in grads[:2])  # log prior, contexts
        rest = given._replace(targets=given.targets.clone())
        rest.targets[::5] = IGNORE_INDEX
        right = rest.solve(impl="reference", reduction="sum")[1:]
        counted = 1 if reduction == "none" else N
        torch.testing.assert_close(grads, [grad / counted for grad in right])


@every_engine
def test_huge_logits_stay_finite(engine, rows_of_both_kinds):
    given = mixture(N, K, V, k, device=engine.device)
    with torch.no_grad():
        given.contexts.mul_(1e4)
    found = given.solve(impl=engine.impl)
    torch.testing.assert_close(found, given.solve(impl="reference"), rtol=1e-4, atol=1e-4)
    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize(
    ("dtype", "label", "value"),
    [
        (torch.float32, 0, torch.nan),
        (torch.float32, V - 1, torch.inf),
        (torch.bfloat16, 0, torch.nan),
        (torch.float16, V - 1, torch.inf),
    ],
)
@every_engine
def test_a_label_without_a_finite_logit_is_nan(engine, dtype, label, value, rows_of_both_kinds):
    given = mixture(5, K, V, k, dtype=dtype, device=engine.device)  # two chunks
    with torch.no_grad():
        given.bias[label] = value
    loss, _, contexts, weight, bias = given.solve(impl=engine.impl)
    counted = given.targets != IGNORE_INDEX
    assert loss.isnan()
    assert contexts[counted].isnan().all()
    assert weight.isnan().all()
    assert bias.isnan().all()


@pytest.mark.parametrize("wrong", [V, -(10**6)])
@every_engine
def test_a_target_out_of_range_is_nan_and_touches_no_other_token(engine, wrong):
    given = mixture(N, K, V, k, device=engine.device)
    given.targets[given.targets == IGNORE_INDEX] = 0
    right = given.solve(impl=engine.impl)[2]
    given.targets[4] = wrong
    loss, _, contexts, *_ = given.solve(impl=engine.impl)
    assert loss.isnan()
    assert contexts[4].isnan().all()
    others = [n for n in range(N) if n != 4]
    torch.testing.assert_close(contexts[others], right[others])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("experts", [K, 1])
@every_engine
def test_tensors_with_gaps_in_memory(engine, experts, bias):
    given = mixture(N, experts, V, k, bias, device=engine.device)
    leaves = (None if x is None else gaps(x).requires_grad_() for x in given[:4])
    spread = Mixture(*leaves, gaps(given.targets))
    assert not any(x.is_contiguous() for x in spread if x is not None)
    torch.testing.assert_close(spread.solve(impl=engine.impl), given.solve(impl="reference"))


# -- memory, and which implementation -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(40, 5, 1000, 8), (300, 4, 50, 16)], ids=str)
def test_peak_memory_is_the_budget_and_the_gradients(size, dtype, monkeypatch):
    monkeypatch.setitem(mixture_module.CHUNK_ELEMENTS, "cpu", 2**30)  # only memory bounds a chunk
    budget = 2**20
    given = mixture(*size, dtype=dtype)
    with Allocations() as allocations:
        given.loss(impl="chunked", memory=budget).backward()
    gradients = sum(x.nbytes for x in given.leaves)
    logits = size[0] * size[1] * size[2] * 4
    assert allocations.peak <= 1.1 * budget + gradients
    assert allocations.largest < logits or logits < budget


IMPLEMENTATIONS = {
    "one sweep, 4 of 7 tokens": {},
    "nothing to differentiate": {"trained": False},
    'impl="reference"': {"impl": "reference"},
    "each token's gradient has a factor of its own": {"reduction": "none"},
    "memory holds no chunk worth a sweep": {"memory": 5000},
}


@pytest.mark.parametrize("message", IMPLEMENTATIONS)
def test_it_logs_the_implementation_and_all_agree(message, caplog):
    log_once.cache_clear()
    caplog.set_level(logging.DEBUG, logger="drill")
    options = {"impl": "chunked"} | IMPLEMENTATIONS[message]
    given = mixture(N, K, V, k)
    if not options.pop("trained", True):
        given = Mixture(*(x.detach() for x in given))
    loss = given.loss(**options)
    assert message in caplog.text
    truth = given.loss(impl="reference", reduction=options.get("reduction", "mean"))
    torch.testing.assert_close(loss, truth)
    if loss.requires_grad:
        found, right = (torch.autograd.grad(x.sum(), given.leaves) for x in (loss, truth))
        torch.testing.assert_close(found, right)
