"""How matrix products are computed: plain float32, on tf32 units, or in bfloat16."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from drill.errors import check_value
from drill.kernels.runtime.stalls import check_stall
from drill.layers.checks import restored_modes

Precision = Literal["auto", "float32", "tf32", "bfloat16"]

logger = logging.getLogger("drill")


@contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[torch.dtype | None]:
    """Set how float32 products are computed inside; yields the dtype of autocast, if any."""
    choices = get_args(Precision)
    check_value(precision in choices, "precision", f"one of {', '.join(choices)}", precision)
    dtype = autocast_dtype(precision, device)
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = precision != "float32"
    try:
        with _onednn_for(dtype, device):
            yield dtype
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """The precision that is used on ``device``: only CUDA devices have tf32.

    ``auto`` is bfloat16 on GPUs with bfloat16 units, tf32 elsewhere.
    """
    if precision == "auto":
        fits = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        precision = "bfloat16" if fits else "tf32"
    return "float32" if precision == "tf32" and device.type != "cuda" else precision


def for_dynamic_evaluation(precision: Precision, device: torch.device) -> Precision:
    """``precision``, but tf32 instead of bfloat16, which is too coarse for its small steps."""
    return "tf32" if resolve_precision(precision, device) == "bfloat16" else precision


def current_precision(device: torch.device) -> str:
    """How float32 products are computed on ``device`` now; part of cache keys."""
    backends: dict[str, Any] = {
        "products": torch.backends.cuda.matmul,
        "LSTMs": torch.backends.cudnn.rnn,
    }
    used = [name for name, backend in backends.items() if backend.fp32_precision == "tf32"]
    return f"tf32 in {' and '.join(used)}" if used and device.type == "cuda" else "float32"


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    return torch.bfloat16 if resolve_precision(precision, device) == "bfloat16" else None


@contextmanager
def autocast_to(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """autocast to ``dtype``, or nothing."""
    if dtype is None:
        yield
        return
    with torch.autocast(device.type, dtype), _onednn_for(dtype, device):
        yield


def has_bfloat16_units(device: torch.device) -> bool:
    """False for a CPU on which oneDNN computes no products in bfloat16."""
    if device.type != "cpu":
        return True
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


@contextmanager
def _onednn_for(dtype: torch.dtype | None, device: torch.device) -> Iterator[None]:
    """Inside, oneDNN is off where it has no bfloat16, with one warning; elsewhere nothing changes.

    torch would try it all the same: an LSTM fails, a product warns with a C++ stack trace and
    disables oneDNN for the rest of the process.
    """
    if dtype != torch.bfloat16 or has_bfloat16_units(device):
        yield
        return
    _warn_of_slow_bfloat16()
    onednn: Any = torch.backends.mkldnn
    before = onednn.enabled
    onednn.enabled = False
    try:
        yield
    finally:
        onednn.enabled = before


@cache
def _warn_of_slow_bfloat16() -> None:
    logger.warning(
        "this CPU has no bfloat16 units, so bfloat16 is much slower here than float32, and less "
        "exact; set training.precision or --precision to tf32 or float32"
    )


def sum_dtype(device: torch.device) -> torch.dtype:
    """The dtype of sums over many steps: float64, or float32 on Apple GPUs, which lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_nan(name: str, values: Tensor) -> None:
    """Raise FloatingPointError, or Stalled, if one of the values that a model gives is NaN."""
    nans = int(values.isnan().sum())
    if nans:
        check_stall(name)
        raise FloatingPointError(
            f"{name}: the model gives NaN for {nans} of {values.numel()} values; go back to an "
            "earlier checkpoint, or evaluate in float32"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, ``model`` is in eval mode; afterwards each module is in its old mode."""
    with restored_modes(model):
        model.eval()
        yield
