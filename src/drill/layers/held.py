"""Labels encoded once: frozen for evaluation, or shared by the micro-batches of one step."""

import abc

import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class StaleLabels(RuntimeError):
    """A parameter changed while its labels were cached."""


class HeldLabels(abc.ABC):
    @abc.abstractmethod
    def read(self) -> Tensor:
        """The encoded labels (V, k)."""


class FrozenLabels(HeldLabels):
    """Encoded labels that refuse to be read once any tensor of the layer differs, bit by bit."""

    def __init__(self, layer: nn.Module, labels: Tensor | None) -> None:
        if labels is None:
            raise RuntimeError(
                f"{type(layer).__name__}: cached_labels() serves evaluation, but the layer is in "
                "training mode; call .eval() first, or use shared_labels() to train"
            )
        self.layer = layer
        self.labels = labels
        self.before = {name: tensor.detach().clone() for name, tensor in _tensors(layer)}
        self.settings = _settings(layer)

    def read(self) -> Tensor:
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
        now = _tensors(self.layer)
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


class SharedLabels(HeldLabels):
    """Encoded labels as a leaf whose gradients are collected and handed on to g_out once."""

    def __init__(self, layer: nn.Module, labels: Tensor) -> None:
        self.layer = layer
        trained = any(p.requires_grad for p in layer.parameters())
        self.blind = trained and not torch.is_grad_enabled()
        self.versions = {name: p._version for name, p in layer.named_parameters()}
        self.graph = labels
        self.leaf = labels.detach()
        self.collected = _Collected()
        if labels.requires_grad:
            self.leaf = self.leaf.requires_grad_()
            self.leaf.register_post_accumulate_grad_hook(self.collected)

    def read(self) -> Tensor:
        if self.blind and torch.is_grad_enabled():
            raise RuntimeError(
                f"{type(self.layer).__name__}: the labels of this shared_labels() block were "
                "encoded without gradients; enter it outside torch.no_grad() to train"
            )
        return self.leaf

    def backward(self) -> None:
        for name, parameter in self.layer.named_parameters():
            if parameter._version != self.versions.get(name):
                raise StaleLabels(
                    f"{type(self.layer).__name__}: {name} changed inside shared_labels(), before "
                    "the labels had their gradient; step the optimiser after the block"
                )
        total = self.collected.total
        if total is not None:
            self.graph.backward(total.to(self.graph.dtype))

    def close(self) -> None:
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


def _tensors(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return [*layer.named_parameters(), *layer.named_buffers()]


def _settings(layer: nn.Module) -> list[tuple[str, dict[str, object]]]:
    """The plain values every module of the layer holds: depth, activation, residual ..."""
    plain = (bool, int, float, str)
    return [
        (name, {key: x for key, x in vars(module).items() if isinstance(x, plain)})
        for name, module in layer.named_modules()
    ]


def _same_bits(a: Tensor, b: Tensor | None) -> bool:
    if b is None or a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    # As integers, so that NaN equals itself and -0.0 differs from 0.0.
    bits = _INTEGERS[a.element_size()]
    return torch.equal(a.contiguous().view(-1).view(bits), b.contiguous().view(-1).view(bits))
