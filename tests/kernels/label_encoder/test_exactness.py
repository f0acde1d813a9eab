"""Errors of the fused label encoder and of the loop, both against the loop in float64."""

import copy
import math

import pytest
import torch
from torch import Tensor

from drill.layers import DeepResidual
from tests.kernels.label_encoder.test_encode_labels import (
    Masks,
    by_whom,
    every_option,
    every_way,
    given,
    interpreted,
    relative,
    solve,
    with_masks,
)


@interpreted
@pytest.mark.usefixtures("few_programs")
@every_way
def test_fused_is_no_less_exact_than_the_loop_in_half_precision(options, products, multiply):
    multiply(products)
    layer, masks, grad = given(70, 64, **options)
    assert_no_less_exact(layer, masks, grad, torch.float16)


# 2331 x 36 takes cuBLAS whoever is asked for.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [(1000, 400), (2057, 512), (2331, 36)])
@by_whom
@every_option
def test_fused_is_no_less_exact_than_the_loop_on_a_gpu(options, products, size, dtype, multiply):
    multiply(products)
    layer, masks, grad = given(*size, "cuda", **options)
    assert_no_less_exact(layer, masks, grad, dtype)


def assert_no_less_exact(layer: DeepResidual, masks: Masks, grad: Tensor, dtype) -> None:
    """By a factor of 1.3, and what luck and the order of sums make of it.

    The error of n numbers is a random number itself: of few, as a bias has, two of one kind differ
    by a factor of 1 + 4 / sqrt(n) once in ten thousand times. Products sum over the labels one
    after the other, each sum rounded, where torch sums pairs: sqrt(V) roundings of 2^-24.
    """
    narrow = copy.deepcopy(layer).to(dtype)
    exact = copy.deepcopy(narrow).double()
    if layer.maps[0].activation == "relu":
        grad = grad * clear_of_the_kink(exact, masks, dtype)[:, None]
    truth = solve(exact, "reference", masks, grad.to(dtype).double())
    loop = relative(solve(narrow, "reference", masks, grad), truth)
    fused = relative(solve(narrow, "triton", masks, grad), truth)
    names = ["labels", *(name for name, _ in narrow.named_parameters() if name != "bias")]
    factors = [max(1.3, 1 + 4 / math.sqrt(tensor.numel())) for tensor in truth]
    rounding = math.sqrt(len(truth[0])) * 2**-24
    worse = [
        f"{name}: {a:.2e} where the loop has {b:.2e}"
        for name, a, b, factor in zip(names, fused, loop, factors, strict=True)
        if a > factor * b + rounding
    ]
    assert worse == []


def clear_of_the_kink(exact: DeepResidual, masks: Masks, dtype: torch.dtype) -> Tensor:
    """Labels (V,) none of whose products ``dtype`` may round to the other side of 0.

    There relu stops a gradient, or lets it pass: a whole one, where all other errors are roundings.
    float16 does so to some ten products of 2331 x 36 labels, and one more or less decided. Where
    hardly a label is clear, it is hundreds, too many for luck: then it is all labels.
    """
    nearest = torch.full_like(exact.label_weight[:, 0], torch.inf)

    def look(linear, given, products: Tensor) -> None:
        # Five times the error of a small one and more: the operands' rounding, and that of sums.
        sums = math.sqrt(linear.in_features) * 2**-22
        far = (2 * torch.finfo(dtype).eps + sums) * products.std()
        torch.minimum(nearest, products.abs().amin(1) / far, out=nearest)

    layer = copy.deepcopy(exact)
    layer.impl = "reference"
    with_masks(layer, masks)
    for f in layer.maps:
        f.linear.register_forward_hook(look)
    with torch.no_grad():
        layer.labels()
    clear = nearest > 1
    return clear if clear.sum() > len(clear) / 20 else torch.ones_like(clear)
