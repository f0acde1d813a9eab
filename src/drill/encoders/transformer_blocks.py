"""The blocks of a Transformer: attention, a network, and the residual around each.

A residual is not summed where it is made. Between two sub-layers it is a ``Stream``, x and what is
still to be added, and the norm that reads it sums on its way: one pass where there would be five.

Shape legend:

    B, T  sentences, tokens
    d     width
    K     hypotheses of a sentence that are decoded side by side
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.encoders.transformer_attention import Append, CrossAttention, KeysValues, SelfAttention
from drill.encoders.transformer_maps import by_kernels, mapped
from drill.kernels.nll import compute_dtype
from drill.kernels.product import product
from drill.kernels.relu_dropout import relu_dropout
from drill.kernels.residual_norm import SublayerImplementation, residual_norm


class FeedForward(nn.Module):
    """drop(relu(W_1 x + b_1)), each position for itself; the residual around applies W_2, b_2."""

    def __init__(
        self, width: int, inner: int, dropout: float, impl: SublayerImplementation
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.impl = impl
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        p = self.dropout if self.training else 0.0
        if not by_kernels(self.impl, x, self.inner, nn.Linear) or self.inner.bias is None:
            return F.dropout(mapped(self.inner, x, self.impl).relu(), p)
        inside = product(x, self.inner.weight)  # the pass over it adds the bias
        return relu_dropout(inside, self.inner.bias, p, impl=self.impl)


class Stream(NamedTuple):
    """The residual x + drop(y + y_bias) between two sub-layers, not summed yet.

    x        (B, T, d)
    y        (B, T, d), what the last sub-layer has made; None where there is nothing to add
    y_bias   (d,), where it is not part of y
    dropout  of y
    read     x in the dtype of products, where it has been made
    """

    x: Tensor
    y: Tensor | None = None
    y_bias: Tensor | None = None
    dropout: float = 0.0
    read: Tensor | None = None

    def normed(
        self,
        norm: nn.LayerNorm,
        impl: SublayerImplementation,
        *,
        carry_norm: bool = False,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What goes on, the sum or its norm, and the norm in ``dtype``, that of products."""
        dtype = compute_dtype(self.x) if dtype is None else dtype
        kernels = by_kernels(impl, self.x, norm, nn.LayerNorm)
        if not kernels or norm.weight is None or norm.bias is None:
            r = self._summed()
            n = norm(r)
            return n if carry_norm else r, n.to(dtype)
        return residual_norm(
            self.x,
            self.y,
            norm.weight,
            norm.bias,
            y_bias=self.y_bias,
            dropout=self.dropout,
            epsilon=norm.eps,
            carry_norm=carry_norm,
            dtype=dtype,
            impl=impl,
        )

    def _summed(self) -> Tensor:
        if self.y is None:
            return self.x
        y = self.y if self.y_bias is None else self.y + self.y_bias
        return self.x + F.dropout(y, self.dropout)


class Residual(nn.Module):
    """x + drop(output(f(norm(x)))), or norm(x + drop(output(f(x)))) where the norm comes after."""

    def __init__(
        self, width: int, dropout: float, norm_first: bool, impl: SublayerImplementation
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.dropout = dropout
        self.impl = impl
        self.norm = nn.LayerNorm(width)

    def forward(self, stream: Stream, f: Callable[[Tensor], Tensor], output: nn.Linear) -> Stream:
        if self.norm_first:
            x, read = stream.normed(self.norm, self.impl)
            return self._around(x, f(read), output)
        inside = f(stream.x if stream.read is None else stream.read)
        pending = self._around(stream.x, inside, output)
        x, read = pending.normed(self.norm, self.impl, carry_norm=True)
        return Stream(x, read=read)

    def _around(self, x: Tensor, inside: Tensor, output: nn.Linear) -> Stream:
        p = self.dropout if self.training else 0.0
        if not by_kernels(self.impl, x, output, nn.Linear):
            return Stream(x, output(inside), None, p)
        return Stream(x, product(inside, output.weight), output.bias, p)


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
        impl: SublayerImplementation,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, attention_dropout, impl)
        self.feedforward = FeedForward(width, inner, dropout, impl)
        self.around_attention = Residual(width, dropout, norm_first, impl)
        self.around_feedforward = Residual(width, dropout, norm_first, impl)

    def forward(self, stream: Stream, mask: Tensor) -> Stream:
        attention, network = self.attention, self.feedforward
        stream = self.around_attention(stream, lambda x: attention(x, mask), attention.output)
        return self.around_feedforward(stream, network, network.output)


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
        impl: SublayerImplementation,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, attention_dropout, impl)
        self.source_attention = CrossAttention(width, heads, attention_dropout, impl)
        self.feedforward = FeedForward(width, inner, dropout, impl)
        self.around_attention = Residual(width, dropout, norm_first, impl)
        self.around_source_attention = Residual(width, dropout, norm_first, impl)
        self.around_feedforward = Residual(width, dropout, norm_first, impl)

    def forward(
        self, stream: Stream, source: KeysValues, mask: Tensor, append: Append | None = None
    ) -> Stream:
        """(B, T, d) -> (B, T, d); with ``append`` it is one step of K hypotheses, (B, K, d)."""
        attention, across, network = self.attention, self.source_attention, self.feedforward

        def to_itself(x: Tensor) -> Tensor:
            return attention(x, None) if append is None else attention.step(x, append)

        stream = self.around_attention(stream, to_itself, attention.output)
        stream = self.around_source_attention(
            stream, lambda x: across(x, source, mask), across.output
        )
        return self.around_feedforward(stream, network, network.output)
