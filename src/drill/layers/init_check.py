"""A word to whoever trains tied labels from the numbers that ``nn.Embedding`` starts with."""

import warnings
from weakref import WeakSet

import torch
from torch import nn

NARROWEST = 8
"""Below this width N(0, 1) does little harm: the first loss is about d E[h^2] / 2 above ln V, which
hidden states of a normalisation, E[h^2] = 1, make 4 nats at 8 and 16 at 32."""

_ROWS = 256
_NUMBERS = 1_000  # fewer tell too little of how they were drawn

_looked_at: WeakSet[nn.Embedding] = WeakSet()  # outside the layers: they must not change in a loss


def warn_of_default_start(name: str, source: object) -> None:
    """Warn, once an embedding, where E (V, d) looks like N(0, 1): too large to be labels.

    It does where the numbers of some rows have mean 0, standard deviation 1 and the kurtosis 3 of
    a normal distribution: anything else is somebody's choice, as a uniform start (1.8), or trained,
    as vectors whose norms have drifted apart. A small GRU language model with DeepResidual ended at
    perplexity 140, and from uniform in +-0.1 at 96. Where E is on a
    GPU, the first look waits for it.
    """
    if not isinstance(source, nn.Embedding) or source in _looked_at:
        return
    _looked_at.add(source)
    E = source.weight
    if type(E) is not nn.Parameter or not E.requires_grad:  # swapped in, sharded or frozen
        return
    if E.dim() != 2 or E.shape[1] < NARROWEST or E.numel() < _NUMBERS:
        return
    with torch.no_grad():
        rows = E[:: max(1, len(E) // _ROWS)].float()
        fourth = (rows - rows.mean()).pow(4).mean()
        std, mean, fourth = torch.stack([*torch.std_mean(rows), fourth]).tolist()
    if abs(mean) < 0.1 and 0.9 < std < 1.1 and abs(fourth / std**4 - 3.0) < 0.6:
        warnings.warn(
            f"{name}: the embedding has standard deviation {std:.2f} in {E.shape[1]} dimensions, "
            "as nn.Embedding starts it, so logits start far from uniform and training ends worse; "
            "begin with nn.init.uniform_(embedding.weight, -0.1, 0.1)",
            stacklevel=4,  # whoever calls nll
        )
