"""Compiling at first use: what is kept on disk, and what a machine without NVRTC is told."""

import ctypes
import logging
from contextlib import nullcontext

import pytest
import torch

from drill.kernels import lstm_persistent, nvrtc


def test_what_is_kept_comes_back(tmp_path):
    path = tmp_path / "folder" / "kernel.cubin"
    assert nvrtc._kept(path) is None
    nvrtc._keep(path, b"code")
    assert nvrtc._kept(path) == b"code"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-1], lambda raw: raw[:-1] + b"x", lambda _: b""]
)
def test_a_damaged_file_is_compiled_again(damage, tmp_path, caplog):
    path = tmp_path / "kernel.cubin"
    nvrtc._keep(path, b"code")
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, logger="drill"):
        assert nvrtc._kept(path) is None
    assert caplog.messages == [f"{path}: is damaged; compiling it again"]
    nvrtc._keep(path, b"code")
    assert nvrtc._kept(path) == b"code"


def test_what_a_source_includes_is_part_of_it(tmp_path):
    (tmp_path / "shared.cuh").write_text("int shared;\n")
    source = tmp_path / "kernel.cu"
    source.write_text('// kernel\n#include "shared.cuh"\nint own;\n')
    assert nvrtc._text(source) == b"// kernel\nint shared;\n\nint own;\n"


def test_what_is_missing_is_named(monkeypatch):
    def without_driver() -> ctypes.CDLL:
        raise OSError("libcuda.so.1: cannot open shared object file")

    def without_compiler() -> ctypes.CDLL:
        raise nvrtc.CompileError("NVRTC of CUDA 13 is not found, though PyTorch brings it")

    missing = nvrtc.missing.__wrapped__  # each time anew
    monkeypatch.setattr(torch.version, "cuda", None)
    assert missing() == "PyTorch is built without CUDA"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(nvrtc, "_driver", without_driver)
    assert missing().startswith("the NVIDIA driver's library is not found (libcuda.so.1")
    monkeypatch.setattr(nvrtc, "_driver", lambda: None)
    monkeypatch.setattr(nvrtc, "_compiler", without_compiler)
    assert missing() == "NVRTC of CUDA 13 is not found, though PyTorch brings it"
    monkeypatch.setattr(nvrtc, "_compiler", lambda: None)
    assert missing() is None


@pytest.fixture
def told(caplog, unwarned):
    """What is warned of."""
    with caplog.at_level(logging.WARNING, logger="drill"):
        yield caplog


def test_a_cache_that_is_no_folder_costs_compiling_and_is_told_once(told, tmp_path, monkeypatch):
    root = tmp_path / "cache"
    root.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root))
    assert [nvrtc._kept_or_made(name, lambda: b"code") for name in "ab"] == [b"code"] * 2
    (said,) = told.messages
    assert said.startswith(
        f"{root}/drill/kernels: compiled kernels cannot be kept there (Not a directory)"
    )
    assert root.read_text() == "a file"


def test_a_user_without_a_home_compiles_and_is_told(told, homeless, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert nvrtc._kept_or_made("a", lambda: b"code") == b"code"
    assert [each.split(",")[0] for each in told.messages] == [
        "~/.cache: compiled kernels cannot be kept there (this user has no home)"
    ]
    assert not list(tmp_path.iterdir())


def test_a_kept_kernel_is_not_made_again(told, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert nvrtc._kept_or_made("a", lambda: b"code") == b"code"
    assert nvrtc._kept_or_made("a", lambda: b"other") == b"code"
    assert not told.messages


class RefusingDriver:
    """Loads no module."""

    def cuModuleLoadData(self, module, cubin):
        return 222

    def cuGetErrorString(self, result, text):
        return 0


def test_what_the_driver_refuses_is_an_obstacle_that_auto_goes_around(monkeypatch):
    monkeypatch.setattr(nvrtc, "_driver", RefusingDriver)
    monkeypatch.setattr(nvrtc, "_kept_or_made", lambda name, make: b"code")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(nvrtc, "missing", lambda: None)
    monkeypatch.setattr(torch.version, "hip", None)
    lstm_persistent._room.cache_clear()
    nvrtc._kernel.cache_clear()
    reason = lstm_persistent.supported(torch.device("cuda", 0), 400)
    lstm_persistent._room.cache_clear()
    assert reason.startswith(
        "cluster_room.cu: does not load (CUDA, loading: unknown (error 222)); update the NVIDIA"
    )


@pytest.mark.gpu
def test_a_gpu_says_how_many_clusters_it_runs():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters are of Hopper and later")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    assert processors // 16 < lstm_persistent._room(0) <= processors // 8
