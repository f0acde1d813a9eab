"""Gradients by replays of CUDA graphs: one launch for a whole forward and backward pass.

A small or deep model launches thousands of kernels a step, and a slow host needs longer to launch
them than the device to run them.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import autocast_on
from drill.kernels.runtime.overlap import overlap_scope
from drill.training.cuda_graphs import GraphCache, GraphRecorder

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
