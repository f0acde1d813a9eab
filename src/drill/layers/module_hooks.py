"""Whether a module has to be called, or its weights may be used without it."""

from torch import nn
from torch.nn.modules import module as torch_module


def hooked(module: nn.Module) -> bool:
    """Whether calling a module may do more than its own ``forward``.

    Hooks of all modules (``register_module_forward_hook`` and its kin) count for each.
    """
    # Pruning and weight_norm are hooks too: they make the weight before each call.
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
        or "forward" in vars(module)
    )


def only_weights_count(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it is a ``kind`` and nothing more: no subclass, such as an adapter, and no hooks."""
    return type(module) is kind and not hooked(module)
