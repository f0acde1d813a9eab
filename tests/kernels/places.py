"""Where kernels are tested: by the interpreter on a CPU, and on a GPU."""

import pytest

from drill.kernels.runtime.dispatch import INTERPRETED, TRITON_INSTALLED

every_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="runs on the GPU")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
every_impl = pytest.mark.parametrize(
    ("impl", "device"),
    [
        ("reference", "cpu"),
        pytest.param(
            "triton",
            "cpu",
            marks=pytest.mark.skipif(
                not (TRITON_INSTALLED and INTERPRETED), reason="Triton does not interpret"
            ),
        ),
        pytest.param("triton", "cuda", marks=pytest.mark.gpu),
    ],
)
