"""Data-parallel training: several processes started by ``torchrun``.

Every process reads its own part of each batch and has the whole model, whose gradients torch's
DistributedDataParallel averages; or, sharded by FSDP2, a part of every parameter.
"""

import datetime
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drill.errors import SettingsError
from drill.models.language_model import LanguageModel
from drill.models.translator import Translator
from drill.training.run.checkpoint import full_tensor


@dataclass(frozen=True)
class World:
    """This process among ``size`` processes. With one, every method is the identity."""

    rank: int = 0
    size: int = 1
    control: Any = None  # a process group on the CPU, for decisions

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    def per_process(self, count: int, key: str) -> int:
        """The setting ``key`` divided by the number of processes."""
        if count % self.size != 0:
            raise SettingsError(
                f"{count} cannot be divided among {self.size} processes",
                key=key,
                hint=f"set it to a multiple of {self.size}",
            )
        return count // self.size

    def local_batch(self, data: Tensor) -> Tensor:
        """This process's part of (length, batch, ...)."""
        if self.size == 1:
            return data
        local_size = self.per_process(data.shape[1], "training.batch_size")
        return data[:, self.rank * local_size : (self.rank + 1) * local_size].contiguous()

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.control)

    def all_reduce_max(self, value: float) -> float:
        return self._all_reduce(value, dist.ReduceOp.MAX)

    def _all_reduce(self, value: float, op: Any) -> float:
        if self.size == 1:
            return value
        result = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(result, op=op, group=self.control)
        return float(result)

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true in at least one process."""
        return self.all_reduce_max(float(flag)) > 0.0

    def sum(self, value: float) -> float:
        return self._all_reduce(value, dist.ReduceOp.SUM)

    def mean(self, value: float) -> float:
        return self.sum(value) / self.size

    def broadcast_object(self, value: Any) -> Any:
        """The value of the first process, for all."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sharded tensors whole and on the CPU, in the first process; others as they are."""
        whole = {}
        for name, tensor in tensors.items():  # one at a time: all would fill the device
            gathered = full_tensor(tensor)
            if self.is_main or gathered is tensor:
                whole[name] = gathered
        return whole

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, equal in shape, on the CPU, in the order of ranks."""
        local = tensor.detach().cpu().contiguous()
        if self.size == 1:
            return [local]
        gathered = [torch.empty_like(local) for _ in range(self.size)]
        dist.all_gather(gathered, local, group=self.control)
        return gathered


def data_parallel(model: LanguageModel | Translator, world: World) -> nn.Module:
    """The model in DistributedDataParallel, unless there is one process or it is sharded."""
    if world.size == 1 or is_sharded(model):
        return model
    # A step of an adaptive softmax, or of a user's layer, may leave out parameters.
    unused = not (model.layer.static_shapes or model.layer.trains_all_parameters)
    return DistributedDataParallel(model, find_unused_parameters=unused)


def shard(model: LanguageModel, world: World) -> None:
    """Shard a model with a Transformer of transformers in place, by FSDP2.

    Every block is a group; the rest, with the embedding that encoder and layer share, is one more.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # takes seconds to import

    if world.size > 1:
        mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
        # The first ModuleList has the blocks, whatever a model type calls it.
        lists = (module for module in model.encoder.modules() if isinstance(module, nn.ModuleList))
        for module in (*next(lists), model):
            fully_shard(module, mesh=mesh)
        # A validation may come before the first step: its blocks must not become roots. Only a
        # forward of the model would say so in public, and a validation calls its parts.
        cast(Any, model)._get_fsdp_state()._lazy_init()


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Inside, parts of a sharded model may be called; its blocks gather themselves."""
    if not is_sharded(model):
        yield
        return
    sharded: Any = model
    sharded.unshard()
    try:
        yield
    finally:
        sharded.reshard()


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "unshard")


CONTROL_TIMEOUT = 7 * 86_400.0
"""Seconds that processes wait while the first one learns subwords, reads a text, validates or
tests. A process that dies is noticed at once."""


@contextmanager
def init_distributed(device: torch.device, timeout: float = 1800.0) -> Iterator[World]:
    """The processes that ``torchrun`` started, or a world of one without it.

    With several machines, a ``torchrun`` that may restart its processes needs the environment
    variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, see ``_store``. ``timeout`` is in seconds, of
    collective operations.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=_store(limit),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=limit,
    )
    try:
        longest = datetime.timedelta(seconds=CONTROL_TIMEOUT)
        control = dist.new_group(backend="gloo", timeout=longest)
        yield World(dist.get_rank(), dist.get_world_size(), control)
    finally:
        dist.destroy_process_group()


def _store(limit: datetime.timedelta) -> Any:
    """The rendezvous store; None leaves it to torch.

    The store of ``torchrun`` outlives a restart and then has the addresses of processes that have
    died (pytorch issue 135712), so every start gets a prefix of its own. Only one machine can
    number its starts: several machines count them separately.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not shared or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    stores: Any = dist  # which exports them, though not for a type checker
    store = stores.TCPStore(address, port, is_master=False, timeout=limit)
    return stores.PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
