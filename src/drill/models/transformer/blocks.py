"""The blocks of a Transformer: attention, a feed-forward network, and the residual around each.

``fused_blocks.py`` computes the same by kernels in training on a GPU.

Shape legend:

    B, T  sentences, tokens
    d     width
    K     hypotheses of a sentence that are decoded together
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from drill.models.transformer.attention import Append, CrossAttention, KeysValues, SelfAttention


class FeedForward(nn.Module):
    """W_2 drop(relu(W_1 x + b_1)) + b_2 at each position."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.dropout(self.inner(x).relu(), self.dropout, self.training))


class Residual(nn.Module):
    """x + drop(part(norm(x))) ("pre"), or norm(x + drop(part(x))) ("post")."""

    def __init__(self, width: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.dropout = dropout
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + F.dropout(part(self.norm(x)), self.dropout, self.training)
        return self.norm(x + F.dropout(part(x), self.dropout, self.training))


class BlockOptions(NamedTuple):
    """What all blocks of a Transformer have in common."""

    width: int
    heads: int
    inner: int
    dropout: float
    attention_dropout: float
    norm_first: bool


class EncoderBlock(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        width, heads, inner, dropout, attention_dropout, norm_first = options
        self.attention = SelfAttention(width, heads, attention_dropout)
        self.feedforward = FeedForward(width, inner, dropout)
        self.around_attention = Residual(width, dropout, norm_first)
        self.around_feedforward = Residual(width, dropout, norm_first)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        x = self.around_attention(x, lambda x: self.attention(x, mask))
        return self.around_feedforward(x, self.feedforward)


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the source, then the feed-forward network."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        width, heads, inner, dropout, attention_dropout, norm_first = options
        self.attention = SelfAttention(width, heads, attention_dropout)
        self.source_attention = CrossAttention(width, heads, attention_dropout)
        self.feedforward = FeedForward(width, inner, dropout)
        self.around_attention = Residual(width, dropout, norm_first)
        self.around_source_attention = Residual(width, dropout, norm_first)
        self.around_feedforward = Residual(width, dropout, norm_first)

    def forward(
        self,
        x: Tensor,
        source: KeysValues | Tensor,
        mask: Tensor,
        append: Append | None = None,
    ) -> Tensor:
        """(B, T, d) -> (B, T, d); with ``append`` one step of K hypotheses, (B, K, d).

        ``source`` is the encoder's states (B, S, d), or their keys and values.
        """
        x = self.around_attention(x, lambda x: self.attention(x, None, append))
        x = self.around_source_attention(x, lambda x: self.source_attention(x, source, mask))
        return self.around_feedforward(x, self.feedforward)
