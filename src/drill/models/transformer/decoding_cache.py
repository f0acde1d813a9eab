"""What a Transformer keeps while it decodes step by step."""

import torch
from torch import Tensor

from drill.models.transformer.attention import KeysValues

STEPS_AT_ONCE = 32
"""Room is made for so many steps at a time; a copy at every step would cost more."""


class Cache:
    """Keys and values of K hypotheses for each of B sentences, after ``length`` steps.

    Those of the source exist once a sentence, whatever K is. Where hooks may set the weights that
    make them, the states of the encoder are held instead and mapped in the block, at every step.

    Those of the hypotheses lie in one tensor for all layers, the steps outermost: to reorder them
    is one copy of the steps so far. Row b*K + k is hypothesis k of sentence b.

    With ``room`` there is memory for so many steps from the beginning. ``length`` is then a tensor
    (1,), every step reads all of the room behind a mask, and no shape or address depends on the
    step: a CUDA graph of two steps can be replayed, two because a reordering swaps two halves.
    """

    def __init__(
        self,
        source: list[KeysValues | Tensor],
        mask: Tensor,
        hypotheses: int,
        like: Tensor,
        room: int | None = None,
    ) -> None:
        self.source = source  # of each layer, (B, H, S, d/H) twice, or (B, S, d)
        self.mask = mask  # (B, 1, 1, S)
        self.hypotheses = hypotheses
        self.like = like  # (H, d/H), in the dtype of keys and values
        self.fixed = room is not None
        self.length: int | Tensor = 0
        self._held: Tensor | None = None  # (room, layers, 2, B*K, H, d/H)
        self._spare: Tensor | None = None  # as large; fresh memory would cost more than the copy
        self._to_come: Tensor | None = None  # (1, 1, 1, room), -inf at steps after this one
        if room is not None:
            self.length = torch.zeros(1, dtype=torch.int64, device=mask.device)
            self.make_room(room)

    @property
    def sentences(self) -> int:
        return self.mask.shape[0]

    @property
    def room(self) -> int:
        return 0 if self._held is None else self._held.shape[0]

    def make_room(self, steps: int) -> None:
        """For at least so many steps in all; what is held is copied."""
        rows = self.sentences * self.hypotheses
        shape = (steps - self.room, len(self.source), 2, rows, *self.like.shape)
        # What is masked still counts 0 times itself, so it must be a number.
        more = self.like.new_zeros(shape) if self.fixed else self.like.new_empty(shape)
        self._held = more if self._held is None else torch.cat([self._held, more])
        self._spare = torch.empty_like(self._held) if self.fixed else None

    def append(self, layer: int, step: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Adds this step's keys and values (2, B*K, H, d/H) of a layer.

        Gives all of the layer so far, twice (B*K, H, length + 1, d/H), and no mask; or with a fixed
        room twice (B*K, H, room, d/H) and the mask over it.
        """
        if step.requires_grad:
            raise RuntimeError(
                "Cache: steps are written in place and have no gradient; decode step by step under "
                "torch.no_grad(), or all at once to train"
            )
        if isinstance(self.length, Tensor):
            assert self._held is not None
            held = self._held[:, layer]  # (room, 2, B*K, H, d/H)
            held.index_copy_(0, self.length, step[None])
            if layer == 0:
                later = torch.arange(self.room, device=step.device) > self.length
                zeros = step.new_zeros((1, 1, 1, self.room))
                self._to_come = zeros.masked_fill_(later, -torch.inf)
        else:
            if self.length == self.room:
                self.make_room(self.room + STEPS_AT_ONCE)
            assert self._held is not None
            held = self._held[: self.length + 1, layer]  # (length + 1, 2, B*K, H, d/H)
            held[-1] = step
        keys, values = held.permute(1, 2, 3, 0, 4).unbind(0)
        return keys, values, self._to_come

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row ``rows[i]`` was, (B*K,); a row stays in its sentence."""
        if self._held is None:
            return
        if len(rows) != self._held.shape[3]:
            self._held = self._held.index_select(3, rows)
            self._spare = torch.empty_like(self._held) if self.fixed else None
            return
        spare = torch.empty_like(self._held) if self._spare is None else self._spare
        used = self.room if isinstance(self.length, Tensor) else self.length
        torch.index_select(self._held[:used], 3, rows, out=spare[:used])
        self._held, self._spare = spare, self._held

    def select(self, sentences: Tensor) -> None:
        """Only these sentences go on, (b,), in this order."""
        self.source = [
            each.index_select(0, sentences)
            if isinstance(each, Tensor)
            else (each[0].index_select(0, sentences), each[1].index_select(0, sentences))
            for each in self.source
        ]
        self.mask = self.mask.index_select(0, sentences)
        k = torch.arange(self.hypotheses, device=sentences.device)
        self.reorder((sentences[:, None] * self.hypotheses + k).flatten())
