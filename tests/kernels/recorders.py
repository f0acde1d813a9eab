"""What a computation does: the matrix products it makes, the memory it allocates."""

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Products(TorchDispatchMode):
    """Every matrix product made inside, (n, m) times (m, k) as (n, m, k)."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            a, b = args[-2:]
            self.shapes.append((*a.shape, b.shape[1]))
        return func(*args, **(kwargs or {}))


class Allocations(TorchDispatchMode):
    """The largest tensor made inside, the peak of all and what is allocated now, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak = 0
        self.alive: dict[StorageWeakRef, int] = {}

    @property
    def now(self) -> int:
        return sum(size for ref, size in self.alive.items() if not ref.expired())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        given = {s._cdata for s in storages((args, kwargs))}
        for storage in storages(out):
            if storage._cdata not in given:
                self.largest = max(self.largest, storage.nbytes())
                self.alive[StorageWeakRef(storage)] = storage.nbytes()
        self.alive = {ref: size for ref, size in self.alive.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self.alive.values()))
        return out


def storages(tree: object) -> list[torch.UntypedStorage]:
    return [x.untyped_storage() for x in tree_iter(tree) if isinstance(x, Tensor)]
