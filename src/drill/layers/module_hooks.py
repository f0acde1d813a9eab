"""Whether a module has to be called, or its weights may be used without it."""

from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module


def hook_dicts(module: nn.Module) -> list[dict[int, Any]]:
    """The hooks of a module, and those that are registered for all modules.

    Pruning and weight_norm are hooks too: they compute the weight before each call.
    """
    return [
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_backward_hooks,
        torch_module._global_backward_pre_hooks,
    ]


def hooked(module: nn.Module) -> bool:
    """Whether calling a module may do more than the ``forward`` of its class."""
    return any(hook_dicts(module)) or "forward" in vars(module)


def only_weights_count(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is a ``kind``: no subclass, such as an adapter, and without hooks."""
    return type(module) is kind and not hooked(module)
