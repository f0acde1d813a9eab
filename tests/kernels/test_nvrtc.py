"""Compiling at first use: what is kept on disk, and what a machine without NVRTC is told."""

import ctypes
import logging

import pytest
import torch

from drill.kernels import nvrtc


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


@pytest.mark.gpu
def test_a_gpu_says_how_many_clusters_it_runs():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters are of Hopper and later")
    from drill.kernels.lstm_persistent import _room

    processors, clusters = _room(0)
    assert processors // 4 - 6 <= clusters <= processors // 4
