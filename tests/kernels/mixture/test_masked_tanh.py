"""tanh under a mask in one pass: against float64, relative to plain PyTorch."""

import pytest
import torch
from torch import Tensor

from drill.kernels.mixture import masked_tanh as module
from drill.kernels.mixture.masked_tanh import gradient, masked_tanh
from drill.kernels.runtime.dropout_masks import draw_mask
from drill.layers import MixtureOfSoftmaxes, TiedSoftmax
from tests.helpers.devices import needs_triton, numpy_warnings, triton_devices

pytestmark = [numpy_warnings, needs_triton]
every_half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)

SHAPES = [(9, 3, 37), (70, 41), (1, 1, 1), (3, 300), (7,)]


def problem(shape: tuple[int, ...], locked: bool, dtype, device) -> tuple[Tensor, Tensor, Tensor]:
    """x, a mask of its own or one for all of its steps, and the gradient of the result."""
    torch.manual_seed(0)
    x = torch.randn(shape).mul(2).to(device, dtype)
    mask = draw_mask((1 if locked else shape[0], *shape[1:]), 0.4, x)
    return x, mask, torch.randn(shape).to(device, dtype)


def solve(x: Tensor, mask: Tensor, grad: Tensor, impl: str) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = masked_tanh(x, mask, impl=impl)
    return [y.detach(), *torch.autograd.grad(y, x, grad)]


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_half
@triton_devices
def test_errors_are_those_of_plain_pytorch(device, dtype, shape, locked, monkeypatch):
    monkeypatch.setattr(
        "drill.kernels.mixture.masked_tanh_triton.BLOCK", 64 if device == "cpu" else 1024
    )
    x, mask, grad = problem(shape, locked, dtype, device)
    truth = solve(x.double(), mask.double(), grad.double(), "reference")
    plain, found = solve(x, mask, grad, "reference"), solve(x, mask, grad, "triton")
    # Triton's interpreter cuts float32 to bfloat16 where a GPU rounds.
    factor = 2.5 if device == "cpu" else 1.2
    slack = torch.finfo(dtype).eps / 3
    # Both gradients come from a rounded result. Of a few numbers, which rounding is nearer is luck:
    # there the bound is what half a unit of y = m t does to dy m (1 - t^2).
    few = torch.finfo(dtype).eps * (mask * grad * x.double().tanh() ** 2).norm()
    for exact, rough, fast, unit in zip(truth, plain, found, (0.0, few), strict=True):
        assert fast.dtype == dtype
        allowed = factor * (rough.double() - exact).norm() + slack * exact.norm()
        if x.numel() < 100:
            allowed = allowed + unit
        assert (fast.double() - exact).norm() <= allowed
        assert torch.equal(fast == 0, exact.to(dtype) == 0)


@triton_devices
def test_small_and_huge_arguments_keep_their_digits(device):
    x = torch.tensor([1e-6, -1e-3, 0.0599, 0.0601, -0.5, 30.0, -300.0, 0.0], device=device)
    x = x.bfloat16()
    y = masked_tanh(x, torch.full_like(x, 2.0, dtype=torch.float32), impl="triton")
    torch.testing.assert_close(y.double(), 2 * x.double().tanh(), rtol=2**-7, atol=0)


@triton_devices
def test_nan_stays_nan_under_any_mask(device):
    x, mask, grad = problem((4, 50), True, torch.bfloat16, device)
    x[2] = torch.nan
    for plain, found in zip(
        solve(x, mask, grad, "reference"), solve(x, mask, grad, "triton"), strict=True
    ):
        assert torch.equal(plain.isnan(), found.isnan())
        assert found[2].isnan().all()


@triton_devices
def test_tensors_with_gaps_in_memory(device):
    x, mask, grad = problem((6, 10, 8), False, torch.float16, device)
    apart = [t.transpose(0, 2).contiguous().transpose(0, 2) for t in (x, mask, grad)]
    assert not any(t.is_contiguous() for t in apart)
    torch.testing.assert_close(solve(*apart, "triton"), solve(x, mask, grad, "triton"))


@triton_devices
def test_the_plain_gradient_is_that_of_the_kernel_and_has_second_derivatives(device):
    x, mask, grad = problem((6, 40), True, torch.float16, device)
    y, dx = solve(x, mask, grad, "triton")
    torch.testing.assert_close(gradient(grad, y, mask), dx, rtol=2e-3, atol=1e-6)
    x.requires_grad_()
    seconds = []
    for impl in ("reference", "triton"):
        (first,) = torch.autograd.grad(masked_tanh(x, mask, impl=impl), x, grad, create_graph=True)
        seconds += torch.autograd.grad(first.float().sum(), x)
    torch.testing.assert_close(*seconds, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_dtypes_raise_and_auto_takes_plain_pytorch(dtype):
    x, mask = torch.randn(4, 5, dtype=dtype), torch.ones(4, 5, dtype=dtype)
    with pytest.raises(ValueError, match=rf'masked_tanh: .* x is {dtype}; use impl="reference"'):
        masked_tanh(x, mask, impl="triton")
    torch.testing.assert_close(masked_tanh(x, mask), x.tanh())


@triton_devices
def test_a_mixture_trains_through_the_kernel_with_the_mask_of_plain_pytorch(device, monkeypatch):
    embedding = torch.nn.Embedding(30, 8, device=device, dtype=torch.bfloat16)
    layer = MixtureOfSoftmaxes(TiedSoftmax(embedding), 3, dropout=0.4).to(device, torch.bfloat16)
    hidden = torch.randn(5, 4, 8, device=device).bfloat16().requires_grad_()
    targets = torch.randint(30, (5, 4), device=device)
    found = {}
    for impl in ("reference", "triton"):
        monkeypatch.setattr(
            "drill.layers.wrappers.mixture.masked_tanh",
            lambda x, mask, impl=impl: module.masked_tanh(x, mask, impl=impl),
        )
        torch.manual_seed(1)
        loss = layer.train().nll(hidden, targets)
        found[impl] = [loss, *torch.autograd.grad(loss, [hidden, *layer.parameters()])]
    for plain, fast in zip(*found.values(), strict=True):
        assert (plain.double() - fast.double()).norm() <= 0.03 * plain.double().norm()
