"""Triton's interpreter, and tanh of the kernels entry by entry against float64."""

import pytest
import torch

from drill.kernels.runtime.dispatch import INTERPRETED
from tests.helpers.devices import DEVICE, numpy_warnings

pytest.importorskip("triton")

import triton
import triton.language as tl

from drill.kernels.runtime.triton_math import tanh

SIZE = 1024


@triton.jit
def _each(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, tanh(tl.load(x + at)))


def computed(x):
    y = torch.empty_like(x)
    _each[(1,)](x, y, SIZE)
    return y


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device kernels are compiled")
def test_without_a_gpu_triton_interprets_the_kernels():
    """The variable is read once: set after the first import, it would skip all of their tests."""
    assert INTERPRETED


@numpy_warnings
def test_small_numbers_keep_their_digits_and_large_ones_end_at_one():
    sizes = torch.logspace(-30, 2, SIZE // 2, device=DEVICE)
    x = torch.cat([sizes, -sizes])
    found, truth = computed(x).double(), x.double().tanh()
    assert ((found - truth) / truth).abs().max() < 5e-6
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0], device=DEVICE)
    found = computed(ends.repeat(SIZE // 4))[:4]
    torch.testing.assert_close(found, ends.tanh(), rtol=0, atol=0, equal_nan=True)
