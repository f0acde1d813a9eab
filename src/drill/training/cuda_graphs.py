"""Work recorded as CUDA graphs: one launch instead of hundreds, where the host is slow."""

import gc
import logging
from collections.abc import Callable, Hashable, Sequence
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

MOST_GRAPHS = 256
"""Graphs of one cache; work of further shapes runs as it is."""

SEEN_ONCE = 1024
"""Shapes that are remembered until they come again; then the oldest are forgotten."""


def guard_key(modules: Sequence[nn.Module], parameters: Sequence[Tensor]) -> Hashable:
    """What a graph is recorded for: modes, addresses, which parameters are trained.

    Where it has changed, a replay would compute what was, or read memory that others have now.
    """
    return (
        tuple(module.training for module in modules),
        tuple((each.data_ptr(), each.requires_grad) for each in parameters),
    )


class GraphRecorder:
    """Records work that changes tensors in place, reads none back and finds them at one address.

    All graphs of one recorder share their memory, so only one runs at a time, and what is to
    outlive a replay is written to a tensor from outside. On a CPU work runs as it is.

    instead  how a user does without, for errors
    """

    def __init__(self, device: torch.device, *, instead: str) -> None:
        self.device, self.instead = device, instead
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._last: torch.cuda.CUDAGraph | None = None

    def warm_up(self, work: Callable[[], Result]) -> Result:
        """Do the work as it is, where it will be recorded: it loads what a recording must not."""
        if self._stream is None:
            return work()
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            done = work()
        current.wait_stream(self._stream)
        return done

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What replays the work; recording does not do it."""
        if self._stream is None:
            return work
        graph = torch.cuda.CUDAGraph()
        pool = None if self._last is None else self._last.pool()
        torch.cuda.synchronize(self.device)
        # Memory that two streams of the last recording used is free at the next request outside of
        # one; without it this recording would take as much again.
        torch.empty(1, device=self.device)
        collecting = gc.isenabled()
        gc.disable()  # it may free another graph, which a recording does not allow
        try:
            # Not torch.cuda.graph(): that gives all free memory back first, slow to get again.
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    with suppress(RuntimeError):  # which only says that work has failed
                        self._end(graph)
                    raise
                self._end(graph)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                "this work cannot be recorded as a CUDA graph "
                f"({str(error).splitlines()[0]}); {self.instead}"
            ) from error
        finally:
            if collecting:
                gc.enable()
            # A recording begins by writing where replays find their random numbers: on its own
            # stream, so a replay on another must wait, or its numbers may be overwritten.
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._last = graph  # the one before may go only now: its memory is this one's
        return graph.replay

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording. After one that fails torch goes on taking random numbers for recorded.

        No dropout could be drawn any more, until another recording has ended well.
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
    """Which shapes of a model's work have a graph, and which are to get one.

    A shape runs as it is the first time, which loads what it needs, and is recorded the second
    time. GraphRecorder are forgotten when what they were recorded for has changed.

    Args:
        model: whose modes and parameters graphs depend on.
        when_full: the warning when there are more shapes than graphs, ``%d`` of which are allowed.
    """

    def __init__(self, model: nn.Module, when_full: str) -> None:
        self.modules, self.parameters = list(model.modules()), list(model.parameters())
        self.when_full = when_full
        self.replays: dict[Hashable, Replay] = {}
        self.seen: dict[Hashable, None] = {}  # once, without a graph; the oldest first
        self._granted: Hashable = None
        self._phase: object = None
        self._warned = False

    def check(self, phase: object = None) -> None:
        """Forget graphs of what is no longer so: the model's modes and parameters, or ``phase``."""
        granted = guard_key(self.modules, self.parameters)
        if granted != self._granted:
            self.replays.clear()
            self.seen.clear()  # other modes may take other kernels, which are to be loaded first
        elif phase is not self._phase:
            self.forget()
        self._granted, self._phase = granted, phase

    def forget(self) -> None:
        """Record all shapes anew when they come again."""
        self.seen |= dict.fromkeys(self.replays)
        self.replays.clear()

    def should_record(self, shape: Hashable) -> bool:
        """Whether a shape without a graph is to get one: it came before, and there is room."""
        if shape not in self.seen:
            self.seen[shape] = None
            if len(self.seen) > SEEN_ONCE:
                del self.seen[next(iter(self.seen))]
            return False
        if len(self.replays) < MOST_GRAPHS:
            del self.seen[shape]
            return True
        if not self._warned:
            self._warned = True
            logger.warning(self.when_full, MOST_GRAPHS)
        return False


# -- gradients ------------------------------------------------------------------------------------

WHEN_FULL = (
    "batches of %d shapes are replayed as CUDA graphs, which is the most: those of further shapes "
    "are launched one by one, more slowly; give batches fewer shapes, of a translator by a larger "
    "training.pad_to_multiple_of"
)


