"""Modules without memory: to see whether settings make a model, whatever its size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def weightless() -> Iterator[None]:
    """Parameters made within have a shape and a dtype and nothing else."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Leaves parameters as they were allocated; on ``meta`` there is nothing to fill.

    Torch would load its compiler to do so, which takes seconds.
    """

    FILLING = (Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_)

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function in self.FILLING:
            return arguments[0] if arguments else options["tensor"]
        return function(*arguments, **(options or {}))
