"""The blocks of a Transformer: attention, the network between, and the residual around each.

Shape legend:

    B, S, T  sentences, source tokens, target tokens
    d        width; H heads of d/H each
    K        hypotheses of a sentence that are decoded side by side
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

KeysValues = tuple[Tensor, Tensor]
"""Keys and values, each (B, H, S, d/H)."""

Append = Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""Adds the keys and values (2, B*K, H, d/H) of a step; gives those of all steps, and a mask where
some of these are still to come."""


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """softmax(q k^T / sqrt(d/H) + mask) v by PyTorch's fused kernels; without a mask, causal."""
    with _kernels(q, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=mask is None)


def _kernels(q: Tensor, mask: Tensor | None) -> AbstractContextManager[None]:
    """Those whose gradients can be trusted.

    Given a mask, cuDNN's gradient of the queries is NaN at lengths of 64, 192, ... once all scores
    of a query are below -88, which training comes to (torch 2.11 to 2.13 on Hopper,
    pytorch/pytorch#196678). The others cost as much here.
    """
    if mask is None or not q.is_cuda or not torch.is_grad_enabled():
        return nullcontext()
    return sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d/H)) V for each head, Q, K, V all linear in x; then one more map."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, T, d) -> (B, T, d); position t sees those of ``mask``, without one those up to t.

        mask  (B, 1, 1, T), 0 where a token may be seen and -inf elsewhere
        """
        q, k, v = _by_heads(self.query_key_value(x), 3, self.heads)
        p = self.dropout if self.training else 0.0
        seen = attended(q, k, v, mask, p)
        return self.output(seen.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, append: Append) -> Tensor:
        """One position of x (B, K, d), every hypothesis for itself, after those appended before."""
        rows = self.query_key_value(x).view(-1, 3, self.heads, x.shape[-1] // self.heads)
        parts = rows.transpose(0, 1)  # (3, B*K, H, d/H)
        seen = F.scaled_dot_product_attention(parts[0].unsqueeze(2), *append(parts[1:]))
        return self.output(seen.reshape(x.shape))  # of (B*K, H, 1, d/H)


class CrossAttention(nn.Module):
    """The same with Q linear in x, K and V linear in what an encoder has made of the source."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def keys_values(self, states: Tensor) -> KeysValues:
        """Of encoder states (B, S, d); once a sentence, however many steps it is decoded in."""
        k, v = _by_heads(self.key_value(states), 2, self.heads)
        return k, v

    def forward(self, x: Tensor, keys_values: KeysValues, mask: Tensor) -> Tensor:
        """x (B, T, d) -> (B, T, d). Positions do not see each other: they may be hypotheses too."""
        (q,) = _by_heads(self.query(x), 1, self.heads)
        p = self.dropout if self.training else 0.0
        seen = attended(q, *keys_values, mask, p)
        return self.output(seen.transpose(1, 2).flatten(2))


def attention_ways(attention: SelfAttention, autocast: torch.dtype | None) -> list[str]:
    """Which of PyTorch's kernels attends in training: to earlier tokens, and past padding."""
    like, tokens = attention.output.weight, 64
    q = like.new_empty((1, attention.heads, tokens, like.shape[0] // attention.heads))
    q = q.to(autocast or like.dtype).requires_grad_()
    masks = {"to earlier tokens": None, "past padding": q.new_zeros((1, 1, 1, tokens))}
    found: dict[str, list[str]] = {}
    for seen, mask in masks.items():
        with _kernels(q, mask):
            choice = torch._fused_sdp_choice(
                q, q, q, mask, attention.dropout, is_causal=mask is None
            )
        name = SDPBackend(choice).name.lower().removesuffix("_attention")
        found.setdefault(name, []).append(seen)
    return [f"attention {name} ({' and '.join(seen)})" for name, seen in found.items()]


class FeedForward(nn.Module):
    """W_2 drop(relu(W_1 x + b_1)) + b_2, each position for itself."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.dropout(self.inner(x).relu(), self.dropout, self.training))


class Residual(nn.Module):
    """x + drop(f(norm(x))), or norm(x + drop(f(x))) where the norm comes after."""

    def __init__(self, width: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.dropout = dropout
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + F.dropout(f(self.norm(x)), self.dropout, self.training)
        return self.norm(x + F.dropout(f(x), self.dropout, self.training))


class EncoderBlock(nn.Module):
    """Self-attention, then the network."""

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

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.around_attention(x, lambda y: self.attention(y, mask))
        return self.around_feedforward(x, self.feedforward)


class DecoderBlock(nn.Module):
    """Self-attention to what was written, attention to the source, then the network."""

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

    def forward(
        self, x: Tensor, source: KeysValues, mask: Tensor, append: Append | None = None
    ) -> Tensor:
        """x (B, T, d) -> (B, T, d); with ``append`` x is one step of K hypotheses, (B, K, d)."""
        if append is None:
            x = self.around_attention(x, lambda y: self.attention(y, None))
        else:
            x = self.around_attention(x, lambda y: self.attention.step(y, append))
        x = self.around_source_attention(x, lambda y: self.source_attention(y, source, mask))
        return self.around_feedforward(x, self.feedforward)


def _by_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts*d) -> ``parts`` tensors (B, H, T, d/H)."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
