"""Labels encoded before there are hidden states, on a GPU beside the encoder that makes those."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from drill.kernels.beside import stream_beside
from drill.layers.held import HeldLabels, Unchanged


class AheadLabels(HeldLabels[Tensor]):
    """Encoded labels that have their gradient as usual, and were only made earlier."""

    def __init__(self, layer: nn.Module, device: torch.device) -> None:
        self.unchanged = Unchanged(layer, "labels_ahead()")
        beside = stream_beside(device)
        self.streams = None if beside is None else (torch.cuda.current_stream(device), beside)
        self.vectors: tuple[Tensor, Tensor] | None = None  # E, and what stood for it
        self.labels: Tensor | None = None

    def encode(self, labels: Callable[[], Tensor]) -> None:
        """Hold ``labels()``, which reads E through ``from_outside``."""
        if self.streams is None:
            self.labels = labels()
            return
        current, beside = self.streams
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            self.labels = labels()
        if self.vectors is not None and self.labels is self.vectors[1]:  # nothing was encoded
            self.labels, self.streams = self.vectors[0], None
        self.vectors = None

    def from_outside(self, vectors: Callable[[], Tensor]) -> Tensor:
        """E as the encoder's stream has it, so that this one sums the gradients of both."""
        if self.streams is None:
            return vectors()
        with torch.cuda.stream(self.streams[0]):
            E = vectors()
            self.vectors = E, E.view_as(E)
        return self.vectors[1]

    def read(self) -> Tensor:
        self.unchanged.check()
        assert self.labels is not None
        if self.streams is not None:
            current, beside = self.streams
            current.wait_stream(beside)
            self.labels.record_stream(current)  # its memory belongs to the other stream
        return self.labels
