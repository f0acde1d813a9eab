"""Whether a module has to be called, or its weights may be used without it."""

from torch import nn


def hooked(module: nn.Module) -> bool:
    """Whether calling a module may do more than its own ``forward``."""
    # Pruning and weight_norm are hooks too: they make the weight before each call.
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


def only_weights_count(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it is a ``kind`` and nothing more: no subclass, such as an adapter, and no hooks."""
    return type(module) is kind and not hooked(module)
