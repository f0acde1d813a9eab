"""The contract of every encoder.

    ids (T, B) -> hidden states (T, B, d_h)

T is the time steps of a batch, B its sequences and h the width that an output layer reads.
"""

import abc
from contextlib import AbstractContextManager
from typing import NamedTuple

from torch import Tensor, nn

State = tuple[tuple[Tensor, ...], ...]
"""What one batch hands to the next: the tensors of each layer."""


class Encoded(NamedTuple):
    """What an encoder makes of a batch.

    output  (T, B, d_h) with the last dropout: what an output layer reads
    raw     (T, B, d_h) the same before that dropout
    state   where the next batch goes on, still attached to this batch's graph
    """

    output: Tensor
    raw: Tensor
    state: State


class Encoder(nn.Module, abc.ABC):
    """What a model may ask of any encoder."""

    output_size: int
    carries_state: bool = True
    """False where every batch is read on its own: segments of text then have a fixed length."""

    @abc.abstractmethod
    def forward(self, ids: Tensor, state: State | None = None) -> Encoded:
        """ids (T, B) -> Encoded, going on from ``state`` or from the initial one."""

    @abc.abstractmethod
    def initial_state(self, batch: int) -> State:
        """Where a text begins, for ``batch`` sequences."""

    def reading_state(self, batch: int) -> State:
        """The same for a text that is read part by part, each part after those before it."""
        return self.initial_state(batch)

    @abc.abstractmethod
    def without_dropout(self) -> AbstractContextManager[None]:
        """Inside, the encoder is in train mode and drops nothing."""

    def kernel_summary(self, batch: int) -> list[str]:
        """How it computes so many sequences where it is, for each part that has a choice."""
        return []

    @staticmethod
    def detach(state: State) -> State:
        """The same values with no graph behind them: backward stops at the batch's first step."""
        return tuple(tuple(tensor.detach() for tensor in layer) for layer in state)
