"""Gradients by replays of CUDA graphs: one launch for a whole forward and backward pass.

A small or deep model launches thousands of kernels a step, and a slow host needs longer to launch
them than the device to run them.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MOST_SHAPES = 256
"""Shapes that get a graph; batches of further ones run as they are."""


class CapturedGradients:
    """``loss(*inputs).backward()`` for a model, captured once for every shape of the inputs.

        gradients = CapturedGradients(model, lambda *batch: model.loss(*batch, check=False))
        for batch in batches:
            value = gradients(*batch)  # adds to every parameter's .grad, as backward() does
            optimizer.step()
            optimizer.zero_grad()

    The first batch of a shape runs as it is, the second is captured, from then on it is replayed:
    with few shapes (equal lengths, lengths padded to multiples) nearly all are replays. ``loss``
    must wait for no value of the device, so pass ``check=False``; dropout draws anew at every
    replay. On a CPU all batches run as they are. For one process: DDP's exchange of gradients is
    not part of the graph.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        self.loss = loss
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self._held: dict[nn.Parameter, Tensor] = {}  # gradients, at the addresses graphs know
        self._graphs: dict[Hashable, _Graph | None] = {}  # None: seen once
        self._stream: torch.cuda.Stream | None = None
        self._first: torch.cuda.CUDAGraph | None = None  # whose memory all graphs share

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss of these inputs, without a graph of its own."""
        if inputs[0].device.type != "cuda":
            return self._run(inputs)
        self._attach()
        shape = tuple((each.shape, each.dtype) for each in inputs)
        if shape not in self._graphs:
            if len(self._graphs) < MOST_SHAPES:
                self._graphs[shape] = None
            value = self._aside(inputs)
            self._attach()  # those which have come up only now
            return value
        graph = self._graphs[shape]
        if graph is None:
            graph = self._graphs[shape] = self._capture(inputs)
        for static, given in zip(graph.inputs, inputs, strict=True):
            static.copy_(given)
        graph.graph.replay()
        return graph.loss.clone()

    def _run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        value = self.loss(*inputs)
        value.backward()
        return value.detach()

    def _aside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """On the stream of the captures, so that its libraries have their memory by then."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(inputs[0].device)
        current = torch.cuda.current_stream(inputs[0].device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            value = self._run(inputs)
        current.wait_stream(self._stream)
        return value

    def _attach(self) -> None:
        """Every gradient at its address; what an optimiser has let go of is zero again."""
        gone = []
        for parameter in self.parameters:
            held = self._held.get(parameter)
            if parameter.grad is None and held is not None:
                gone.append(held)
                parameter.grad = held
            elif parameter.grad is not None and held is None:
                self._held[parameter] = parameter.grad
            elif parameter.grad is not None and held is not None and parameter.grad is not held:
                held.copy_(parameter.grad)
                parameter.grad = held
        if gone:
            torch._foreach_zero_(gone)

    def _capture(self, inputs: tuple[Tensor, ...]) -> "_Graph":
        assert self._stream is not None
        device = inputs[0].device
        held = _Graph(
            torch.cuda.CUDAGraph(),
            tuple(each.clone() for each in inputs),
            torch.zeros((), device=device),
        )
        pool = None if self._first is None else self._first.pool()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(self._stream):
            held.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                held.loss.copy_(self._run(held.inputs))
            finally:
                held.graph.capture_end()
        self._first = self._first or held.graph
        return held


@dataclass(frozen=True)
class _Graph:
    """Tensors outside of the graph's memory: another graph may write all of that."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    loss: Tensor
