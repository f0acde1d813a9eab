"""Labels encoded once: reused until something changes, or shared by the micro-batches of one step.

Every layer has a :class:`LabelCache`. In eval mode without gradients it reuses the encoded labels
by itself; inside ``cached_labels()`` and ``shared_labels()`` it returns those of the block.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from drill.kernels.runtime.dispatch import autocast_on, must_not_wait, upcast
from drill.layers.checks import hook_dicts, hooked, restored_modes

SAMPLES = 16
"""Entries of each tensor that are compared, for writes that bypass autograd's version counter."""

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

T = TypeVar("T")

_steps = [0]  # of all optimisers


def _count_step(*_: object) -> None:
    """Any step drops cached labels: one with fused=True bypasses the version counter."""
    _steps[0] += 1


register_optimizer_step_post_hook(_count_step)


class StaleLabels(RuntimeError):
    """A parameter changed inside ``cached_labels()`` or ``shared_labels()``."""


class Snapshot:
    """The attributes and tensors of a layer's modules, to notice a change later.

    A layer has changed if an attribute, parameter, buffer or submodule is another object, or a
    tensor has another version or address. With ``samples`` also if entries of a tensor differ
    (``.data`` and NumPy write without a new version) or a submodule got a hook. ``rows_changed``
    compares the sum of every row too, which costs about as much as the logits of one token.
    """

    def __init__(self, layer: nn.Module, samples: bool = True) -> None:
        modules = list(layer.modules())
        # A module that is a plain attribute, such as an embedding that only the model registers.
        attributes = chain(*(vars(module).values() for module in modules))
        modules += [x for x in attributes if isinstance(x, nn.Module)]
        dicts: list[dict[Any, Any]] = []
        for module in modules:
            dicts += [vars(module), module._modules, module._parameters, module._buffers]
        if samples:
            dicts += [hooks for module in modules[1:] for hooks in hook_dicts(module)]
        self.views = [d.values() for d in dicts]  # they show later changes
        self.objects = list(chain(*self.views))
        tensors = [x for x in self.objects if isinstance(x, Tensor)]
        # In training, the forward pass itself may write to buffers.
        self.versioned = [x for x in tensors if samples or isinstance(x, nn.Parameter)]
        self.versions = self._versions()
        # The entries also own the memory, so that no other tensor can get the same address.
        self.slices: list[Tensor] = []  # on a CPU, where torch.cat takes longer than to read each
        self.joined: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}  # on other devices
        for x in tensors if samples else ():
            entries = x.detach().reshape(-1)[:: max(1, x.numel() // SAMPLES)]
            entries = entries.view(BITS[x.element_size()])  # NaN equals itself, 0.0 is not -0.0
            key = x.device, entries.dtype
            group = self.slices if x.is_cpu else self.joined.setdefault(key, [])
            group.append(entries)
        self.samples = self._samples()
        self.summed = [x.detach() for x in tensors] if samples else []
        self.sums = self._sums()

    def rows_changed(self) -> bool:
        return self.changed() or not all(map(torch.equal, self._sums(), self.sums))

    def changed(self) -> bool:
        objects = list(chain(*self.views))
        return (
            len(objects) != len(self.objects)
            or not all(map(operator.is_, objects, self.objects))
            or self._versions() != self.versions
            or self._samples() != self.samples
        )

    def _versions(self) -> list[tuple[int, int]]:
        return [(x._version, x.data_ptr()) for x in self.versioned]

    def _samples(self) -> list[list[int]]:
        return [x.tolist() for x in chain(self.slices, map(torch.cat, self.joined.values()))]

    def _sums(self) -> list[Tensor]:
        return [x.sum(-1, dtype=torch.promote_types(x.dtype, torch.float32)) for x in self.summed]


class LabelCache(Generic[T]):
    """The labels of one layer, encoded when they are first read and after any change."""

    def __init__(self) -> None:
        self.block: Callable[[], T] | None = None  # reads the labels of a block
        self._entry: tuple[T, torch.device, tuple[object, ...], Snapshot] | None = None

    def __reduce__(self) -> tuple[type["LabelCache[T]"], tuple[()]]:
        return type(self), ()  # copies start empty

    def read(self, layer: nn.Module, encode: Callable[[], T]) -> T:
        """``encode()``, or the result of an earlier call if nothing has changed since."""
        if self.block is not None:
            return self.block()
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return encode()
        if self._entry is not None:
            labels, device, context, snapshot = self._entry
            if _context(device, labels) == context and not snapshot.changed():
                return labels
            self._entry = None
        parameter = next(layer.parameters(), None)
        inner = [x for x in layer.modules() if x is not layer]
        if parameter is None or layer.training or any(x.training or hooked(x) for x in inner):
            return encode()
        with torch.inference_mode(False), torch.no_grad():  # labels that both modes can read
            labels = encode()
            if isinstance(labels, nn.Parameter):  # nothing was encoded
                return labels
            with suppress(RuntimeError):  # tensors without a version or memory
                made_in = _context(parameter.device, labels)
                if made_in is not None:
                    self._entry = labels, parameter.device, made_in, Snapshot(layer)
        return labels

    def clear(self) -> None:
        self._entry = None

    def check_rows(self) -> None:
        """Drop the labels also if rows were written through ``.data`` or NumPy."""
        if self._entry is not None:
            labels, device, context, snapshot = self._entry
            if _context(device, labels) != context or snapshot.rows_changed():
                self._entry = None

    @contextmanager
    def inside(self, layer: nn.Module, block: Callable[[], T]) -> Iterator[None]:
        if self.block is not None:
            raise RuntimeError(
                f"{type(layer).__name__}: cached_labels() and shared_labels() do not nest"
            )
        self.block = block
        try:
            yield
        finally:
            self.block = None


def frozen_labels(layer: nn.Module, labels: T) -> Callable[[], T]:
    """A function that returns the labels of a ``cached_labels()`` block while they are valid."""
    name, snapshot = type(layer).__name__, Snapshot(layer)

    def read() -> T:
        if torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters()):
            raise RuntimeError(
                f"{name}: cached labels have no gradient; evaluate under torch.no_grad(), or use "
                "shared_labels() to train"
            )
        if snapshot.changed():
            raise StaleLabels(
                f"{name}: a parameter, a setting or the mode changed inside cached_labels(); "
                "change it outside the block"
            )
        return labels

    return read


class SharedLabels:
    """The labels of a ``shared_labels()`` block: a leaf that collects gradients for one backward.

    Entries are not compared, because that waits for the device at each step. Instead a step of any
    optimiser raises before it writes.
    """

    def __init__(self, layer: nn.Module, labels: Tensor) -> None:
        self.layer = layer
        self.parameters = {id(p) for p in layer.parameters() if p.requires_grad}
        self.snapshot = Snapshot(layer, samples=False)
        self.graph = labels
        self.leaf = labels.detach()
        self.collected = _Collected()
        if labels.requires_grad:
            self.leaf = self.leaf.requires_grad_()
            self.leaf.register_post_accumulate_grad_hook(self.collected)
        self.hook = register_optimizer_step_pre_hook(self._before_step)

    def read(self) -> Tensor:
        if not torch.compiler.is_compiling():  # traced tensors have no address
            self.check()
        return self.leaf

    def check(self) -> None:
        if self.snapshot.changed():
            raise StaleLabels(
                f"{type(self.layer).__name__}: a parameter, a setting or the mode changed inside "
                "shared_labels(); change it after the block"
            )

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if stepped & self.parameters:
            raise StaleLabels(
                f"{type(self.layer).__name__}: a step of {type(optimizer).__name__} inside "
                "shared_labels(), before the labels have their gradient; step after the block"
            )

    def backward(self) -> None:
        self.check()
        self.hook.remove()  # gradient hooks may step
        total = self.collected.total
        if total is not None:
            self.graph.backward(total.to(self.graph.dtype))

    def close(self) -> None:
        self.hook.remove()
        self.collected.open = False
        self.collected.total = None


class _Collected:
    """The sum of the gradients of a leaf, in float32, without a reference to the leaf."""

    def __init__(self) -> None:
        self.open = True
        self.total: Tensor | None = None

    def __call__(self, leaf: Tensor) -> None:
        grad, leaf.grad = leaf.grad, None
        assert grad is not None
        if not self.open:
            raise RuntimeError(
                "backward ran after its shared_labels() block had ended, so the gradient of the "
                "labels would be lost; call backward inside the block"
            )
        if self.total is None:
            self.total = upcast(grad)
        else:
            self.total.add_(grad)


def _context(device: torch.device, labels: object) -> tuple[object, ...] | None:
    """What else cached labels depend on: their own version, autocast, the stream.

    None where each call has to encode: graphs that are captured or traced, FLOP counters.
    """
    if must_not_wait(device) or is_in_torch_dispatch_mode() or torch._C._is_tracing():
        return None
    version = labels._version if isinstance(labels, Tensor) else None
    autocast = torch.get_autocast_dtype(device.type) if autocast_on(device) else None
    if device.type != "cuda":
        return version, _steps[0], autocast
    # Another stream would have to wait for the labels.
    stream, precision = torch.cuda.current_stream(device), torch.backends.cuda.matmul.fp32_precision
    return version, _steps[0], autocast, stream, precision


@torch.no_grad()
def call_in_eval_mode(layer: nn.Module, labels: Callable[[], Tensor]) -> Tensor:
    """``labels()`` with dropout off, whatever mode the layer is in."""
    with restored_modes(layer), without_autocast(layer):  # the result is used after autocast ends
        layer.eval()
        return labels()


def without_autocast(layer: nn.Module) -> AbstractContextManager[None]:
    device = next((tensor.device for tensor in layer.parameters()), torch.device("cpu"))
    return torch.autocast(device.type, enabled=False) if autocast_on(device) else nullcontext()
