"""Labels encoded once: frozen for evaluation, or shared by the micro-batches of one step."""

import abc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from drill.kernels.runtime.dispatch import autocast_on

_PLAIN = (bool, int, float, str)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


T = TypeVar("T")


class StaleLabels(RuntimeError):
    """A parameter changed, or was about to, while its labels were held."""


class HeldLabels(abc.ABC, Generic[T]):
    @abc.abstractmethod
    def read(self) -> T:
        """The encoded labels: (V, k), or what a layer makes of them."""


class FrozenLabels(HeldLabels[T]):
    """Encoded labels that refuse to be read once any tensor of the layer differs, bit by bit.

    ``inner`` is a part of the layer that holds labels of its own, and so watches its own tensors.
    """

    def __init__(self, layer: nn.Module, labels: T | None, inner: nn.Module | None = None) -> None:
        if labels is None:
            raise RuntimeError(
                f"{type(layer).__name__}: cached_labels() serves evaluation, but the layer is in "
                "training mode; call .eval() first, or use shared_labels() to train"
            )
        self.layer = layer
        self.labels = labels
        self.inner = inner
        self.before = {name: tensor.detach().clone() for name, tensor in _tensors(layer, inner)}
        self.settings = _settings(layer)

    def read(self) -> T:
        if self.layer.training:
            raise RuntimeError(
                f"{type(self.layer).__name__}: training mode was switched on inside "
                "cached_labels(), which serves evaluation; leave the block first"
            )
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.layer.parameters()):
            raise RuntimeError(
                f"{type(self.layer).__name__}: cached labels carry no gradient; evaluate under "
                "torch.no_grad(), or use shared_labels() to train"
            )
        if _settings(self.layer) != self.settings:
            raise StaleLabels(
                f"{type(self.layer).__name__}: a setting changed inside cached_labels(); leave the "
                "block first and enter it again after"
            )
        now = _tensors(self.layer, self.inner)
        for name in self.before.keys() - dict(now).keys():
            raise StaleLabels(
                f"{type(self.layer).__name__}: {name} was removed inside cached_labels(); leave "
                "the block first and enter it again after"
            )
        for name, tensor in now:
            if not _same_bits(tensor.detach(), self.before.get(name)):
                raise StaleLabels(
                    f"{type(self.layer).__name__}: {name} changed inside cached_labels(); leave "
                    "the block before updating parameters and enter it again after"
                )
        return self.labels


class _Seen(NamedTuple):
    """What tells one state of a parameter from another without a copy of it."""

    parameter: nn.Parameter
    version: int  # torch counts the writes it sees
    address: int

    @classmethod
    def of(cls, parameter: nn.Parameter) -> "_Seen":
        return cls(parameter, parameter._version, parameter.data_ptr())

    def same(self, other: "_Seen | None") -> bool:
        return other is not None and self.parameter is other.parameter and self[1:] == other[1:]


