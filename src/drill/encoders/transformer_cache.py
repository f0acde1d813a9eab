"""What a Transformer keeps while it decodes step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.encoders.transformer_blocks import KeysValues

STEPS_AT_ONCE = 32
"""Room is made for so many steps at a time; a copy at every step would cost more."""


class Cache:
    """Keys and values of K hypotheses for each of B sentences, after ``length`` steps.

    Those of the source exist once a sentence, whatever K is. Those of the hypotheses lie in one
    tensor for all layers, so that to reorder them is one operation; row b*K + k is hypothesis k of
    sentence b.
    """

    def __init__(self, source: list[KeysValues], mask: Tensor, hypotheses: int) -> None:
        self.source = source  # of each layer, (B, H, S, d/H)
        self.mask = mask  # (B, 1, 1, S)
        self.hypotheses = hypotheses
        self.length = 0
        self._held: Tensor | None = None  # (layers, 2, B*K, H, room, d/H)

    @property
    def sentences(self) -> int:
        return self.mask.shape[0]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> KeysValues:
        """Adds this step's (B*K, H, 1, d/H); gives all of the layer, (B*K, H, length + 1, d/H)."""
        room = 0 if self._held is None else self._held.shape[4]
        if self.length == room:
            rows, heads, _, width = keys.shape
            if self._held is None:
                shape = (len(self.source), 2, rows, heads, STEPS_AT_ONCE, width)
                self._held = keys.new_zeros(shape)
            else:
                self._held = F.pad(self._held, (0, 0, 0, STEPS_AT_ONCE))
        assert self._held is not None
        held = self._held[layer]
        held[0, :, :, self.length] = keys[:, :, 0]
        held[1, :, :, self.length] = values[:, :, 0]
        end = self.length + 1
        return held[0, :, :, :end], held[1, :, :, :end]

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row ``rows[i]`` was, (B*K,); a row stays in its sentence."""
        if self._held is not None:
            self._held = self._held.index_select(2, rows)

    def select(self, sentences: Tensor) -> None:
        """Only these sentences go on, (b,), in this order."""
        self.source = [
            (keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.source
        ]
        self.mask = self.mask.index_select(0, sentences)
        k = torch.arange(self.hypotheses, device=sentences.device)
        self.reorder((sentences[:, None] * self.hypotheses + k).flatten())
