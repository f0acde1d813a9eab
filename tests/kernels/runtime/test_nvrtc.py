"""Compiling at first use: what is cached on disk, and what is reported without NVRTC."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from drill.kernels.label_encoder.chain import chain
from drill.kernels.lstm.persistent import recurrence
from drill.kernels.mixture import exp_gemm
from drill.kernels.optimizer import sgd_step
from drill.kernels.runtime import nvrtc


def test_what_was_compiled_is_read_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert nvrtc._cached("kernel.cubin", lambda: b"code") == b"code"
    assert nvrtc._cached("kernel.cubin", lambda: pytest.fail("compiled again")) == b"code"


def test_what_a_source_includes_is_part_of_it(tmp_path):
    """And what that includes, each line under the name and number that an error reports."""
    (tmp_path / "deep.cuh").write_text("int deep;\n")
    (tmp_path / "shared.cuh").write_text('#include "deep.cuh"\nint shared;\n')
    source = tmp_path / "kernel.cu"
    source.write_text('// kernel\n#include "shared.cuh"\nint own;\n')
    assert nvrtc._text(source).decode().splitlines() == [
        "// kernel",
        *('#line 1 "shared.cuh"', '#line 1 "deep.cuh"', "int deep;", ""),
        *('#line 2 "shared.cuh"', "int shared;", ""),
        *('#line 3 "kernel.cu"', "int own;"),
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (chain.FORWARD, chain.FORWARD.stem),
        (chain.BACKWARD, chain.BACKWARD.stem),
        (chain.PARAMETERS, "chain_prepare"),
        (chain.PARAMETERS, "chain_finish"),
        (exp_gemm.SOURCE, exp_gemm.SOURCE.stem),
        (sgd_step.SOURCE, "squares"),
        (sgd_step.SOURCE, "update"),
        (recurrence.OCCUPANCY_SOURCE, "cluster_of_eight"),
        (recurrence.OCCUPANCY_SOURCE.with_name("forward.cu"), "lstm_forward"),
        (recurrence.OCCUPANCY_SOURCE.with_name("backward.cu"), "lstm_backward"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_source_defines_the_kernel_that_is_loaded_from_it(source, name):
    """Without a GPU nothing else would notice a renamed one."""
    defined = re.findall(r'extern "C" __global__[^{]*?(\w+)\(\s*(?:const|\))', source.read_text())
    assert name in defined


def test_a_cache_that_is_no_folder_is_logged_once(tmp_path, monkeypatch, caplog, forget_warnings):
    caplog.set_level(logging.WARNING, logger="drill")
    root = tmp_path / "cache"
    root.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root))
    assert [nvrtc._cached(name, lambda: b"code") for name in "ab"] == [b"code"] * 2
    (message,) = caplog.messages
    assert message.startswith(f"{root}/drill/cubins: ")
    assert root.read_text() == "a file"


def test_what_the_driver_refuses_is_an_obstacle_that_auto_goes_around(monkeypatch):
    driver = SimpleNamespace(cuModuleLoadData=lambda *_: 222, cuGetErrorString=lambda *_: 0)
    monkeypatch.setattr(nvrtc, "_driver", lambda: driver)
    monkeypatch.setattr(nvrtc, "_cached", lambda name, make: b"code")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(nvrtc, "unavailable_reason", lambda: None)
    monkeypatch.setattr(torch.version, "hip", None)
    recurrence._cluster_count.cache_clear()
    nvrtc._kernel.cache_clear()
    reason = recurrence.unsupported_reason(torch.device("cuda", 0), 400, 1)
    recurrence._cluster_count.cache_clear()
    assert reason.startswith("cluster_occupancy.cu: does not load")


@pytest.mark.gpu
def test_a_launch_may_be_the_first_thing_a_thread_does(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "ones.cu"
    source.write_text('extern "C" __global__ void ones(float* x) { x[threadIdx.x] = 1.0f; }')
    x = torch.zeros(32, device="cuda")
    kernel = nvrtc.load_kernel(source, "ones", {}, 0, x.device)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(kernel, 1, 32, [x]).result()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 32


@pytest.mark.gpu
def test_a_gpu_says_how_many_clusters_it_runs():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters are of Hopper and later")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    assert processors // 16 < recurrence._cluster_count(0) <= processors // 8
