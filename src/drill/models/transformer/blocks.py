"""The blocks of a Transformer: attention, a network, and the residual around each.

A residual is not summed where it is made. Between two sub-layers it is a ``Stream``, x and what is
still to be added, and the norm that reads it sums on its way: one pass where there would be five.

Shape legend:

    B, T  sentences, tokens
    d     width
    K     hypotheses of a sentence that are decoded side by side
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.transformer.autocast_linear import Weights, product
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import residual_norm
from drill.layers.checks import hooked, only_weights_count
from drill.models.transformer.attention import Append, CrossAttention, KeysValues, SelfAttention
from drill.models.transformer.fused_linear import Prepared, mapped


class FeedForward(nn.Module):
    """drop(relu(W_1 x + b_1)), each position for itself.

    The residual around applies W_2 and b_2, unless ``with_output``.
    """

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def maps(self) -> list[nn.Linear]:
        return [self.inner, self.output]

    def forward(
        self, x: Tensor, ready: Prepared | None = None, with_output: bool = False
    ) -> Tensor:
        inside = self._inside(x, ready)
        return self.output(inside) if with_output else inside

    def _inside(self, x: Tensor, ready: Prepared | None) -> Tensor:
        p = self.dropout if self.training else 0.0
        weights = None if ready is None else ready.maps.get(self.inner)
        if ready is None or weights is None or weights.bias is None:
            return F.dropout(mapped(self.inner, x, ready).relu(), p)
        seed = ready.seeds.get(self)
        return relu_dropout(x, weights.bias, p, x_map=weights, seed=seed, impl="triton")


class Stream(NamedTuple):
    """The residual x + drop(y_map(y)) between two sub-layers, not summed yet.

    x        (B, T, d)
    y        (B, T, d), what the last sub-layer has made; None where there is nothing to add
    y_map    a map still to be applied to y, with its bias, where kernels read its weights
    dropout  of y
    seed     of that dropout, where kernels are to draw it from one
    read     x in the dtype of products, where it has been made
    """

    x: Tensor
    y: Tensor | None = None
    y_map: Weights | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    read: Tensor | None = None

    def normed(
        self,
        norm: nn.LayerNorm,
        ready: Prepared | None,
        *,
        carry_norm: bool = False,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What goes on, the sum or its norm, and the norm in ``dtype``, that of products."""
        weight, bias = norm.weight, norm.bias
        kernels = ready is not None and only_weights_count(norm, nn.LayerNorm)
        if ready is None or not kernels or weight is None or bias is None:
            r = self._summed()
            n = norm(r)
            return n if carry_norm else r, n.to(compute_dtype(r) if dtype is None else dtype)
        return residual_norm(
            self.x,
            self.y,
            weight,
            bias,
            y_map=self.y_map,
            y_bias=None if self.y_map is None else self.y_map.bias,
            dropout=self.dropout,
            epsilon=norm.eps,
            carry_norm=carry_norm,
            dtype=ready.dtype if dtype is None else dtype,
            seed=self.seed,
            impl="triton",
        )

    def _summed(self) -> Tensor:
        if self.y is None:
            return self.x
        y = self.y if self.y_map is None else product(self.y, self.y_map)
        return self.x + F.dropout(y, self.dropout)


Part = SelfAttention | CrossAttention | FeedForward
"""What a residual is around: it maps what it reads, and ``output`` what it has made of that."""


class Residual(nn.Module):
    """x + drop(part(norm(x))), or norm(x + drop(part(x))) where the norm comes after."""

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
        seed = None if ready is None else ready.seeds.get(self)
        weights = None if ready is None else ready.maps.get(part.output)
        # Hooks of a part may set the weights of its output too, until its call is over.
        whole = weights is None and hooked(part)
        y = part(read, *given, ready=ready, with_output=whole)
        if weights is None:
            return Stream(x, y if whole else part.output(y), None, p, seed)
        return Stream(x, y, weights, p, seed)


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

    def maps(self) -> list[nn.Linear]:
        """Those whose weights may be read before the block is called."""
        return _settled(self, self.attention, self.feedforward)

    def dropouts(self) -> list[FeedForward | Residual]:
        """Modules that drop by a seed; attention does not."""
        return [self.around_attention, self.feedforward, self.around_feedforward]

    def forward(self, stream: Stream, mask: Tensor, ready: Prepared | None = None) -> Stream:
        stream = self.around_attention(stream, self.attention, (mask,), ready)
        return self.around_feedforward(stream, self.feedforward, (), ready)


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

    def maps(self) -> list[nn.Linear]:
        """Those whose weights may be read before the block is called."""
        return _settled(self, self.attention, self.source_attention, self.feedforward)

    def waits_for_its_call(self) -> bool:
        """Whether keys and values of the source may not be made before the block is called."""
        return hooked(self) or hooked(self.source_attention)

    def dropouts(self) -> list[FeedForward | Residual]:
        """Modules that drop by a seed; attention does not."""
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
        """(B, T, d) -> (B, T, d); with ``append`` it is one step of K hypotheses, (B, K, d).

        source  encoder states (B, S, d), or the keys and values of them
        """
        stream = self.around_attention(stream, self.attention, (None, append), ready)
        stream = self.around_source_attention(stream, self.source_attention, (source, mask), ready)
        return self.around_feedforward(stream, self.feedforward, (), ready)


def _settled(block: nn.Module, *parts: Part) -> list[nn.Linear]:
    """Maps of a block, but none that lies in a module with hooks: these may set weights.

    So does FSDP's ``fully_shard``, of a block or a part of one, which puts its weights together
    when it is called and takes them apart again.
    """
    if hooked(block):
        return []
    return [each for part in parts if not hooked(part) for each in part.maps()]
