"""What of an output layer becomes one ``nn.Linear``."""

from drill.layers.base import MatrixLayer, OutputLayer
from drill.layers.sampled import SampledSoftmax


def foldable(layer: OutputLayer) -> MatrixLayer | None:
    """The layer of one matrix that ``layer`` is once it is trained; None where it is none.

    A sampled layer samples in training alone, so it is the layer it wraps.
    """
    matrix = layer.layer if isinstance(layer, SampledSoftmax) else layer
    return matrix if isinstance(matrix, MatrixLayer) else None
