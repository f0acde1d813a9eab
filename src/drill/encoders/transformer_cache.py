"""What a Transformer keeps while it decodes step by step."""

import torch
from torch import Tensor

from drill.encoders.transformer_blocks import KeysValues

STEPS_AT_ONCE = 32
"""Room is made for so many steps at a time; a copy at every step would cost more."""


class Cache:
    """Keys and values of K hypotheses for each of B sentences, after ``length`` steps.

    Those of the source exist once a sentence, whatever K is. Those of the hypotheses lie in one
    tensor for all layers, the steps outermost: to reorder them is one copy of the steps so far.
    Row b*K + k is hypothesis k of sentence b.
    """

    def __init__(self, source: list[KeysValues], mask: Tensor, hypotheses: int) -> None:
        self.source = source  # of each layer, (B, H, S, d/H)
        self.mask = mask  # (B, 1, 1, S)
        self.hypotheses = hypotheses
        self.length = 0
        self._held: Tensor | None = None  # (room, layers, 2, B*K, H, d/H)
        self._spare: Tensor | None = None  # as large; fresh memory would cost more than the copy

    @property
    def sentences(self) -> int:
        return self.mask.shape[0]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> KeysValues:
        """Adds this step's (B*K, H, 1, d/H); gives all of the layer, (B*K, H, length + 1, d/H)."""
        if keys.requires_grad:
            raise RuntimeError(
                "Cache: steps are written in place and have no gradient; decode step by step under "
                "torch.no_grad(), or all at once to train"
            )
        if self._held is None or self.length == self._held.shape[0]:
            rows, heads, _, width = keys.shape
            shape = (STEPS_AT_ONCE, len(self.source), 2, rows, heads, width)
            room = keys.new_empty(shape)
            self._held = room if self._held is None else torch.cat([self._held, room])
            self._spare = None
        held = self._held[: self.length + 1, layer]  # (length + 1, 2, B*K, H, d/H)
        held[-1, 0] = keys[:, :, 0]
        held[-1, 1] = values[:, :, 0]
        all_keys, all_values = held.permute(1, 2, 3, 0, 4).unbind(0)
        return all_keys, all_values

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row ``rows[i]`` was, (B*K,); a row stays in its sentence."""
        if self._held is None:
            return
        if len(rows) != self._held.shape[3]:
            self._held, self._spare = self._held.index_select(3, rows), None
            return
        spare = torch.empty_like(self._held) if self._spare is None else self._spare
        torch.index_select(self._held[: self.length], 3, rows, out=spare[: self.length])
        self._held, self._spare = spare, self._held

    def select(self, sentences: Tensor) -> None:
        """Only these sentences go on, (b,), in this order."""
        self.source = [
            (keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.source
        ]
        self.mask = self.mask.index_select(0, sentences)
        k = torch.arange(self.hypotheses, device=sentences.device)
        self.reorder((sentences[:, None] * self.hypotheses + k).flatten())
