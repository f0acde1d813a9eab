"""CUDA graphs: a small or deep model launches thousands of kernels a step, a graph is one launch.

A slow host needs longer to launch kernels than the device to run them. GraphCapture captures work,
GraphCache knows which shapes have a graph, CapturedGradients is for training.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from drill.errors import CaptureError
from drill.kernels.runtime.dispatch import autocast_on
from drill.kernels.runtime.overlap import overlap_scope

Result = TypeVar("Result")
Replay = TypeVar("Replay")

logger = logging.getLogger("drill")

MAX_GRAPHS = 256
"""Graphs of one cache; other shapes run without a graph."""


def cuda_graphs_blocker(cuda_graphs: bool, device: torch.device, world_size: int) -> str | None:
    """Why training does not replay CUDA graphs, whatever is trained; None if it may."""
    if not cuda_graphs:
        return "training.cuda_graphs is false"
    if device.type != "cuda":
        return f"CUDA graphs need an NVIDIA GPU, not {device.type}"
    return "several processes sum their gradients" if world_size > 1 else None


class GraphCapture:
    """Captures work that changes tensors in place, at fixed addresses, and reads none back.

    All graphs of one instance share their memory, so only one runs at a time, and what must
    outlive a replay is copied to a tensor from outside. On a CPU work runs without a graph.

    Args:
        instead: how to do without graphs, for errors.
    """

    def __init__(self, device: torch.device, *, instead: str) -> None:
        self.device, self.instead = device, instead
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._last: torch.cuda.CUDAGraph | None = None

    def warm_up(self, work: Callable[[], Result]) -> Result:
        """Run the work on the capturing stream: it loads kernels, which a capture must not."""
        if self._stream is None:
            return work()
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture the work, without running it; returns what replays it."""
        if self._stream is None:
            return work
        graph = torch.cuda.CUDAGraph()
        pool = None if self._last is None else self._last.pool()
        torch.cuda.synchronize(self.device)
        # Memory that two streams of the last capture used is freed by the next allocation outside
        # a capture; without it this capture would allocate as much again.
        torch.empty(1, device=self.device)
        collecting = gc.isenabled()
        gc.disable()  # it may free another graph, which a capture does not allow
        try:
            # Not torch.cuda.graph(): it empties torch's memory cache first.
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    # The error and the warning of an empty graph only say that work has failed.
                    with suppress(RuntimeError), warnings.catch_warnings(action="ignore"):
                        self._end(graph)
                    raise
                self._end(graph)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                "this work cannot be captured as a CUDA graph "
                f"({str(error).splitlines()[0]}); {self.instead}"
            ) from error
        finally:
            if collecting:
                gc.enable()
            # A capture first writes the state of random numbers for replays, on its own stream:
            # a replay on another stream must wait, or its numbers may be overwritten.
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._last = graph  # only now may the one before be freed: they share memory
        return graph.replay

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture.

        After one that fails torch draws no random numbers until another capture has ended.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError):  # of the two errors the first one counts
                other = torch.cuda.CUDAGraph()
                other.capture_begin(capture_error_mode="thread_local")
                torch.zeros(1, device=self.device)
                other.capture_end()
            raise


class GraphCache(Generic[Replay]):
    """Which shapes of a model's work have a graph, and which get one.

    A shape runs without a graph the first time, which loads its kernels, and is captured the second
    time. Graphs are dropped when what they depend on has changed.

    Args:
        model: whose modes and parameters graphs depend on.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules, self.parameters = list(model.modules()), list(model.parameters())
        self.replays: dict[Hashable, Replay] = {}
        self.seen: set[Hashable] = set()  # once, without a graph
        self._modes_and_addresses: Hashable = None
        self._depends_on: object = None
        self._warned = False

    def drop_if_stale(self, depends_on: object = None) -> None:
        """Drop graphs if the model's modes or parameters have changed or ``depends_on`` is new."""
        # With other modes or addresses a replay would use old values or read freed memory.
        modes_and_addresses = (
            tuple(module.training for module in self.modules),
            tuple((p.data_ptr(), p.requires_grad) for p in self.parameters),
        )
        if modes_and_addresses != self._modes_and_addresses:
            self.replays.clear()
            self.seen.clear()  # other modes may need other kernels, to be loaded first
        elif depends_on is not self._depends_on:
            self.forget()
        self._modes_and_addresses, self._depends_on = modes_and_addresses, depends_on

    def forget(self) -> None:
        """Capture all shapes again when they come."""
        self.seen |= self.replays.keys()
        self.replays.clear()

    def admit(self, shape: Hashable) -> bool:
        """Whether to capture a shape without a graph now, which the caller must then do.

        The first time it is only noted as seen; later it is admitted unless the cache is full.
        """
        if shape not in self.seen:
            self.seen.add(shape)
            return False
        if len(self.replays) < MAX_GRAPHS:
            self.seen.remove(shape)
            return True
        if not self._warned:
            self._warned = True
            logger.warning(
                "%d shapes are replayed as CUDA graphs, which is the limit; others are slower",
                MAX_GRAPHS,
            )
        return False


