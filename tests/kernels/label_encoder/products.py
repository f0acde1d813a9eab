"""Counts the matrix products that a computation makes."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    """Every matrix product made inside, (n, m) times (m, k) as (n, m, k)."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    @property
    def multiplications(self) -> int:
        return sum(map(math.prod, self.shapes))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            a, b = args[-2:]
            self.shapes.append((*a.shape, b.shape[1]))
        return func(*args, **(kwargs or {}))
