"""Whether a kernel whose blocks wait for one another has timed out, since others fill the GPU."""

import torch
from torch import Tensor

from drill.errors import DrillError

STALLED = "the LSTM kernel waited in vain for room on the GPU: others fill it"


def take_stall() -> bool:
    """Whether a launch has timed out since this was last asked; waits for the device."""
    found = any(bool(flag.item()) for flag in _flags.values())
    if found:
        for flag in _flags.values():
            flag.zero_()
    return found


_flags: dict[int, Tensor] = {}


def stalled_flag(index: int) -> Tensor:
    """Set by a launch whose blocks timed out; its results are NaN."""
    if index not in _flags:
        _flags[index] = torch.zeros(1, dtype=torch.int32, device=torch.device("cuda", index))
    return _flags[index]


class Stalled(DrillError, RuntimeError):
    """A kernel timed out. Its results are invalid; another try may succeed."""


def check_stall(name: str) -> None:
    """Stalled if a launch has given up since this was last asked, which is then forgotten.

    Whoever finds NaN asks here first, before it blames anything else.
    """
    if take_stall():
        raise Stalled(f"{name}: {STALLED}; run it again on a free GPU")
