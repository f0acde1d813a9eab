"""Products under autocast whose weights get gradients in float32."""

import pytest
import torch
import torch.nn.functional as F

from drill.kernels.product import product

both_devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def problem(device: str, biased: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(3, 21, 16), (24, 16), *([(24,)] if biased else [])]
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("half", [True, False], ids=["half", "float32"])
@both_devices
def test_gradients_of_weights_are_not_rounded_to_half_precision(device, biased, half):
    given = problem(device, biased)
    if half:
        given[0] = given[0].detach().bfloat16().requires_grad_()
    weight = torch.randn(3, 21, 24, device=device).bfloat16()
    with torch.autocast(device, torch.bfloat16):
        found, plain = product(*given), F.linear(*given)
        ours = torch.autograd.grad(found, given, weight)
        theirs = torch.autograd.grad(plain, given, weight)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, plain)
    assert [each.dtype for each in ours] == [each.dtype for each in given]
    rows, read = (each.detach().double().flatten(0, 1) for each in (weight, given[0].bfloat16()))
    torch.testing.assert_close(ours[0], theirs[0], rtol=0.02, atol=0.02)
    exact = [rows.t() @ read, rows.sum(0)]
    for sharp, blunt, truth in zip(ours[1:], theirs[1:], exact, strict=False):
        torch.testing.assert_close(sharp.double(), truth, rtol=1e-5, atol=1e-5)
        assert (blunt.double() - truth).norm() > 10 * (sharp.double() - truth).norm()


@both_devices
def test_without_autocast_it_is_linear(device):
    given = problem(device, True)
    assert torch.equal(product(*given), F.linear(*given))


@both_devices
def test_what_is_frozen_has_no_gradient(device):
    x, weight, bias = problem(device, True)
    with torch.autocast(device, torch.bfloat16):
        product(x.detach(), weight, bias.detach()).sum().backward()
        product(x, weight.detach(), bias).sum().backward()
    assert all(each.grad is not None for each in (x, weight, bias))
    with torch.autocast(device, torch.bfloat16):
        x = x.detach()
        assert not product(x, weight.detach()).requires_grad
