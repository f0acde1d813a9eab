"""Linear maps and norms of a Transformer by fused kernels, in training.

Kernels read the weights of a module and do not call it. So a module that is more than ``nn.Linear``
or ``nn.LayerNorm``, such as an adapter, and every map inside a module with hooks, is called: hooks
may set weights before a call and take them back after it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drill.kernels.transformer.autocast_linear import LinearWeights, product, products


class Prepared(NamedTuple):
    """What the kernels of all blocks of a stack need, prepared by few launches."""

    dtype: torch.dtype  # of products
    maps: dict[nn.Module, LinearWeights]  # the weights of each map, cast
    seeds: dict[nn.Module, Tensor]  # of each module with dropout


def apply_linear(linear: nn.Linear, x: Tensor, ready: Prepared | None) -> Tensor:
    """linear(x); with ``ready`` the gradients of its weights are in their own dtype."""
    weights = None if ready is None else ready.maps.get(linear)
    return linear(x) if weights is None else product(x, weights)


def apply_linears(maps: Sequence[nn.Linear], x: Tensor, ready: Prepared | None) -> Sequence[Tensor]:
    """``apply_linear`` for several maps of one x, by one product if kernels read all of them."""
    weights = [] if ready is None else [ready.maps.get(each) for each in maps]
    read = [each for each in weights if each is not None and each.bias is not None]
    if not read or len(read) < len(maps):
        return [apply_linear(each, x, ready) for each in maps]
    return products(x, read)
