"""How matrix products are computed: plain float32, on tf32 units, or in bfloat16."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]


@contextmanager
def products(precision: Precision, device: torch.device) -> Iterator[torch.dtype | None]:
    """Set how float32 products are computed; gives the dtype of autocast, if any."""
    if precision not in ("float32", "tf32", "bfloat16"):
        raise ValueError(f"train: precision is float32, tf32 or bfloat16, not {precision!r}")
    places: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = precision != "float32"
    try:
        yield autocast_dtype(precision)
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed


def effective(precision: Precision, device: torch.device) -> Precision:
    """What products are computed in there: only CUDA devices have tf32 units."""
    return "float32" if precision == "tf32" and device.type != "cuda" else precision


def current_precision(device: torch.device) -> str:
    """What ``products``, or its user, has set for float32 on ``device``: for what keeps results."""
    places: dict[str, Any] = {
        "products": torch.backends.cuda.matmul,
        "LSTMs": torch.backends.cudnn.rnn,
    }
    used = [name for name, place in places.items() if place.fp32_precision == "tf32"]
    return f"tf32 in {' and '.join(used)}" if used and device.type == "cuda" else "float32"


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    return torch.bfloat16 if precision == "bfloat16" else None


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> Any:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
