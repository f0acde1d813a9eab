"""What kernels made for Hopper GPUs ask of a device."""

import torch

from drill.kernels.runtime import nvrtc

SHARED = 232448
"""Bytes of shared memory that a block may have."""


def hopper_missing(device: torch.device) -> str | None:
    """Why CUDA C++ for a Hopper GPU does not run there; None where it does."""
    if device.type != "cuda" or torch.version.hip:
        return f"it needs an NVIDIA GPU, not {device.type}"
    if torch.cuda.get_device_capability(device)[0] != 9:
        return "it needs a Hopper GPU (clusters of blocks), compute capability 9"
    return nvrtc.unavailable_reason()
