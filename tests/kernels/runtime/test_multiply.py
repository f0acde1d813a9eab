"""Half precision times float32: the kernel against PyTorch."""

import pytest
import torch

from drill.kernels.runtime.dispatch import INTERPRETED
from tests.helpers.devices import DEVICE, numpy_warnings

pytest.importorskip("triton")

from drill.kernels.runtime.multiply_triton import multiply

SHAPES = {
    "a mask of its own": ((3, 5, 7), (3, 5, 7)),
    "one mask for all steps": ((9, 5, 131), (1, 5, 131)),
    "one mask for all labels": ((9, 600), (600,)),
    "a factor a row": ((2, 5, 130), (2, 5, 1)),
    "one factor": ((9, 7), ()),
    "no rows": ((0, 7), (1, 7)),
}


@numpy_warnings
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_the_product_is_rounded_once(shapes, dtype):
    torch.manual_seed(0)
    x, factor = (torch.randn(shape, device=DEVICE) for shape in shapes)
    x = x.to(dtype)
    for out in (dtype, torch.float32):
        found = multiply(x, factor, out)
        assert found.dtype == out
        cut = INTERPRETED and out == torch.bfloat16  # the interpreter cuts where a GPU rounds
        product = (x.float() * factor).to(out)
        torch.testing.assert_close(found, product, rtol=2**-7 if cut else 0, atol=0)


@pytest.mark.parametrize("shapes", [((3, 4, 5), (1, 4, 1)), ((3, 4), (2, 3, 4))])
def test_other_factors_are_left_to_pytorch(shapes):
    x, factor = (torch.ones(shape, device=DEVICE) for shape in shapes)
    assert multiply(x.half(), factor, torch.float16) is None
    assert multiply(torch.ones(4, 3, device=DEVICE).t().half(), factor, torch.float16) is None


@pytest.mark.gpu
def test_masked_takes_the_kernel_both_ways(calls_of):
    from drill.kernels.runtime import dropout_masks, multiply_triton

    calls = calls_of(multiply_triton, "multiply")
    x = torch.randn(6, 5, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mask = dropout_masks.draw_mask((1, 5, 64), 0.5, x)
    dropout_masks.masked(x, mask).backward(torch.ones_like(x))
    assert len(calls) == 2
    torch.testing.assert_close(x.grad, mask.expand_as(x).to(x.dtype), rtol=0, atol=0)
