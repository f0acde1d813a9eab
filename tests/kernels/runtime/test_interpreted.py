import pytest
import torch

from drill.kernels.runtime.dispatch import INTERPRETED


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device kernels are compiled")
def test_without_a_gpu_triton_interprets_the_kernels():
    """The variable is read once: set after the first import, it would skip all of their tests."""
    pytest.importorskip("triton")
    assert INTERPRETED
