"""Output layers for neural language generation, behind one contract.

layer = drill.DeepResidual(embedding, depth=4)   # shares the model's embedding
loss = layer.nll(hidden, targets)                # never holds the N x V logits
head = layer.fold()                              # a plain nn.Linear for inference
"""

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
