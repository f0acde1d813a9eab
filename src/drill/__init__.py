"""Output layers for neural language generation, behind one contract.

layer = drill.DeepResidual(embedding, depth=4)   # shares the model's embedding
loss = layer.nll(hidden, targets)                # never holds the N x V logits
head = layer.fold()                              # a plain nn.Linear for inference
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drill.layers import (
        LAYERS,
        AdaptiveSoftmax,
        Bilinear,
        DeepResidual,
        Descriptions,
        DualNonlinear,
        FullSoftmax,
        LabelSource,
        MatrixLayer,
        MixtureOfSoftmaxes,
        NotFoldable,
        OutputLayer,
        SampledSoftmax,
        StaleLabels,
        TiedSoftmax,
    )

__version__ = "0.1.0"

__all__ = [
    "LAYERS",
    "AdaptiveSoftmax",
    "Bilinear",
    "DeepResidual",
    "Descriptions",
    "DualNonlinear",
    "FullSoftmax",
    "LabelSource",
    "MatrixLayer",
    "MixtureOfSoftmaxes",
    "NotFoldable",
    "OutputLayer",
    "SampledSoftmax",
    "StaleLabels",
    "TiedSoftmax",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The layers, and torch with them, when one is asked for: that takes seconds, and the command
    has to be in charge of Ctrl-C before."""
    if not name.startswith("__"):
        layers = importlib.import_module("drill.layers")
        if name in __all__:
            return getattr(layers, name)
        if name in globals():  # a room that came with the layers
            return globals()[name]
    raise AttributeError(f"module 'drill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
