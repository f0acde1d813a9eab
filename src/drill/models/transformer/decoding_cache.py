"""The keys and values that a Transformer caches while it decodes step by step."""

import torch
from torch import Tensor

from drill.models.transformer.attention import KeysValues

STEPS_AT_ONCE = 32
"""Memory is allocated for this many steps at a time; a copy at every step would cost more."""


class KeyValueCache:
    """Keys and values of K hypotheses for each of B sentences, after ``length`` steps.

    Those of the source exist once per sentence, whatever K is.

    Those of the hypotheses are in one tensor for all layers, steps first: reordering is one copy of
    the steps so far. Row b*K + k is hypothesis k of sentence b.

    With ``room`` there is memory for this many steps from the start. ``length`` is then a tensor
    (1,), every step reads all of it with a mask, and no shape or address depends on the step: a
    CUDA graph of two steps can be replayed, two because a reordering swaps two buffers.
    """

    def __init__(
        self,
        source: list[KeysValues],
        mask: Tensor,
        hypotheses: int,
        like: Tensor,
        room: int | None = None,
    ) -> None:
        self.source = source  # of each layer, (B, H, S, d/H) twice
        self.mask = mask  # (B, 1, 1, S)
        self.hypotheses = hypotheses
        self.like = like  # (H, d/H), in the dtype of keys and values
        self.fixed = room is not None
        self.length: int | Tensor = 0
        self._cached: Tensor | None = None  # (room, layers, 2, B*K, H, d/H)
        self._spare: Tensor | None = None  # as large; allocation would cost more than the copy
        self._to_come: Tensor | None = None  # (1, 1, 1, room), -inf at steps after this one
        if room is not None:
            self.length = torch.zeros(1, dtype=torch.int64, device=mask.device)
            self.reserve(room)

    @property
    def sentences(self) -> int:
        return self.mask.shape[0]

    @property
    def room(self) -> int:
        return 0 if self._cached is None else self._cached.shape[0]

    def reserve(self, steps: int) -> None:
        """Allocate memory for this many steps in all and copy the cached ones."""
        rows = self.sentences * self.hypotheses
        shape = (steps - self.room, len(self.source), 2, rows, *self.like.shape)
        # Masked entries are multiplied by 0, so they must be finite.
        more = self.like.new_zeros(shape) if self.fixed else self.like.new_empty(shape)
        self._cached = more if self._cached is None else torch.cat([self._cached, more])
        self._spare = torch.empty_like(self._cached) if self.fixed else None

    def append(self, layer: int, step: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add this step's keys and values (2, B*K, H, d/H) of a layer.

        Returns:
            Keys and values of the layer so far, each (B*K, H, length + 1, d/H), and None; with a
            fixed room each (B*K, H, room, d/H), and the mask over it.
        """
        if isinstance(self.length, Tensor):
            assert self._cached is not None
            cached = self._cached[:, layer]  # (room, 2, B*K, H, d/H)
            cached.index_copy_(0, self.length, step[None])
            if layer == 0:
                later = torch.arange(self.room, device=step.device) > self.length
                zeros = step.new_zeros((1, 1, 1, self.room))
                self._to_come = zeros.masked_fill_(later, -torch.inf)
        else:
            if self.length == self.room:
                self.reserve(self.room + STEPS_AT_ONCE)
            assert self._cached is not None
            cached = self._cached[: self.length + 1, layer]  # (length + 1, 2, B*K, H, d/H)
            cached[-1] = step
        keys, values = cached.permute(1, 2, 3, 0, 4).unbind(0)
        return keys, values, self._to_come

    def reorder(self, rows: Tensor) -> None:
        """Row i continues row ``rows[i]``, (B*K,); a row stays in its sentence."""
        if self._cached is None:
            return
        if len(rows) != self._cached.shape[3]:
            self._cached = self._cached.index_select(3, rows)
            self._spare = torch.empty_like(self._cached) if self.fixed else None
            return
        spare = torch.empty_like(self._cached) if self._spare is None else self._spare
        used = self.room if isinstance(self.length, Tensor) else self.length
        torch.index_select(self._cached[:used], 3, rows, out=spare[:used])
        self._cached, self._spare = spare, self._cached

    def select(self, sentences: Tensor) -> None:
        """Continue with these sentences only, (b,), in this order."""
        self.source = [
            (keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.source
        ]
        self.mask = self.mask.index_select(0, sentences)
        k = torch.arange(self.hypotheses, device=sentences.device)
        self.reorder((sentences[:, None] * self.hypotheses + k).flatten())
