"""A word to whoever trains tied labels from the numbers that ``nn.Embedding`` starts with."""

import warnings
from weakref import WeakSet

import torch
from torch import nn

NARROWEST = 64
"""Below this width N(0, 1) does little harm: the variance of logits is the width times E[h^2]."""

_ROWS = 256

_looked_at: WeakSet[nn.Embedding] = WeakSet()  # outside the layers: they must not change in a loss


def warn_of_default_start(name: str, source: object) -> None:
    """Warn, once an embedding, where E (V, d) looks like N(0, 1): too large to be labels.

    A small GRU language model with DeepResidual ended at perplexity 140, and from uniform in +-0.1
    at 96 (`bench/embedding_start.py`). Any other standard deviation is somebody's choice, or
    trained. Where E is on a GPU, the first look waits for it.
    """
    if not isinstance(source, nn.Embedding) or source in _looked_at:
        return
    _looked_at.add(source)
    E = source.weight
    if type(E) is not nn.Parameter or not E.requires_grad:  # swapped in, sharded or frozen
        return
    if E.dim() != 2 or E.shape[1] < NARROWEST:
        return
    with torch.no_grad():
        rows = E[:: max(1, len(E) // _ROWS)].float()
        std, mean = torch.stack(torch.std_mean(rows)).tolist()
    if abs(mean) < 0.1 and 0.9 < std < 1.1:
        warnings.warn(
            f"{name}: the embedding has standard deviation {std:.2f} in {E.shape[1]} dimensions, "
            "as nn.Embedding starts it, so logits start far from uniform and training ends worse; "
            "begin with nn.init.uniform_(embedding.weight, -0.1, 0.1)",
            stacklevel=4,  # whoever calls nll
        )
