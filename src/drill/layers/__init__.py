"""Output layers: one file each, one contract (``base.py``), one table (``LAYERS``)."""

from drill.layers.adaptive import AdaptiveSoftmax
from drill.layers.base import MatrixLayer, NotFoldable, OutputLayer
from drill.layers.bilinear import Bilinear
from drill.layers.deep_residual import DeepResidual
from drill.layers.direct_output import DirectOutputConnection
from drill.layers.dual import DualNonlinear
from drill.layers.label_cache import StaleLabels
from drill.layers.label_source import Descriptions, LabelSource, placement
from drill.layers.mixtape import Mixtape
from drill.layers.mixture import MixtureOfSoftmaxes
from drill.layers.pointwise import PiecewiseLinearSoftmax, SigSoftmax, SoftcappedSoftmax
from drill.layers.sampled import SampledSoftmax
from drill.layers.softmax import FullSoftmax, TiedSoftmax
from drill.layers.wrapper import WrappingLayer

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
    "placement",
]
