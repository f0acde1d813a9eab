"""Maps and norms of a Transformer: by kernels in training, where these do all that is asked.

Kernels read the weights of a map or a norm and do not call it, so what is more than ``nn.Linear``
or ``nn.LayerNorm``, an adapter or a module with hooks, is called and its neighbours keep theirs.
"""

from torch import Tensor, nn

from drill.kernels.product import product
from drill.kernels.residual_norm import SublayerImplementation, choose_sublayer
from drill.layers.hooks import only_weights_count


def mapped(linear: nn.Linear, x: Tensor, impl: SublayerImplementation) -> Tensor:
    """linear(x), with the gradients of its weights in their own dtype where kernels are ours."""
    if not by_kernels(impl, x, linear, nn.Linear):
        return linear(x)
    return product(x, linear.weight, linear.bias)


def by_kernels(
    impl: SublayerImplementation, x: Tensor, module: nn.Module, kind: type[nn.Module]
) -> bool:
    """Whether kernels read the weights of ``module``; else it is called."""
    return choose_sublayer(impl, x)[0] == "triton" and only_weights_count(module, kind)