class SharedLabels(HeldLabels[Tensor]):
    """Encoded labels as a leaf whose gradients are collected and handed on to g_out once.

    A copy of every parameter would double their memory, and to compare it would make each step
    wait for the device. So a write is noticed where autograd notices one: not if it goes past
    torch's own count, as ``parameter.data.mul_(2)`` and NumPy views do. Optimisers with
    ``fused=True`` go past it too, so the step of any optimiser is stopped before it writes.
    """

    def __init__(self, layer: nn.Module, labels: Tensor) -> None:
        self.layer = layer
        trained = any(p.requires_grad for p in layer.parameters())
        self.blind = trained and not torch.is_grad_enabled()
        self.seen = {name: _Seen.of(p) for name, p in layer.named_parameters()}
        self.buffers = dict(layer.named_buffers())
        self.settings = _settings(layer)
        self.graph = labels
        self.leaf = labels.detach()
        self.collected = _Collected()
        if labels.requires_grad:
            self.leaf = self.leaf.requires_grad_()
            self.leaf.register_post_accumulate_grad_hook(self.collected)
        self.watch = register_optimizer_step_pre_hook(self._refuse_step)

    def read(self) -> Tensor:
        if self.blind and torch.is_grad_enabled():
            raise RuntimeError(
                f"{type(self.layer).__name__}: the labels of this shared_labels() block were "
                "encoded without gradients; enter it outside torch.no_grad() to train"
            )
        if not torch.compiler.is_compiling():  # whose tensors have no address
            self.check()
        return self.leaf

    def check(self) -> None:
        """Raise StaleLabels if the labels would be encoded differently by now."""
        layer = type(self.layer).__name__
        now = {name: _Seen.of(p) for name, p in self.layer.named_parameters()}
        for name in sorted(self.seen.keys() | now.keys()):
            if name not in now or not now[name].same(self.seen.get(name)):
                raise StaleLabels(
                    f"{layer}: {name} changed inside shared_labels(), before the labels had their "
                    "gradient; step the optimiser and replace parameters after the block"
                )
        # By identity only: a normalised map counts on in its buffers as contexts pass through it.
        buffers = dict(self.layer.named_buffers())
        replaced = buffers.keys() != self.buffers.keys() or any(
            buffers[name] is not self.buffers[name] for name in buffers
        )
        if replaced or _settings(self.layer) != self.settings:
            raise StaleLabels(
                f"{layer}: a setting, a mode or a part changed inside shared_labels(), before the "
                "labels had their gradient; change it after the block"
            )

    def _refuse_step(self, optimizer: Optimizer, *_: object) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, seen in self.seen.items():
            if seen.parameter.requires_grad and id(seen.parameter) in stepped:
                raise StaleLabels(
                    f"{type(self.layer).__name__}: {type(optimizer).__name__} would step {name} "
                    "inside shared_labels(), before the labels had their gradient; step the "
                    "optimiser after the block"
                )

    def backward(self) -> None:
        self.check()
        self.watch.remove()  # from here on parameters may be stepped as their gradients come
        total = self.collected.total
        if total is not None:
            self.graph.backward(total.to(self.graph.dtype))

    def close(self) -> None:
        self.watch.remove()
        self.collected.open = False
        self.collected.total = None


class _Collected:
    """Sum of the gradients that reach a leaf, in float32; it does not hold the leaf itself."""

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
            self.total = grad.to(torch.promote_types(grad.dtype, torch.float32))
        else:
            self.total.add_(grad)


def _tensors(layer: nn.Module, inner: nn.Module | None) -> list[tuple[str, Tensor]]:
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    if inner is None:
        return tensors
    elsewhere = {id(tensor) for _, tensor in _tensors(inner, None)}
    return [(name, tensor) for name, tensor in tensors if id(tensor) not in elsewhere]


def _settings(layer: nn.Module) -> list[tuple[str, type, dict[str, object]]]:
    """Kind and plain values of every module of the layer: depth, activation, residual ..."""
    return [
        (name, type(module), {key: x for key, x in vars(module).items() if _is_plain(x)})
        for name, module in layer.named_modules()
    ]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _same_bits(a: Tensor, b: Tensor | None) -> bool:
    if b is None or a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    # As integers, so that NaN equals itself and -0.0 differs from 0.0.
    bits = _INTEGERS[a.element_size()]
    return torch.equal(a.contiguous().view(-1).view(bits), b.contiguous().view(-1).view(bits))


@torch.no_grad()
def evaluated(layer: nn.Module, labels: Callable[[], Tensor]) -> Tensor:
    """``labels()`` of the layer with dropout off, whatever mode it is in."""
    modes = [(module, module.training) for module in layer.modules()]
    try:
        layer.eval()
        with without_autocast(layer):  # a fold lasts longer than an autocast
            return labels()
    finally:
        for module, mode in modes:
            module.training = mode


def without_autocast(layer: nn.Module) -> AbstractContextManager[Any]:
    device = next((tensor.device for tensor in layer.parameters()), torch.device("cpu"))
    return torch.autocast(device.type, enabled=False) if autocast_on(device) else nullcontext()
