"""tanh of the Triton kernels, entry by entry against float64."""

import pytest
import torch

from drill.kernels.runtime.dispatch import TRITON_INSTALLED

if not TRITON_INSTALLED:
    pytest.skip("Triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from drill.kernels.runtime.triton_math import tanh

# Triton's interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

SIZE = 1024


@triton.jit
def _each(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, tanh(tl.load(x + at)))


def computed(x):
    y = torch.empty_like(x)
    _each[(1,)](x, y, SIZE)
    return y


def test_small_numbers_keep_their_digits_and_large_ones_end_at_one():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = torch.logspace(-30, 2, SIZE // 2, device=device)
    x = torch.cat([sizes, -sizes])
    found, truth = computed(x).double(), x.double().tanh()
    assert ((found - truth) / truth).abs().max() < 5e-6
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0], device=device)
    found = computed(ends.repeat(SIZE // 4))[:4]
    torch.testing.assert_close(found, ends.tanh(), rtol=0, atol=0, equal_nan=True)
