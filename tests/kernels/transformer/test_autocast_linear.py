"""Products under autocast whose weights get gradients in float32."""

import pytest
import torch
import torch.nn.functional as F

from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.transformer.autocast_linear import cast_together, linear, several_linear
from tests.helpers.devices import cpu_and_cuda


def cast_and_linear(x, weight, bias):
    (weights,) = cast_together([(weight, bias)], compute_dtype(x))
    return linear(x, weights)


def problem(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(3, 21, 16), (24, 16), (24,)]
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("half", [True, False], ids=["half", "float32"])
@cpu_and_cuda
def test_gradients_of_weights_are_not_rounded_to_half_precision(device, half):
    given = problem(device)
    if half:
        given[0] = given[0].detach().bfloat16().requires_grad_()
    weight = torch.randn(3, 21, 24, device=device).bfloat16()
    with torch.autocast(device, torch.bfloat16):
        found, plain = cast_and_linear(*given), F.linear(*given)
        ours = torch.autograd.grad(found, given, weight)
        theirs = torch.autograd.grad(plain, given, weight)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, plain)
    assert [each.dtype for each in ours] == [each.dtype for each in given]
    rows, read = (each.detach().double().flatten(0, 1) for each in (weight, given[0].bfloat16()))
    torch.testing.assert_close(ours[0], theirs[0], rtol=0.02, atol=0.02)
    exact = [rows.t() @ read, rows.sum(0)]
    for sharp, blunt, truth in zip(ours[1:], theirs[1:], exact, strict=True):
        torch.testing.assert_close(sharp.double(), truth, rtol=1e-5, atol=1e-5)
        assert (blunt.double() - truth).norm() > 10 * (sharp.double() - truth).norm()


@cpu_and_cuda
def test_without_autocast_it_is_linear(device):
    given = problem(device)
    assert torch.equal(cast_and_linear(*given), F.linear(*given))


@cpu_and_cuda
def test_what_is_frozen_has_no_gradient(device):
    x, weight, bias = problem(device)
    with torch.autocast(device, torch.bfloat16):
        cast_and_linear(x.detach(), weight, bias.detach()).sum().backward()
        cast_and_linear(x, weight.detach(), bias).sum().backward()
        frozen = (each.detach() for each in (x, weight, bias))
        assert not cast_and_linear(*frozen).requires_grad
    assert all(each.grad is not None for each in (x, weight, bias))
    x, weight, bias = problem(device)
    maps = [(weight, bias), (weight.detach(), bias.detach())]
    sum(several_linear(x.detach(), cast_together(maps, torch.bfloat16))).sum().backward()
    assert x.grad is None
    assert weight.grad.any()
    assert bias.grad.any()


@pytest.mark.parametrize("half", [True, False], ids=["half", "float32"])
@cpu_and_cuda
def test_several_layers_at_once_are_as_each_alone(device, half):
    torch.manual_seed(0)
    x = torch.randn(3, 21, 16, device=device).requires_grad_()
    maps = [(torch.randn(o, 16, device=device), torch.randn(o, device=device)) for o in (24, 8, 40)]
    leaves = [x, *(each.requires_grad_() for pair in maps for each in pair)]
    weights = cast_together(maps, torch.bfloat16 if half else torch.float32)
    dtype = weights[0].half_weight.dtype
    given = [torch.randn(3, 21, o, device=device).to(dtype) for o in (24, 8, 40)]
    together, apart = several_linear(x, weights), [linear(x, each) for each in weights]
    torch.testing.assert_close(list(together), apart)
    found = torch.autograd.grad(together, leaves, given)
    expected = torch.autograd.grad(apart, leaves, given)
    assert [each.dtype for each in found] == [torch.float32] * len(leaves)
    torch.testing.assert_close(found[0], expected[0], rtol=0.02, atol=0.2 if half else 1e-4)
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-4)
