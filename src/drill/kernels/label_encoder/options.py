"""How the maps of the label encoder are put together, as its kernels are told."""

from typing import NamedTuple

ACTIVATION_CODES = {"none": 0, "sigmoid": 1, "relu": 2, "tanh": 3, "gelu": 4}


class Options(NamedTuple):
    """How the maps are put together; see ``layers.deep_residual``."""

    activation: int
    mask_in: bool
    mask_out: bool
    locked: bool  # masks (L, 1, d); otherwise ``KeptBits``
    scale: float  # of what bits keep; locked masks are scaled themselves
    residual: bool
    between: bool


def drops_columns(options: Options) -> bool:
    """Whether the masks drop whole columns of the labels, so that none of them need be computed.

    Not with residuals between maps: what one map does not read is still part of the result.
    """
    return options.mask_in and options.locked and not options.between
