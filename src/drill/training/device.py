"""Devices: choosing one, its name, meta initialization."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from drill.errors import SettingsError


def pick_device(name: torch.device | str = "auto") -> torch.device:
    """The device of that name; ``auto`` is this process's GPU if there is one, else the CPU."""
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return _own_gpu() if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on meta, which has no values
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).split("\n")[0].split("Expected one of")[0] or "no such device"
        raise SettingsError(
            f"device {name}: cannot be used here ({reason}); choose the device cpu"
        ) from None
    return _own_gpu() if device == torch.device("cuda") else device


def _own_gpu() -> torch.device:
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.exists() else []
    model = [line.split(":", 1)[1].strip() for line in names if line.startswith("model name")]
    return model[0] if model else platform.processor() or platform.machine()


@contextmanager
def meta_init() -> Iterator[None]:
    """Parameters made inside are on the meta device: shapes and dtypes without values."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Skips initializers. On ``meta`` torch would load its compiler for them, for seconds."""

    FILLING = (Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_)

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function in self.FILLING:
            return arguments[0] if arguments else options["tensor"]
        return function(*arguments, **(options or {}))