class CapturedGradients:
    """``loss(*inputs).backward()`` for a model, captured once for every shape of the inputs.

        gradients = CapturedGradients(model, lambda *batch: model.loss(*batch, check=False))
        for batch in batches:
            value = gradients(*batch)  # adds to every parameter's .grad, as backward() does
            optimizer.step()
            optimizer.zero_grad()

    The first batch of a shape runs as it is, the second is captured, from then on it is replayed:
    with few shapes (equal lengths, lengths padded to multiples) nearly all are replays. Batches
    that begin an update and those that add to one count as two shapes: the first kind writes its
    gradients without reading any. A shape that comes only once takes the place of none; where more
    than ``cuda_graphs.MOST_GRAPHS`` come again, the log ``drill`` says so once.

    ``loss`` must wait for no value of the device, so pass ``check=False``; dropout draws anew at
    every replay. On a CPU there is no graph, only the same gradients. For one process: DDP's
    exchange of gradients is not part of the graph.

    A graph holds what was so when it was captured. Another autocast gets graphs of its own; at
    other modes of the modules, other addresses of the parameters or others of them trained all are
    forgotten and captured anew. Whatever else ``loss`` depends on (numbers, flags, tensors that are
    neither inputs nor parameters, and parameters put in place of others) must stay; where it does
    not, make a new one of these.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        self.loss = loss
        self.parameters = list(model.parameters())
        self._held: dict[nn.Parameter, Tensor] = {}  # gradients, at the addresses graphs know
        self.cache: GraphCache[_Replay] = GraphCache(model, WHEN_FULL)
        self._graphs: GraphRecorder | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss of these inputs, without a graph of its own."""
        if self._graphs is None:
            instead = "set training.cuda_graphs=false, or call loss(...).backward() itself"
            self._graphs = GraphRecorder(inputs[0].device, instead=instead)
        self.cache.check()
        gone = self._attach()
        fresh = bool(gone) and len(gone) == sum(each.requires_grad for each in self._held)
        key = fresh, self._key(inputs)
        replay = self.cache.replays.get(key)
        if gone and (replay is None or not fresh):
            torch._foreach_zero_(gone)
        if replay is None and self.cache.should_record(key):
            replay = self.cache.replays[key] = self._recorded(self._graphs, inputs, fresh)
        if replay is None:
            value = self._graphs.warm_up(lambda: self._run(inputs))
            self._attach()  # those which have come up only now
            return value
        torch._foreach_copy_(replay.inputs, inputs)
        replay.run()
        return replay.loss.clone()

    def _key(self, inputs: tuple[Tensor, ...]) -> Hashable:
        """What a graph serves, as things stand."""
        device = inputs[0].device
        half = torch.get_autocast_dtype(device.type) if autocast_on(device) else None
        shapes = tuple((each.shape, each.dtype) for each in inputs)
        return shapes, half

    def _run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        with overlap_scope(self.parameters):
            value = self.loss(*inputs)
            value.backward()
        return value.detach()

    def _attach(self) -> list[Tensor]:
        """Every gradient at its address; gives those an optimiser has let go of, to be 0 now."""
        gone = []
        for parameter in self.parameters:
            if not parameter.requires_grad:
                continue
            held = self._held.get(parameter)
            if parameter.grad is None and held is not None:
                gone.append(held)
                parameter.grad = held
            elif parameter.grad is not None and held is None:
                self._held[parameter] = parameter.grad
            elif parameter.grad is not None and held is not None and parameter.grad is not held:
                held.copy_(parameter.grad)
                parameter.grad = held
        return gone

    def _recorded(
        self, graphs: GraphRecorder, inputs: tuple[Tensor, ...], fresh: bool
    ) -> "_Replay":
        own = tuple(each.clone() for each in inputs)
        loss = torch.zeros((), device=inputs[0].device)

        def work() -> None:
            loss.copy_(self._run_apart(own, fresh))

        return _Replay(graphs.record(work), own, loss)

    def _run_apart(self, inputs: tuple[Tensor, ...], fresh: bool) -> Tensor:
        """``_run``, but gradients come to where they are held in one launch, not one for each.

        ``fresh``: what is held there counts for nothing, so they are written and not added.
        """
        held = {each: each.grad for each in self.parameters if each.requires_grad}
        try:
            for parameter in held:
                parameter.grad = None
            value = self._run(inputs)
            to, made, left = [], [], []
            for parameter, place in held.items():
                if place is None:
                    held[parameter] = parameter.grad
                elif parameter.grad is None:
                    left.append(place)
                else:
                    to.append(place)
                    made.append(parameter.grad)
            if made:
                (torch._foreach_copy_ if fresh else torch._foreach_add_)(to, made)
            if left and fresh:
                torch._foreach_zero_(left)
        finally:
            for parameter, place in held.items():
                parameter.grad = place
        return value


@dataclass(frozen=True)
class _Replay:
    run: Callable[[], None]
    inputs: tuple[Tensor, ...]
    loss: Tensor
