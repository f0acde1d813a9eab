"""The blocks of a Transformer: attention, a feed-forward network, and the residual around each.

A residual is not summed at once. Between two sub-layers it is a ``Stream``, x and what will be
added, and the next norm sums it: one pass over memory instead of five.

Shape legend:

    B, T  sentences, tokens
    d     width
    K     hypotheses of a sentence that are decoded together
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.transformer.autocast_linear import LinearWeights, product
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import residual_norm
from drill.layers.checks import hooked, only_weights_count
from drill.models.transformer.attention import Append, CrossAttention, KeysValues, SelfAttention
from drill.models.transformer.fused_linear import Prepared, apply_linear


class FeedForward(nn.Module):
    """drop(relu(W_1 x + b_1)) at each position.

    The residual around applies W_2 and b_2, unless ``with_output``.
    """

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def forward(
        self, x: Tensor, ready: Prepared | None = None, with_output: bool = False
    ) -> Tensor:
        p = self.dropout if self.training else 0.0
        weights = None if ready is None else ready.maps.get(self.inner)
        if ready is None or weights is None or weights.bias is None:
            inside = F.dropout(apply_linear(self.inner, x, ready).relu(), p)
        else:
            seed = ready.seeds.get(self)
            inside = relu_dropout(x, weights.bias, p, x_linear=weights, seed=seed)
        return self.output(inside) if with_output else inside


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
            y_linear=self.y_linear,
            y_bias=None if self.y_linear is None else self.y_linear.bias,
            dropout=self.dropout,
            epsilon=norm.eps,
            carry_norm=carry_norm,
            dtype=ready.dtype if dtype is None else dtype,
            seed=self.seed,
        )

    def _summed(self) -> Tensor:
        if self.y is None:
            return self.x
        y = self.y if self.y_linear is None else product(self.y, self.y_linear)
        return self.x + F.dropout(y, self.dropout)


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
        seed = None if ready is None else ready.seeds.get(self)
        weights = None if ready is None else ready.maps.get(part.output)
        # Hooks of a part may set the weights of its output too, until its call is over.
        whole = weights is None and hooked(part)
        y = part(read, *given, ready=ready, with_output=whole)
        if weights is None:
            return Stream(x, y if whole else part.output(y), None, p, seed)
        return Stream(x, y, weights, p, seed)


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

    def waits_for_its_call(self) -> bool:
        """Whether keys and values of the source may only be computed in a call of the block."""
        return hooked(self) or hooked(self.source_attention)

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


def settled_modules(block: nn.Module) -> Iterator[nn.Module]:
    """Modules in the parts of a block, without those in a module with hooks, which may set weights.

    FSDP's ``fully_shard`` does so: it gathers the weights when a module is called and frees them
    after.
    """
    if not hooked(block):
        for part in block.children():
            if not hooked(part):
                yield from part.children()
