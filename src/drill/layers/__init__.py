"""Output layers: one file each, one contract (``base.py``), one table (``LAYERS``).

A label is an output class, one entry of the vocabulary; its vector is a row of the output matrix.

full tied bilinear dual deep_residual  matrix layers: softmax(g_out(E) g_in(h) + b)
wrappers/      layers over one of these: mixture, sampled, adaptive, sigsoftmax, plif, softcap,
               mixtape, doc
losses         the loss of one matrix, plain and adversarial
label_map      the map of a label encoder: drop, linear, activation
label_source   label vectors that are not an embedding; feature_bags those of characters and glosses
label_cache    encoded labels, reused in eval mode until a parameter changes
cost           parameters and FLOPs of a layer
"""

from drill.layers.base import MatrixLayer, NotFoldable, OutputLayer
from drill.layers.bilinear import Bilinear
from drill.layers.deep_residual import DeepResidual
from drill.layers.dual import DualNonlinear
from drill.layers.feature_bags import FeatureBags
from drill.layers.full import FullSoftmax
from drill.layers.label_cache import StaleLabels
from drill.layers.label_source import Descriptions, LabelSource, factory_kwargs
from drill.layers.tied import TiedSoftmax
from drill.layers.wrappers.adaptive import AdaptiveSoftmax
from drill.layers.wrappers.base import WrappingLayer
from drill.layers.wrappers.direct_output import DirectOutputConnection
from drill.layers.wrappers.mixtape import Mixtape
from drill.layers.wrappers.mixture import MixtureOfSoftmaxes
from drill.layers.wrappers.pointwise import PiecewiseLinearSoftmax, SigSoftmax, SoftcappedSoftmax
from drill.layers.wrappers.sampled import SampledSoftmax

LAYERS: dict[str, type[OutputLayer]] = {
    "full": FullSoftmax,
    "tied": TiedSoftmax,
    "bilinear": Bilinear,
    "dual": DualNonlinear,
    "deep-residual": DeepResidual,
    "mixture": MixtureOfSoftmaxes,
    "sampled": SampledSoftmax,
    "adaptive": AdaptiveSoftmax,
    "sigsoftmax": SigSoftmax,
    "plif": PiecewiseLinearSoftmax,
    "softcap": SoftcappedSoftmax,
    "mixtape": Mixtape,
    "doc": DirectOutputConnection,
}
"""Every layer by name: the first five are matrix layers, the others wrap one."""

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
    "SampledSoftmax",
    "SigSoftmax",
    "SoftcappedSoftmax",
    "StaleLabels",
    "TiedSoftmax",
    "WrappingLayer",
    "factory_kwargs",
]
