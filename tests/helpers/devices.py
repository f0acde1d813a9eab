"""Where kernels are tested: by the interpreter on a CPU, and on a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from drill.kernels.runtime.dispatch import INTERPRETED, TRITON_INSTALLED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where Triton runs or is interpreted
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9

needs_triton = pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
interpreted = pytest.mark.skipif(
    not (TRITON_INSTALLED and INTERPRETED), reason="Triton is not installed, or runs on the GPU"
)
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
# Triton's interpreter computes with numpy, which warns of what a GPU does in silence.
numpy_warnings = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

on_gpu = pytest.param("cuda", marks=pytest.mark.gpu)
cpu_and_cuda = pytest.mark.parametrize("device", ["cpu", on_gpu])
triton_devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=interpreted),
        pytest.param("cuda", marks=[pytest.mark.gpu, needs_triton]),
    ],
)
"""Of tests that run Triton kernels."""
every_impl = pytest.mark.parametrize(
    ("impl", "device"),
    [
        ("reference", "cpu"),
        pytest.param("triton", "cpu", marks=interpreted),
        pytest.param("triton", "cuda", marks=[pytest.mark.gpu, needs_triton]),
    ],
)


def on_hopper(test):
    """Marks a test that needs a Hopper GPU."""
    return pytest.mark.gpu(needs_hopper(test))


def captured(step):
    """A CUDA graph of a step that ran before on another stream, and what the graph fills."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, step()


@contextmanager
def no_gpu_sync() -> Iterator[None]:
    """Inside, an operation that waits for the GPU is an error, as far as torch notices."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
