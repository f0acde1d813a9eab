"""The blocks of a Transformer by fused kernels, in training: the networks of ``blocks.py``.

A residual is not summed at once. Between two sub-layers it is a ``Stream``, x and what will be
added, and the next norm sums it: one pass over memory instead of five.

Kernels read the weights of a module and do not call it. So a stack with a module that is more than
it was built as, such as an adapter or one with hooks, is plain PyTorch.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.runtime.dropout_masks import drawn_seeds
from drill.kernels.transformer.autocast_linear import (
    LinearWeights,
    cast_together,
    linear,
    several_linear,
)
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import (
    SublayerImplementation,
    choose_sublayer,
    residual_norm,
)
from drill.layers.checks import hooked
from drill.models.transformer.attention import CrossAttention, KeysValues, SelfAttention
from drill.models.transformer.blocks import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    Residual,
)

KINDS = (
    *(EncoderBlock, DecoderBlock, Residual, SelfAttention, CrossAttention, FeedForward),
    *(nn.Linear, nn.LayerNorm, nn.Identity),
)

Blocks = Sequence[EncoderBlock] | Sequence[DecoderBlock]


class Stream(NamedTuple):
    """The residual x + drop(y_linear(y)) between two sub-layers, not summed yet."""

    x: Tensor  # (B, T, d)
    y: Tensor | None = None  # (B, T, .), of the last sub-layer, before its last map
    y_linear: LinearWeights | None = None  # that map
    dropout: float = 0.0  # of what it gives
    seed: Tensor | None = None  # of that dropout
    read: Tensor | None = None  # x in the dtype of products, if it is known already


class FusedBlocks(NamedTuple):
    """What the kernels of all blocks of a stack need for one pass, prepared by few launches."""

    dtype: torch.dtype  # of products
    maps: dict[nn.Module, LinearWeights]  # the weights of each map, cast
    seeds: dict[nn.Module, Tensor]  # of each module with dropout

    def encode(
        self, blocks: Sequence[EncoderBlock], end: nn.Module, x: Tensor, mask: Tensor
    ) -> Tensor:
        """All blocks of an encoder and the norm at its ``end``, in the dtype of products."""
        stream = Stream(x)
        for block in blocks:
            stream = self._attended(block, stream, mask)
            stream = self._fed_forward(block, stream)
        return self._ended(stream, end, compute_dtype(x))

    def decode(
        self,
        blocks: Sequence[DecoderBlock],
        end: nn.Module,
        x: Tensor,
        states: Tensor,  # of the encoder
        mask: Tensor,
    ) -> Tensor:
        stream = Stream(x)
        # Keys and values of the encoder's states by one product for all blocks.
        attentions = [block.source_attention for block in blocks]
        mapped = several_linear(states, [self.maps[each.key_value] for each in attentions])
        for block, of_source in zip(blocks, mapped, strict=True):
            keys_values = block.source_attention.by_heads(of_source)
            stream = self._attended(block, stream, None)
            stream = self._attended_to_source(block, stream, keys_values, mask)
            stream = self._fed_forward(block, stream)
        return self._ended(stream, end, x.dtype)

    # -- sub-layers, without their last map ------------------------------------------------------

    def _attended(
        self, block: EncoderBlock | DecoderBlock, stream: Stream, mask: Tensor | None
    ) -> Stream:
        part = block.attention

        def attend(x: Tensor) -> Tensor:
            return part.attend(linear(x, self.maps[part.query_key_value]), mask)

        return self._around(block.around_attention, stream, attend, part.output)

    def _attended_to_source(
        self, block: DecoderBlock, stream: Stream, keys_values: KeysValues, mask: Tensor
    ) -> Stream:
        part = block.source_attention

        def attend(x: Tensor) -> Tensor:
            return part.attend(linear(x, self.maps[part.query]), keys_values, mask)

        return self._around(block.around_source_attention, stream, attend, part.output)

    def _fed_forward(self, block: EncoderBlock | DecoderBlock, stream: Stream) -> Stream:
        part = block.feedforward

        def feed_forward(x: Tensor) -> Tensor:
            p = part.dropout if part.training else 0.0
            weights, seed = self.maps[part.inner], self.seeds.get(part)
            return relu_dropout(x, weights, p, seed=seed)

        return self._around(block.around_feedforward, stream, feed_forward, part.output)

    # -- residuals ---------------------------------------------------------------------------------

    def _around(
        self,
        residual: Residual,
        stream: Stream,
        part: Callable[[Tensor], Tensor],
        output: nn.Linear,  # the last map of the part
    ) -> Stream:
        p = residual.dropout if residual.training else 0.0
        weights, seed = self.maps[output], self.seeds.get(residual)
        if residual.norm_first:
            x, read = self._normed(stream, residual.norm, self.dtype)
            return Stream(x, part(read), weights, p, seed)
        read = stream.x if stream.read is None else stream.read
        stream = Stream(stream.x, part(read), weights, p, seed)
        x, read = self._normed(stream, residual.norm, self.dtype, carry_norm=True)
        return Stream(x, read=read)

    def _normed(
        self, stream: Stream, norm: nn.LayerNorm, dtype: torch.dtype, carry_norm: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The sum, or its norm in a "post" model, and the norm in ``dtype``."""
        return residual_norm(
            stream.x,
            stream.y,
            norm.weight,
            norm.bias,
            y_linear=stream.y_linear,
            dropout=stream.dropout,
            epsilon=norm.eps,
            carry_norm=carry_norm,
            dtype=dtype,
            seed=stream.seed,
        )

    def _ended(self, stream: Stream, end: nn.Module, dtype: torch.dtype) -> Tensor:
        if isinstance(end, nn.LayerNorm):  # of a "pre" model
            return self._normed(stream, end, dtype)[1]
        # Normed already, and in the dtype of products where that is another.
        return stream.x if stream.read is None or dtype == stream.x.dtype else stream.read


def fused_blocks(
    impl: SublayerImplementation, blocks: Blocks, end: nn.Module, x: Tensor
) -> FusedBlocks | None:
    """For one pass over tensors like ``x``; None if plain PyTorch calls all modules."""
    if choose_sublayer(impl, x)[0] != "triton" or not all(map(as_built, (*blocks, end))):
        return None
    dtype = compute_dtype(x)
    modules = (each for block in blocks for each in block.modules())
    maps = [each for each in modules if isinstance(each, nn.Linear)]
    weights = cast_together([(each.weight, each.bias) for each in maps], dtype)
    dropouts = (each for block in blocks for each in _dropouts(block))
    dropping = [each for each in dropouts if each.training and each.dropout > 0.0]
    seeds = drawn_seeds(len(dropping), x.device)
    by_map, by_module = zip(maps, weights, strict=True), zip(dropping, seeds, strict=True)
    return FusedBlocks(dtype, dict(by_map), dict(by_module))


def _dropouts(block: EncoderBlock | DecoderBlock) -> list[FeedForward | Residual]:
    """Modules whose dropout takes a seed; attention's does not."""
    if isinstance(block, EncoderBlock):
        return [block.around_attention, block.feedforward, block.around_feedforward]
    residuals = (block.around_attention, block.around_source_attention, block.around_feedforward)
    return [*residuals, block.feedforward]


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
