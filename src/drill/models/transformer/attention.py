"""Attention of a Transformer: self-attention, and attention to the encoded source.

Shape legend:

    B, S, T  sentences, source tokens, target tokens
    d        width; H heads of d/H each
    K        hypotheses of a sentence that are decoded together
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

KeysValues = tuple[Tensor, Tensor]  # keys and values, each (B, H, S, d/H)

Append = Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""Adds the keys and values (2, B*K, H, d/H) of a step; returns those of all steps, and a mask over
later ones or None."""


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """softmax(q k^T / sqrt(d/H) + mask) v by PyTorch's fused kernels; without a mask, causal."""
    with _kernels(q, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=mask is None)


def _kernels(q: Tensor, mask: Tensor | None) -> AbstractContextManager[None]:
    """The kernels whose gradients can be trusted.

    Given a mask, cuDNN's gradient of the queries is NaN at lengths of 64, 192, ... once all scores
    of a query are below -88, which training comes to (torch 2.11 to 2.13 on Hopper,
    pytorch/pytorch#196678). The others cost as much here.
    """
    if mask is None or not q.is_cuda or not torch.is_grad_enabled():
        return nullcontext()
    if torch.compiler.is_compiling():
        return sdpa_kernel(
            [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        )
    return WithoutCudnn()


class WithoutCudnn(AbstractContextManager[None]):
    """``sdpa_kernel`` without cuDNN, at a tenth of its time on the host."""

    def __enter__(self) -> None:
        self.before = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.enable_cudnn_sdp(self.before)


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d/H)) V for each head, Q, K, V all linear in x.

    ``output`` maps the heads together.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, append: Append | None = None) -> Tensor:
        """x (B, T, d) -> (B, T, d).

        Args:
            mask: (B, 1, 1, T), 0 for visible tokens and -inf for others; None: causal.
            append: x is one position of K hypotheses, (B, K, d), each of which sees its own past.
        """
        mapped = self.query_key_value(x)
        if append is None:
            return self.output(self.attend(mapped, mask))
        rows = mapped.view(-1, 3, self.heads, x.shape[-1] // self.heads)
        parts = rows.transpose(0, 1)  # (3, B*K, H, d/H)
        seen = F.scaled_dot_product_attention(parts[0].unsqueeze(2), *append(parts[1:]))
        return self.output(seen.reshape(x.shape))  # of (B*K, H, 1, d/H)

    def attend(self, mapped: Tensor, mask: Tensor | None) -> Tensor:
        """From the output of ``query_key_value``, (B, T, 3d), to the input of ``output``."""
        q, k, v = _by_heads(mapped, 3, self.heads)
        p = self.dropout if self.training else 0.0
        return fused_attention(q, k, v, mask, p).transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """The same with Q linear in x, K and V linear in the encoder's states."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def keys_values(self, states: Tensor) -> KeysValues:
        """Keys and values of encoder states (B, S, d), once per sentence."""
        return self.by_heads(self.key_value(states))

    def by_heads(self, mapped_states: Tensor) -> KeysValues:
        """The same from the output of ``key_value``, (B, S, 2d)."""
        k, v = _by_heads(mapped_states, 2, self.heads)
        return k, v

    def forward(self, x: Tensor, source: KeysValues | Tensor, mask: Tensor) -> Tensor:
        """x (B, T, d) -> (B, T, d). Positions do not see each other, so they may be hypotheses.

        ``source`` is the encoder's states (B, S, d), or their keys and values.
        """
        keys_values = self.keys_values(source) if isinstance(source, Tensor) else source
        return self.output(self.attend(self.query(x), keys_values, mask))

    def attend(self, q: Tensor, keys_values: KeysValues, mask: Tensor) -> Tensor:
        """From the output of ``query``, (B, T, d), to the input of ``output``."""
        q = q.view(*q.shape[:-1], self.heads, -1).transpose(1, 2)
        p = self.dropout if self.training else 0.0
        return fused_attention(q, *keys_values, mask, p).transpose(1, 2).flatten(2)


def _by_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts*d) -> ``parts`` tensors (B, H, T, d/H).

    Split before the transpose, so that their gradients are joined by one copy, not two.
    """
    split = x.view(*x.shape[:-1], parts, heads, -1).unbind(2)
    return tuple([part.transpose(1, 2) for part in split])
