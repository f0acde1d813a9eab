"""Output layers for neural language generation, behind one contract.

layer = drill.DeepResidual(embedding, depth=4)   # shares the model's embedding
loss = layer.nll(hidden, targets)                # never holds the N x V logits
head = layer.fold()                              # a plain nn.Linear for inference

recipe = drill.Recipe("demo-drill", ["training.epochs=20"])
drill.train(recipe, "runs/my")                   # either task; the same call resumes
run = drill.load("runs/my")
run.perplexity("test"), run.generate("the boat", max_new_tokens=40)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drill.kernels.loss.nll import nll
    from drill.layers import (
        LAYERS,
        AdaptiveSoftmax,
        Bilinear,
        DeepResidual,
        Descriptions,
        DirectOutputConnection,
        DualNonlinear,
        FeatureBags,
        FullSoftmax,
        LabelSource,
        MatrixLayer,
        Mixtape,
        MixtureOfSoftmaxes,
        NotFoldable,
        OutputLayer,
        PiecewiseLinearSoftmax,
        SampledSoftmax,
        SigSoftmax,
        SoftcappedSoftmax,
        StaleLabels,
        TiedSoftmax,
    )
    from drill.tasks import load, train
    from drill.training.settings import recipe as Recipe

__version__ = "0.1.0"

__all__ = [
    "LAYERS",
    "AdaptiveSoftmax",
    "Bilinear",
    "DeepResidual",
    "Descriptions",
    "DirectOutputConnection",
    "DualNonlinear",
    "FeatureBags",
    "FullSoftmax",
    "LabelSource",
    "MatrixLayer",
    "Mixtape",
    "MixtureOfSoftmaxes",
    "NotFoldable",
    "OutputLayer",
    "PiecewiseLinearSoftmax",
    "Recipe",
    "SampledSoftmax",
    "SigSoftmax",
    "SoftcappedSoftmax",
    "StaleLabels",
    "TiedSoftmax",
    "__version__",
    "load",
    "nll",
    "train",
]

_NOT_LAYERS = {
    "Recipe": ("drill.training.settings", "recipe"),
    "load": ("drill.tasks", "load"),
    "nll": ("drill.kernels.loss.nll", "nll"),
    "train": ("drill.tasks", "train"),
}


def __getattr__(name: str) -> Any:
    """Imports the layers, and torch with them, when one is asked for: that takes seconds, and the
    command has to be in charge of Ctrl-C before."""
    if name in _NOT_LAYERS:
        module, attribute = _NOT_LAYERS[name]
        return getattr(importlib.import_module(module), attribute)
    if not name.startswith("__"):
        layers = importlib.import_module("drill.layers")
        if name in __all__:
            return getattr(layers, name)
        if name in globals():  # a submodule that importing drill.layers has loaded
            return globals()[name]
    raise AttributeError(f"module 'drill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
