"""Which implementation runs here, and why."""

import importlib.util
import logging
import os
import shutil
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch for running its kernels on a CPU, read once as Triton does."""


class Choice(NamedTuple):
    """What ``impl="auto"`` resolves to, and why."""

    impl: Literal["reference", "chunked", "triton"]
    reason: str


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype of the matrix products: autocast's where it is on, else that of ``hidden``."""
    if hidden.dtype != torch.float64 and autocast_on(hidden.device):
        return torch.get_autocast_dtype(hidden.device.type)
    return hidden.dtype


def upcast(x: Tensor) -> Tensor:
    """``x`` in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def triton_missing(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the Triton kernels do not run on this device and dtype; None if they do."""
    if not TRITON_INSTALLED:
        return "Triton is not installed"
    if device.type != "cuda" and not INTERPRETED:
        return f"Triton needs a CUDA device and the tensors are on {device.type}"
    if dtype == torch.float64:
        return "the Triton kernels are written for float32, bfloat16 and float16, not float64"
    if not INTERPRETED and C_COMPILER is None:
        return "Triton needs a C compiler, and finds neither what $CC names nor gcc nor clang"
    return None


def require_triton(device: torch.device, dtype: torch.dtype) -> None:
    missing = triton_missing(device, dtype)
    if missing is not None:
        raise ValueError(f'impl="triton": {missing}; use impl="chunked" or impl="auto"')


TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


_COMPILERS = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
C_COMPILER = next(filter(None, map(shutil.which, _COMPILERS)), None)
"""What Triton builds the launchers of its kernels with; looked for once, for torch.compile would
trace it."""


def must_not_wait(device: torch.device) -> bool:
    """Whether reading a value back from the device is impossible here."""
    if device.type == "meta" or torch.compiler.is_compiling():
        return True
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def autocast_on(device: torch.device) -> bool:
    """Whether autocast is on for this device; torch raises for the meta device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


logger = logging.getLogger("drill")


@cache
def log_once(part: str, chosen: str, reason: str) -> None:
    """Log a choice to the logger ``drill`` at level INFO, once a process."""
    logger.info("%s: %s (%s)", part, chosen, reason)
