"""Triton kernels launched by addresses, without Triton's look at every argument.

At every launch Triton asks each argument for its dtype, whether 16 divides its address or it, and
whether it is 1, and so finds what it has compiled. On a slow host that takes 100 microseconds, a
pass over a few thousand rows 10. Here the first launch of a kind is Triton's own; what it has
compiled is kept under dtypes and constants and launched again with bare addresses.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from drill.kernels.runtime.dispatch import tell_once

KNOWN = ("3.6.",)
"""Versions of Triton whose compiled kernels are launched as below; torch names one of its own.

A wrong launch writes where it should not, so a version is known once the gpu tests have run with
it. 3.7 takes the same arguments by its source, and has not been run.
"""

_UNALIGNED = 15  # the bits of an address that 16 does not divide


class Launcher:
    """``launcher(grid, tensors, numbers, constants, warps)`` launches a ``triton.jit`` kernel.

    The kernel's parameters come in that order: tensors, of which the first is never None, numbers
    and constants. Numbers are among its ``do_not_specialize``, whole ones below 2^31; a number is
    whole at every launch or at none.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        grid: tuple[int, int],
        tensors: tuple[Tensor | None, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[Any, ...],
        warps: int,
    ) -> None:
        assert tensors[0] is not None
        device = tensors[0].get_device()
        if device < 0:  # Triton interprets
            self.kernel[grid](*tensors, *numbers, *constants, num_warps=warps)
            return
        if device != driver.active.get_current_device():
            with torch.cuda.device(device):  # where Triton launches
                return self(grid, tensors, numbers, constants, warps)
        addresses = [None if each is None else each.data_ptr() for each in tensors]
        kinds = [None if each is None else each.dtype for each in tensors]
        key = (device, warps, constants, *kinds)
        compiled = self._compiled.get(key)
        bits = 0
        for address in addresses:
            bits |= address or 0
        # Triton compiles for addresses that 16 divides, and apart from that for all others.
        if compiled is None or bits & _UNALIGNED or _watched():
            compiled = self.kernel[grid](*tensors, *numbers, *constants, num_warps=warps)
            if not bits & _UNALIGNED and _known():
                self._compiled[key] = compiled
            return
        compiled.run(
            grid[0], grid[1], 1, driver.active.get_current_stream(device), compiled.function,
            compiled.packed_metadata, None, None, None, *addresses, *numbers, *constants,
        )  # fmt: skip


def _watched() -> bool:
    """Whether someone, a profiler say, wants to hear from Triton of every launch."""
    return bool(knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls)


def launch_way(device: torch.device) -> str:
    """How kernels are launched there, all but the first of a kind, and why not by addresses."""
    if device.type != "cuda":
        return "by Triton (which interprets them)"
    reason = _unknown()
    return "by addresses" if reason is None else f"by Triton ({reason})"


def _known() -> bool:
    reason = _unknown()
    if reason is None:
        return True
    tell_once("launches", "by Triton, which costs the host more", reason)
    return False


def _unknown() -> str | None:
    if triton.__version__.startswith(KNOWN):
        return None
    proven = " and ".join(each.removesuffix(".") for each in KNOWN)
    return f"Triton is {triton.__version__}, and launches by addresses are proven with {proven}"
