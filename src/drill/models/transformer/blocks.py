"""The blocks of a Transformer: attention, a feed-forward network, and the residual around each.

A residual is not summed at once. Between two sub-layers it is a ``Stream``, x and what will be
added, and the next norm sums it: one pass over memory instead of five.

Shape legend:

    B, T  sentences, tokens
    d     width
    K     hypotheses of a sentence that are decoded together
"""

from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.transformer.autocast_linear import LinearWeights
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import residual_norm
from drill.layers.checks import hooked
from drill.models.transformer.attention import Append, CrossAttention, KeysValues, SelfAttention
from drill.models.transformer.fused_linear import Prepared


class FeedForward(nn.Module):
    """drop(relu(W_1 x + b_1)) at each position.

    Then W_2 and b_2; with ``ready`` the residual around applies them.
    """

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def forward(self, x: Tensor, ready: Prepared | None = None) -> Tensor:
        p = self.dropout if self.training else 0.0
        if ready is None:
            return self.output(F.dropout(self.inner(x).relu(), p))
        weights, seed = ready.maps[self.inner], ready.seeds.get(self)
        return relu_dropout(x, weights, p, seed=seed)


class Stream(NamedTuple):
    """The residual x + drop(y_linear(y)) between two sub-layers, not summed yet."""

    x: Tensor  # (B, T, d)
    y: Tensor | None = None  # (B, T, d), the output of the last sub-layer; None: nothing to add
    y_linear: LinearWeights | None = None  # a map that is still to be applied to y, for kernels
    dropout: float = 0.0  # of y
    seed: Tensor | None = None  # of that dropout, for kernels
    read: Tensor | None = None  # x in the dtype of products, if it is known already

    def normed(
        self,
        norm: nn.LayerNorm,
        ready: Prepared | None,
        *,
        carry_norm: bool = False,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The sum, or its norm in a "post" model, and the norm in ``dtype``, that of products."""
        if ready is None:
            r = self.x if self.y is None else self.x + F.dropout(self.y, self.dropout)
            n = norm(r)
            return n if carry_norm else r, n.to(compute_dtype(r) if dtype is None else dtype)
        return residual_norm(
            self.x,
            self.y,
            norm.weight,
            norm.bias,
            y_linear=self.y_linear,
            dropout=self.dropout,
            epsilon=norm.eps,
            carry_norm=carry_norm,
            dtype=ready.dtype if dtype is None else dtype,
            seed=self.seed,
        )


Part = SelfAttention | CrossAttention | FeedForward
"""A sub-layer inside a residual; its last map is ``output``."""


class Residual(nn.Module):
    """x + drop(part(norm(x))) ("pre"), or norm(x + drop(part(x))) ("post")."""

    def __init__(self, width: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.dropout = dropout
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        stream: Stream,
        part: Part,
        given: tuple[Any, ...],  # its other arguments
        ready: Prepared | None,
    ) -> Stream:
        if self.norm_first:
            x, read = stream.normed(self.norm, ready)
            return self._around(x, read, part, given, ready)
        read = stream.x if stream.read is None else stream.read
        pending = self._around(stream.x, read, part, given, ready)
        x, read = pending.normed(self.norm, ready, carry_norm=True)
        return Stream(x, read=read)

    def _around(
        self, x: Tensor, read: Tensor, part: Part, given: tuple[Any, ...], ready: Prepared | None
    ) -> Stream:
        p = self.dropout if self.training else 0.0
        y = part(read, *given, ready=ready)
        if ready is None:
            return Stream(x, y, dropout=p)
        return Stream(x, y, ready.maps[part.output], p, ready.seeds.get(self))


class EncoderBlock(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(
        self,
        width: int,
        heads: int,
        inner: int,
        dropout: float,
        attention_dropout: float,
        norm_first: bool,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, attention_dropout)
        self.feedforward = FeedForward(width, inner, dropout)
        self.around_attention = Residual(width, dropout, norm_first)
        self.around_feedforward = Residual(width, dropout, norm_first)

    def dropouts(self) -> list[FeedForward | Residual]:
        """Modules whose dropout takes a seed; attention's does not."""
        return [self.around_attention, self.feedforward, self.around_feedforward]

    def forward(self, stream: Stream, mask: Tensor, ready: Prepared | None = None) -> Stream:
        stream = self.around_attention(stream, self.attention, (mask,), ready)
        return self.around_feedforward(stream, self.feedforward, (), ready)


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the source, then the feed-forward network."""

    def __init__(
        self,
        width: int,
        heads: int,
        inner: int,
        dropout: float,
        attention_dropout: float,
        norm_first: bool,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, attention_dropout)
        self.source_attention = CrossAttention(width, heads, attention_dropout)
        self.feedforward = FeedForward(width, inner, dropout)
        self.around_attention = Residual(width, dropout, norm_first)
        self.around_source_attention = Residual(width, dropout, norm_first)
        self.around_feedforward = Residual(width, dropout, norm_first)

    def dropouts(self) -> list[FeedForward | Residual]:
        """Modules whose dropout takes a seed; attention's does not."""
        residuals = (self.around_attention, self.around_source_attention, self.around_feedforward)
        return [*residuals, self.feedforward]

    def forward(
        self,
        stream: Stream,
        source: KeysValues | Tensor,
        mask: Tensor,
        append: Append | None = None,
        ready: Prepared | None = None,
    ) -> Stream:
        """(B, T, d) -> (B, T, d); with ``append`` one step of K hypotheses, (B, K, d).

        ``source`` is the encoder's states (B, S, d), or their keys and values.
        """
        stream = self.around_attention(stream, self.attention, (None, append), ready)
        stream = self.around_source_attention(stream, self.source_attention, (source, mask), ready)
        return self.around_feedforward(stream, self.feedforward, (), ready)


KINDS = (
    EncoderBlock,
    DecoderBlock,
    Residual,
    *get_args(Part),
    nn.Linear,
    nn.LayerNorm,
    nn.Identity,
)


def as_built(part: nn.Module) -> bool:
    """Whether kernels may read the weights of all maps and norms: no adapter, hook or lost bias.

    Hooks may set weights before a call and free them after it, as FSDP's ``fully_shard`` does.
    """
    return all(
        type(each) in KINDS
        and not hooked(each)
        and all(p is not None for p in each._parameters.values())
        for each in part.modules()
    )
