"""Checks of constructor arguments: one sentence with the value and the mend.

NumPy's numbers are numbers too. What is given back is a plain one of Python's, for a layer to keep.
"""

import math
from collections.abc import Callable
from numbers import Integral, Real

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "none": lambda x: x,
}


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def positive(layer: str, name: str, value: int) -> int:
    if not is_whole(value) or value < 1:
        raise ValueError(f"{layer}: {name} is a whole number of at least 1, not {value!r}")
    return int(value)


def at_least_zero(layer: str, name: str, value: int) -> int:
    if not is_whole(value) or value < 0:
        raise ValueError(f"{layer}: {name} is a whole number of at least 0, not {value!r}")
    return int(value)


def fraction(layer: str, name: str, value: float) -> float:
    if not is_number(value) or not 0.0 <= float(value) < 1.0:
        raise ValueError(f"{layer}: {name} is a number in [0, 1), not {value!r}")
    return float(value)


def span(layer: str, value: float) -> float:
    if not is_number(value) or not 0.0 < float(value) < math.inf:
        raise ValueError(f"{layer}: init_range is a positive finite number, not {value!r}")
    return float(value)


def switch(layer: str, name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{layer}: {name} is True or False, not {value!r}")
    return value


def one_of(layer: str, name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{layer}: {name} is one of {', '.join(known)}, not {value!r}")
    return value


def same_width(layer: str, first: str, a: int, second: str, b: int) -> None:
    if a != b:
        raise ValueError(
            f"{layer}: a residual adds vectors of one width, but {first} is {a} and {second} {b}; "
            "make them equal, or pass residual=False"
        )
