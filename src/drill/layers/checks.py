"""What layers and models share: checks of arguments, modes and hooks, the initial embedding."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from drill.errors import invalid, require
from drill.kernels.runtime.checks import is_integer, is_number
from drill.kernels.runtime.checks import one_of as one_of

# -- constructor arguments ----------------------------------------------------------------
# Each function returns a plain Python value, also for NumPy's numbers, or raises ValueError.


def check_integer(layer: str, name: str, value: int, minimum: int = 1) -> int:
    expected = f"a whole number of at least {minimum}"
    require(is_integer(value) and value >= minimum, layer, name, expected, value)
    return int(value)


def check_fraction(layer: str, name: str, value: float) -> float:
    valid = is_number(value) and 0.0 <= float(value) < 1.0
    require(valid, layer, name, "a number in [0, 1)", value)
    return float(value)


def check_positive(layer: str, name: str, value: float) -> float:
    valid = is_number(value) and 0.0 < float(value) < math.inf
    require(valid, layer, name, "a positive finite number", value)
    return float(value)


def init_uniform(layer: str, name: str, bound: float, tensors: Iterable[Tensor]) -> None:
    """Initialise tensors uniformly in +-bound, which is the argument ``name``."""
    bound = check_positive(layer, name, bound)
    for tensor in tensors:
        nn.init.uniform_(tensor, -bound, bound)


def check_counts(layer: str, counts: Tensor | Sequence[float] | None, labels: int) -> Tensor:
    """Training counts as a tensor (V,)."""
    if not isinstance(counts, Tensor):  # on the CPU, also while a layer is built on meta
        counts = torch.as_tensor(counts, device="cpu", dtype=torch.float64)
    shape = tuple(counts.shape)
    require(shape == (labels,), layer, "counts", f"one per label, ({labels},)", shape)
    if not counts.is_meta and not (counts >= 0).all():
        raise invalid(layer, "counts", "at least 0", counts.min().item())
    return counts


# -- modes and hooks --------------------------------------------------------------------------


@contextmanager
def restored_modes(module: nn.Module) -> Iterator[None]:
    """A block after which every submodule is in train or eval mode as before."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def hook_dicts(module: nn.Module) -> list[dict[int, Any]]:
    """The hooks of a module; those of pruning and weight_norm compute the weight at each call."""
    return [
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    ]


def hooked(module: nn.Module) -> bool:
    """Whether a call of the module may do more than the ``forward`` of its class."""
    return any(hook_dicts(module)) or "forward" in vars(module)


# -- the initial embedding ----------------------------------------------------------------------

SMALLEST_WIDTH = 8
"""Below this width N(0, 1) does little harm: the first loss is about d E[h^2] / 2 above ln V."""

_ROWS = 256
_SMALLEST_SAMPLE = 1_000  # fewer numbers do not show their distribution

_checked: WeakSet[nn.Embedding] = WeakSet()  # not in the layers, which a loss must not change


def warn_if_default_init(name: str, source: object) -> None:
    """Warn, once for each embedding, if it looks like N(0, 1): too large for labels.

    That is: mean 0, standard deviation 1 and the kurtosis 3 of a normal distribution. Trained
    vectors and uniform ones (kurtosis 1.8) look different. A small GRU language model with
    DeepResidual ended at perplexity 140 from N(0, 1), and at 96 from uniform in +-0.1. If E is on
    a GPU, the check waits for it.
    """
    if not isinstance(source, nn.Embedding) or source in _checked:
        return
    _checked.add(source)
    E = source.weight
    if type(E) is not nn.Parameter or not E.requires_grad:  # swapped in, sharded or frozen
        return
    if E.shape[1] < SMALLEST_WIDTH or E.numel() < _SMALLEST_SAMPLE:
        return
    with torch.no_grad():
        rows = E[:: max(1, len(E) // _ROWS)].float()
        fourth = (rows - rows.mean()).pow(4).mean()
        std, mean, fourth = torch.stack([*torch.std_mean(rows), fourth]).tolist()
    if abs(mean) < 0.1 and 0.9 < std < 1.1 and abs(fourth / std**4 - 3.0) < 0.6:
        warnings.warn(
            f"{name}: the embedding has standard deviation {std:.2f} in {E.shape[1]} dimensions, "
            "the default of nn.Embedding, so logits start far from uniform and training ends "
            "worse; start with nn.init.uniform_(embedding.weight, -0.1, 0.1)",
            stacklevel=4,  # the caller of nll
        )