# -- gradients ------------------------------------------------------------------------------------


class CapturedGradients:
    """``loss(*inputs).backward()`` for a model, captured once for every shape of the inputs.

        gradients = CapturedGradients(model, lambda *batch: model.loss(*batch, check=False))
        for batch in batches:
            value = gradients(*batch)  # adds to every parameter's .grad, as backward() does
            optimizer.step()
            optimizer.zero_grad()

    The first batch of a shape runs without a graph, the second is captured, later ones are
    replayed: with few shapes (equal or padded lengths) nearly all are replays. The first batch of
    a step and further ones of gradient accumulation count as two shapes.

    ``loss`` must not read values back from the device, so pass ``check=False``; every replay draws
    new dropout masks. On a CPU there is no graph, only the same gradients. For one process: DDP's
    exchange of gradients is not part of the graph.

    Each autocast dtype has its own graphs. If modes of modules, addresses of parameters or which of
    them are trained change, all are captured again. Whatever else ``loss`` depends on must not
    change: make a new instance then.

    Args:
        model: whose parameters get gradients.
        loss: a function from the tensors of a batch to a scalar.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        self.loss = loss
        self.parameters = list(model.parameters())
        self._gradients: dict[nn.Parameter, Tensor] = {}  # at the addresses that graphs know
        self.cache: GraphCache[_Replay] = GraphCache(model)
        self._graphs: GraphCapture | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss of these inputs, without a graph of its own."""
        if self._graphs is None:
            instead = "set training.cuda_graphs=false, or call loss(...).backward() itself"
            self._graphs = GraphCapture(inputs[0].device, instead=instead)
        self.cache.drop_if_stale()
        to_zero = self._attach()
        trained = sum(p.requires_grad for p in self._gradients)
        fresh = trained > 0 and len(to_zero) == trained
        device = inputs[0].device
        dtype = torch.get_autocast_dtype(device.type) if autocast_on(device) else None
        key = fresh, dtype, *((x.shape, x.dtype) for x in inputs)
        replay = self.cache.replays.get(key)
        if to_zero and (replay is None or not fresh):
            torch._foreach_zero_(to_zero)
        if replay is None and self.cache.admit(key):
            replay = self.cache.replays[key] = self._captured(self._graphs, inputs, fresh)
        if replay is None:
            value = self._graphs.warm_up(lambda: self._run(inputs))
            self._attach()  # those made by this batch
            return value
        torch._foreach_copy_(replay.inputs, inputs)
        replay.run()
        return replay.loss.clone()

    def _run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        with overlap_scope(self.parameters):
            value = self.loss(*inputs)
            value.backward()
        return value.detach()

    def _attach(self) -> list[Tensor]:
        """Put every gradient at its address; returns those that were None and are to be zeroed."""
        to_zero = []
        for parameter in self.parameters:
            if not parameter.requires_grad:
                continue
            static = self._gradients.get(parameter)
            if parameter.grad is None and static is not None:
                to_zero.append(static)
                parameter.grad = static
            elif parameter.grad is not None and static is None:
                self._gradients[parameter] = parameter.grad
            elif parameter.grad is not None and static is not None and parameter.grad is not static:
                static.copy_(parameter.grad)
                parameter.grad = static
        return to_zero

    def _captured(self, graphs: GraphCapture, inputs: tuple[Tensor, ...], fresh: bool) -> "_Replay":
        static_inputs = tuple(x.clone() for x in inputs)
        loss = torch.zeros((), device=inputs[0].device)

        def work() -> None:
            loss.copy_(self._run_apart(static_inputs, fresh))

        return _Replay(graphs.capture(work), static_inputs, loss)

    def _run_apart(self, inputs: tuple[Tensor, ...], fresh: bool) -> Tensor:
        """``_run``, but all gradients are copied to their addresses in one launch.

        ``fresh``: the first batch of a step, so they are written and not added.
        """
        static = {p: p.grad for p in self.parameters if p.requires_grad}
        try:
            for parameter in static:
                parameter.grad = None
            value = self._run(inputs)
            targets, computed, unused = [], [], []
            for parameter, grad in static.items():
                if grad is None:
                    static[parameter] = parameter.grad
                elif parameter.grad is None:
                    unused.append(grad)
                else:
                    targets.append(grad)
                    computed.append(parameter.grad)
            if computed:
                (torch._foreach_copy_ if fresh else torch._foreach_add_)(targets, computed)
            if unused and fresh:
                torch._foreach_zero_(unused)
        finally:
            for parameter, grad in static.items():
                parameter.grad = grad
        return value


@dataclass(frozen=True)
class _Replay:
    run: Callable[[], None]
    inputs: tuple[Tensor, ...]
    loss: Tensor
