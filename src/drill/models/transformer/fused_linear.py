"""Linear maps and norms of a Transformer by fused kernels, in training.

Kernels read the weights of a module and do not call it. So a stack with a module that is more than
it was built as, such as an adapter or one with hooks, is plain PyTorch.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from drill.kernels.transformer.autocast_linear import LinearWeights, product


class Prepared(NamedTuple):
    """What the kernels of all blocks of a stack need, prepared by few launches."""

    dtype: torch.dtype  # of products
    maps: dict[nn.Module, LinearWeights]  # the weights of each map, cast
    seeds: dict[nn.Module, Tensor]  # of each module with dropout


def apply_linear(linear: nn.Linear, x: Tensor, ready: Prepared | None) -> Tensor:
    """linear(x); with ``ready`` the gradients of its weights are in their own dtype."""
    return linear(x) if ready is None else product(x, ready.maps[linear])
