"""Labels encoded once and reused until something changes: encode, remember, compare.

Every layer has a :class:`LabelCache`. In eval mode without gradients it reuses the encoded labels
by itself; inside ``cached_labels()`` and ``shared_labels()`` it returns those of the block.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from drill.kernels.runtime.dispatch import autocast_on, must_not_wait, upcast
from drill.layers.checks import hook_dicts, hooked, restored_modes

SAMPLES = 16
"""Entries of each tensor that are compared, for writes that bypass autograd's version counter."""

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

T = TypeVar("T")

_steps = [0]


def optimizer_steps() -> int:
    """Steps of all optimizers so far: one with fused=True bypasses the version counter."""
    return _steps[0]


def _count_step(*_: object) -> None:
    _steps[0] += 1


register_optimizer_step_post_hook(_count_step)


class StaleLabels(RuntimeError):
    """A parameter changed in ``cached_labels()``, or an optimizer stepped in the other block."""


class Snapshot:
    """The attributes and tensors of a layer's modules, to notice a change later.

    A layer has changed if an attribute, parameter, buffer, submodule or hook is another object, or
    a tensor has another version, address or entry (``.data`` and NumPy write without a new
    version). Of the entries of a tensor some are compared; ``changed(rows=True)`` compares the sum
    of every row too, which costs about as much as the logits of one token.
    """

    def __init__(self, layer: nn.Module) -> None:
        modules = list(layer.modules())
        # A module that is a plain attribute, such as an embedding that only the model registers.
        attributes = chain(*(vars(module).values() for module in modules))
        modules += [x for x in attributes if isinstance(x, nn.Module)]
        dicts: list[dict[Any, Any]] = []
        for module in modules[1:]:
            dicts += hook_dicts(module)
        for module in modules:
            dicts += [vars(module), module._modules, module._parameters, module._buffers]
        self.views = [d.values() for d in dicts]  # they show later changes
        self.objects = list(chain(*self.views))
        self.tensors = [x for x in self.objects if isinstance(x, Tensor)]
        self.versions = self._versions()
        # The entries also own the memory, so that no other tensor can get the same address. Joined
        # by device and size: each list is read from its device at once.
        self.entries: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for x in self.tensors:
            entries = x.detach().reshape(-1)[:: max(1, x.numel() // SAMPLES)]
            entries = entries.view(BITS[x.element_size()])  # NaN equals itself, 0.0 is not -0.0
            self.entries.setdefault((x.device, entries.dtype), []).append(entries)
        self.samples = self._samples()
        self.sums = self._sums()

    def changed(self, rows: bool = False) -> bool:
        objects = list(chain(*self.views))
        return (
            len(objects) != len(self.objects)
            or not all(map(operator.is_, objects, self.objects))
            or self._versions() != self.versions
            or self._samples() != self.samples
            or (rows and not all(map(torch.equal, self._sums(), self.sums)))
        )

    def _versions(self) -> list[tuple[int, int]]:
        return [(x._version, x.data_ptr()) for x in self.tensors]

    def _samples(self) -> list[list[int]]:
        return [torch.cat(entries).tolist() for entries in self.entries.values()]

    def _sums(self) -> list[Tensor]:
        return [
            x.detach().sum(-1, dtype=torch.promote_types(x.dtype, torch.float32))
            for x in self.tensors
        ]


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
        self.check()
        if self._entry is not None:
            return self._entry[0]
        parameter = next(layer.parameters(), None)
        inner = [x for x in layer.modules() if x is not layer]
        if parameter is None or layer.training or any(x.training or hooked(x) for x in inner):
            return encode()
        with torch.inference_mode(False), torch.no_grad():  # labels that both modes can read
            labels = encode()
            with suppress(RuntimeError):  # tensors without a version or memory
                context = _context(parameter.device, labels)
                if context is not None and not isinstance(labels, nn.Parameter):
                    self._entry = labels, parameter.device, context, Snapshot(layer)
        return labels

    def check(self, rows: bool = False) -> None:
        """Drop the labels after a change; ``rows`` compares the sums of all rows too."""
        if self._entry is not None:
            labels, device, context, snapshot = self._entry
            if _context(device, labels) != context or snapshot.changed(rows):
                self._entry = None

    def clear(self) -> None:
        self._entry = None

    @contextmanager
    def cached(self, layer: nn.Module, encode: Callable[[], T]) -> Iterator[None]:
        """A block that reads ``encode()`` of its start, or raises after a change."""
        name = type(layer).__name__
        if layer.training:
            raise RuntimeError(
                f"{name}: cached_labels() in training mode; call .eval() first, or use "
                "shared_labels() to train"
            )
        labels, snapshot = call_in_eval_mode(layer, encode), Snapshot(layer)

        def read() -> T:
            if torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters()):
                raise RuntimeError(
                    f"{name}: cached labels have no gradient; evaluate under torch.no_grad(), or "
                    "use shared_labels() to train"
                )
            if snapshot.changed():
                raise StaleLabels(
                    f"{name}: a parameter, a setting or the mode changed inside cached_labels(); "
                    "change it outside the block"
                )
            return labels

        with self._inside(layer, read):
            yield

    @contextmanager
    def shared(
        self: "LabelCache[Tensor]", layer: nn.Module, encode: Callable[[], Tensor]
    ) -> Iterator[None]:
        """A block that reads ``encode()`` of its start, and runs its backward at the end."""
        labels, steps = encode(), optimizer_steps()
        total: Tensor | None = None
        ended = False

        def add(leaf: Tensor) -> None:
            nonlocal total
            grad, leaf.grad = leaf.grad, None
            assert grad is not None
            if ended:
                raise RuntimeError(
                    "backward ran after its shared_labels() block had ended, so the gradient of "
                    "the labels would be lost; call backward inside the block"
                )
            total = upcast(grad) if total is None else total.add_(grad)

        shared = labels.detach()
        if labels.requires_grad:
            shared.requires_grad_().register_post_accumulate_grad_hook(add)
        try:
            with self._inside(layer, lambda: shared):
                yield
        finally:
            ended, summed, total = True, total, None  # a loss that lives on keeps the hook
        if optimizer_steps() != steps:
            raise StaleLabels(
                f"{type(layer).__name__}: an optimizer stepped inside shared_labels(), before the "
                "labels had their gradient; step after the block"
            )
        if summed is not None:
            labels.backward(summed.to(labels.dtype))

    @contextmanager
    def _inside(self, layer: nn.Module, block: Callable[[], T]) -> Iterator[None]:
        if self.block is not None:
            raise RuntimeError(
                f"{type(layer).__name__}: cached_labels() and shared_labels() do not nest"
            )
        self.block = block
        try:
            yield
        finally:
            self.block = None


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
def call_in_eval_mode(layer: nn.Module, encode: Callable[[], T]) -> T:
    """``encode()`` with dropout off, and without autocast, which may end before the labels do."""
    device = next((tensor.device for tensor in layer.parameters()), torch.device("cpu"))
    plain = torch.autocast(device.type, enabled=False) if autocast_on(device) else nullcontext()
    with restored_modes(layer), plain:
        layer.eval()
        return encode()
