"""Sampling of labels, with temperature, top-k and top-p."""

import math
from numbers import Integral

import torch
from torch import Tensor

from drill.errors import require


def check_sampling(
    name: str, temperature: float, top_k: int | None, top_p: float | None, seed: int | None
) -> None:
    """Raise ValueError for invalid options of the function ``name``."""
    finite = 0.0 <= temperature < math.inf
    require(finite, name, "temperature", "a finite number of at least 0", temperature)
    for option, value, least in (("top_k", top_k, 1), ("seed", seed, 0)):
        fits = value is None or (isinstance(value, Integral) and value >= least)
        require(fits, name, option, f"an integer of at least {least}", value)
    require(top_p is None or 0.0 < top_p <= 1.0, name, "top_p", "in (0, 1]", top_p)


def draw(
    log_p: Tensor,  # (..., V), need not be normalised
    u: Tensor,  # (...) in [0, 1)
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Inverse transform sampling of labels, (...); never one of probability 0.

    From p^(1/temperature) over the ``top_k`` likeliest labels, and of these over the fewest that
    make up ``top_p``. Ties go to the lower label. A temperature of 0 is greedy.
    """
    if temperature == 0.0:
        return log_p.argmax(-1)
    p = torch.softmax((log_p - log_p.amax(-1, keepdim=True)).double() / temperature, dim=-1)
    if top_k is not None or top_p is not None:
        sorted_p, order = p.sort(dim=-1, descending=True, stable=True)
        if top_k is not None:
            sorted_p[..., top_k:] = 0.0
        if top_p is not None:
            before = sorted_p.cumsum(-1) - sorted_p  # 0 at the likeliest, which always stays
            enough = before >= top_p * sorted_p.sum(-1, keepdim=True)
            sorted_p = sorted_p.masked_fill(enough & (before > 0.0), 0.0)
        p = torch.empty_like(p).scatter_(-1, order, sorted_p)
    mass = p.cumsum(-1)
    whole = mass[..., -1:]
    # Rounded up to all of it, u would lie behind the last label.
    value = torch.minimum(u[..., None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(mass, value, right=True)[..., 0]
