"""The blocks of a Transformer: attention, the network between, and the residual around each.

A residual is not summed where it is made. Between two sub-layers it is a ``Stream``, x and what is
still to be added, and the norm that reads it sums on its way: one pass where there would be five.
Kernels read the weights of a map or a norm and do not call it, so what is more than ``nn.Linear``
or ``nn.LayerNorm``, an adapter or a module with hooks, is called and its neighbours keep theirs.

Shape legend:

    B, S, T  sentences, source tokens, target tokens
    d        width; H heads of d/H each
    K        hypotheses of a sentence that are decoded side by side
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from drill.kernels.nll import compute_dtype
from drill.kernels.product import product
from drill.kernels.relu_dropout import relu_dropout
from drill.kernels.residual_norm import SublayerImplementation, choose_sublayer, residual_norm
from drill.layers.hooks import only_weights_count

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


def mapped(linear: nn.Linear, x: Tensor, impl: SublayerImplementation) -> Tensor:
    """linear(x), with the gradients of its weights in their own dtype where kernels are ours."""
    if not _by_kernels(impl, x, linear, nn.Linear):
        return linear(x)
    return product(x, linear.weight, linear.bias)


def _by_kernels(
    impl: SublayerImplementation, x: Tensor, module: nn.Module, kind: type[nn.Module]
) -> bool:
    return choose_sublayer(impl, x)[0] == "triton" and only_weights_count(module, kind)


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d/H)) V for each head, Q, K, V all linear in x.

    ``output`` maps the heads together; the residual around applies it.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, impl: SublayerImplementation
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.impl = impl
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, T, d) -> (B, T, d); position t sees those of ``mask``, without one those up to t.

        mask  (B, 1, 1, T), 0 where a token may be seen and -inf elsewhere
        """
        q, k, v = _by_heads(mapped(self.query_key_value, x, self.impl), 3, self.heads)
        p = self.dropout if self.training else 0.0
        return attended(q, k, v, mask, p).transpose(1, 2).flatten(2)

    def step(self, x: Tensor, append: Append) -> Tensor:
        """One position of x (B, K, d), every hypothesis for itself, after those appended before."""
        rows = self.query_key_value(x).view(-1, 3, self.heads, x.shape[-1] // self.heads)
        parts = rows.transpose(0, 1)  # (3, B*K, H, d/H)
        seen = F.scaled_dot_product_attention(parts[0].unsqueeze(2), *append(parts[1:]))
        return seen.reshape(x.shape)  # of (B*K, H, 1, d/H)


class CrossAttention(nn.Module):
    """The same with Q linear in x, K and V linear in what an encoder has made of the source."""

    def __init__(
        self, width: int, heads: int, dropout: float, impl: SublayerImplementation
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.impl = impl
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def keys_values(self, states: Tensor) -> KeysValues:
        """Of encoder states (B, S, d); once a sentence, however many steps it is decoded in."""
        k, v = _by_heads(mapped(self.key_value, states, self.impl), 2, self.heads)
        return k, v

    def forward(self, x: Tensor, keys_values: KeysValues, mask: Tensor) -> Tensor:
        """x (B, T, d) -> (B, T, d). Positions do not see each other: they may be hypotheses too."""
        q = mapped(self.query, x, self.impl).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        p = self.dropout if self.training else 0.0
        return attended(q, *keys_values, mask, p).transpose(1, 2).flatten(2)


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
        if not _by_kernels(self.impl, x, self.inner, nn.Linear) or self.inner.bias is None:
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
        by_kernels = _by_kernels(impl, self.x, norm, nn.LayerNorm)
        if not by_kernels or norm.weight is None or norm.bias is None:
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
        if not _by_kernels(self.impl, x, output, nn.Linear):
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


def _by_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts*d) -> ``parts`` tensors (B, H, T, d/H).

    Parted before they are turned: so their gradients are put together in one copy, not two.
    """
    split = x.unflatten(-1, (parts, heads, -1)).unbind(2)
    return tuple(part.transpose(1, 2) for part in split)
