"""Costs at any size: what is only counted takes no memory and is no other layer."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from drill import LAYERS, AdaptiveSoftmax, TiedSoftmax
from drill.layers.cost import cost, example_layers

SMALL = 10**5  # numbers that anybody has memory for
SIZES = {"depth": 4, "experts": 15, "joint": 10**5}


class Frugal(TorchDispatchMode):
    """Inside, no operation may make a large tensor that is not on the meta device."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor) and not each.is_meta:
                assert each.numel() <= SMALL, f"{operation} makes {tuple(each.shape)}"
        return result


def test_the_watch_sees_what_is_made():
    with Frugal():
        torch.empty(10**9, device="meta")
        torch.empty(SMALL)
        with pytest.raises(AssertionError, match="makes"):
            torch.empty(SMALL + 1)


@pytest.mark.parametrize("name", LAYERS)
def test_absurd_sizes_are_counted_without_memory(name):
    with Frugal():
        layer = example_layers(10**7, 10**5, 10**5, **SIZES)[name]
        counted = cost(layer, 1400)
    assert counted.train_flops > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_clusters_on_meta_are_those_of_a_built_layer(dtype):
    """The one layer whose start is not made where it has no memory."""

    def adaptive(device: str) -> AdaptiveSoftmax:
        embedding = nn.Embedding(507, 24, device=device, dtype=dtype)
        return AdaptiveSoftmax(TiedSoftmax(embedding), [30, 200])

    built, counted = adaptive("cpu"), adaptive("meta")
    of_built, of_counted = (dict(each.named_parameters()) for each in (built, counted))
    assert list(of_built) == list(of_counted)
    for name, parameter in of_counted.items():
        assert parameter.is_meta
        assert (parameter.shape, parameter.dtype) == (of_built[name].shape, dtype)
    assert cost(built, 33) == cost(counted, 33)
