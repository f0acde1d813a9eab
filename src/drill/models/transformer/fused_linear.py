"""Maps and norms of a Transformer: by kernels in training, where these do all that is asked.

Kernels read the weights of a map or a norm and do not call it, so what is more than ``nn.Linear``
or ``nn.LayerNorm``, an adapter or a module with hooks, is called and its neighbours keep theirs. A
module with hooks has every map inside it called, for hooks may set weights, and within its own
call, for they may take them back.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.runtime.dropout_masks import drawn_seeds
from drill.kernels.transformer.autocast_linear import Weights, cast_together, product, products
from drill.kernels.transformer.residual_norm import SublayerImplementation, choose_sublayer
from drill.layers.checks import only_weights_count


class Prepared(NamedTuple):
    """What the kernels of all blocks of a stack need, made at once: a launch costs a slow host more
    than the device.

    dtype  of products
    maps   what kernels read of each map
    seeds  of each module that drops
    """

    dtype: torch.dtype
    maps: dict[nn.Module, Weights]
    seeds: dict[nn.Module, Tensor]


def prepared(
    maps: Iterable[nn.Linear],
    dropping: Iterable[nn.Module],
    x: Tensor,
    impl: SublayerImplementation,
) -> Prepared | None:
    """For one pass over tensors like ``x``; None where all modules are called, by plain PyTorch.

    dropping  modules that drop in this pass
    """
    if choose_sublayer(impl, x)[0] != "triton":
        return None
    dtype = compute_dtype(x)
    read = [each for each in maps if only_weights_count(each, nn.Linear)]
    weights = cast_together([(each.weight, each.bias) for each in read], dtype)
    modules = list(dropping)
    seeds = drawn_seeds(len(modules), x.device)
    return Prepared(
        dtype, dict(zip(read, weights, strict=True)), dict(zip(modules, seeds, strict=True))
    )


def mapped(linear: nn.Linear, x: Tensor, ready: Prepared | None) -> Tensor:
    """linear(x), with the gradients of its weights in their own dtype where kernels are ours."""
    weights = None if ready is None else ready.maps.get(linear)
    return linear(x) if weights is None else product(x, weights)


def mapped_together(
    maps: Sequence[nn.Linear], x: Tensor, ready: Prepared | None
) -> Sequence[Tensor]:
    """``mapped`` for several maps of one x: by one product where kernels read all of them."""
    weights = [] if ready is None else [ready.maps.get(each) for each in maps]
    read = [each for each in weights if each is not None and each.bias is not None]
    if not read or len(read) < len(maps):
        return [mapped(each, x, ready) for each in maps]
    return products(x, read)
