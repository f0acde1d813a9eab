"""What the layers over a matrix layer have in common."""

from contextlib import AbstractContextManager

from torch import Tensor, nn

from drill.layers.base import MatrixLayer, OutputLayer


class WrappingLayer(OutputLayer):
    """An output layer over a :class:`MatrixLayer`: another loss, the same labels.

    It holds the layer, so whatever concerns the labels alone is asked of that layer.
    """

    def __init__(self, layer: MatrixLayer) -> None:
        super().__init__()
        if not isinstance(layer, MatrixLayer):
            raise TypeError(
                f"{type(self).__name__}: what it wraps is a layer of one matrix (full, tied, "
                f"bilinear, dual, deep residual), not {type(layer).__name__}"
            )
        self.layer = layer
        self.hidden_size = layer.hidden_size

    @property
    def vocabulary_size(self) -> int:
        return self.layer.vocabulary_size

    @property
    def label_weight(self) -> Tensor:
        """E, (V, d): the wrapped layer's."""
        return self.layer.label_weight

    @property
    def bias(self) -> nn.Parameter | None:
        """b, (V,): the wrapped layer's."""
        return self.layer.bias

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        """g_out: the wrapped layer's encoded labels, (V, k) or those of ``rows`` (R, k)."""
        return self.layer.labels(rows, check)

    def context(self, hidden: Tensor) -> Tensor:
        """g_in: the wrapped layer's contexts, (..., d_h) -> (..., k)."""
        return self.layer.context(hidden)

    def check_start(self) -> None:
        self.layer.check_start()

    def label_kernel_summary(self) -> list[str]:
        return self.layer.label_kernel_summary()

    def cached_labels(self) -> AbstractContextManager[None]:
        return self.layer.cached_labels()

    def shared_labels(self) -> AbstractContextManager[None]:
        """As the wrapped layer's: it encodes all V labels, for all micro-batches inside."""
        return self.layer.shared_labels()
