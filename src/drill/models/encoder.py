"""The contract of every encoder.

    ids (T, B) -> hidden states (T, B, d_h)

T time steps, B sequences, d_h the width that the output layer reads.
"""

import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from drill.layers.base import OutputLayer
from drill.layers.checks import restored_modes
from drill.layers.label_source import LabelSource

State = tuple[tuple[Tensor, ...], ...]
"""The recurrent state that one batch passes to the next: the tensors of each layer."""


def map_state(function: Callable[..., Tensor], *states: State) -> State:
    """``function`` of every tensor of a state, or of those in the same place of several."""
    return tuple(
        tuple(function(*each) for each in zip(*layers, strict=True))
        for layers in zip(*states, strict=True)
    )


class Encoded(NamedTuple):
    """The output of an encoder for one batch."""

    output: Tensor  # (T, B, d_h), after the last dropout: the input of the output layer
    raw: Tensor  # (T, B, d_h), before that dropout
    state: State  # for the next batch, still attached to the graph of this one


class Encoder(nn.Module, abc.ABC):
    """The interface of all encoders."""

    embedding: nn.Embedding | LabelSource
    output_size: int
    carries_state: bool = True
    """False where every batch is read on its own: segments of text then have a fixed length."""
    can_compile: bool = False
    """Whether ``compile`` makes it faster; False where kernels of drill compute it."""

    @property
    def output_widths(self) -> tuple[int, ...]:
        """The widths of the states that are concatenated in the output, the lowest layer first."""
        return (self.output_size,)

    def embed(self, ids: Tensor) -> Tensor:
        """ids (...) -> embedded words (..., d)."""
        if isinstance(self.embedding, nn.Embedding):
            return self.embedding(ids)
        return self.embedding(ids.flatten()).view(*ids.shape, -1)

    @abc.abstractmethod
    def forward(self, ids: Tensor, state: State | None = None) -> Encoded:
        """ids (T, B) -> Encoded, continuing from ``state`` or from the initial one."""

    @abc.abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state at the start of a text, for ``batch`` sequences."""

    def reading_state(self, batch: int) -> State:
        """The same for a text that is read part by part, each part after those before it."""
        return self.initial_state(batch)

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """A block with gradients and without dropout."""
        with restored_modes(self):
            self.eval()
            yield

    def kernel_summary(self, batch: int) -> list[str]:
        """Which kernels compute this many sequences, and why; one line per part with a choice."""
        return []

    @staticmethod
    def detach(state: State) -> State:
        """``state`` without its graph: backward stops at the first step of a batch."""
        return map_state(Tensor.detach, state)


def check_widths(model: str, encoder: Any, layer: OutputLayer) -> None:
    """Raise ValueError unless the layer reads hidden states as wide as the encoder's."""
    if encoder.output_size != layer.hidden_size:
        raise ValueError(
            f"{model}: the encoder's output_size is {encoder.output_size}, but the layer reads "
            f"hidden_size {layer.hidden_size}; set both to the same width; tied layers need that "
            "of the embedding"
        )
