"""The Transformer (Vaswani et al., NIPS 2017): a source and the beginning of a target -> hidden.

x = drop(sqrt(d) E[ids] + positions),  blocks of attention and feed-forward networks over it

``positions`` are sines and cosines of wavelengths 2 pi to 20000 pi.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.runtime.checks import one_of, require_type
from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.transformer.residual_norm import (
    SUBLAYER_IMPLEMENTATIONS,
    SublayerImplementation,
)
from drill.layers.checks import check_fraction, check_integer
from drill.models.transformer.blocks import BlockOptions, DecoderBlock, EncoderBlock
from drill.models.transformer.decoding_cache import KeyValueCache
from drill.models.transformer.fused_blocks import fused_blocks

Norm = Literal["pre", "post"]

ALIGNED = (
    8  # fused attention copies a mask whose rows do not begin at multiples of this many numbers
)


class Memory(NamedTuple):
    """The encoder's output for B source sentences."""

    states: Tensor  # (B, S, d)
    mask: Tensor  # (B, 1, 1, S), 0 for tokens and -inf for padding, added to attention scores


@dataclass(frozen=True)
class Size:
    """A preset: the width of the embeddings and the sizes of ``Transformer``."""

    embedding_dim: int
    layers: int
    heads: int
    feedforward: int
    dropout: float


PRESETS: dict[str, Size] = {
    "big": Size(1024, 6, 16, 4096, 0.3),
    "base": Size(512, 6, 8, 2048, 0.1),
    "small": Size(256, 4, 4, 1024, 0.1),
    "tiny": Size(128, 2, 4, 512, 0.1),
}
"""``base`` is the paper's; ``small`` suits ten thousands of sentences, ``tiny`` a CPU."""


class Transformer(nn.Module):
    """Encoder and decoder of a Transformer, for translation.

    Matrices are initialised uniformly in +-sqrt(6 / (in + out)) (Glorot), biases with zeros.

    Args:
        source_embedding: the model's nn.Embedding (V_s, d), shared; blocks go to its device and
            dtype.
        target_embedding: (V_t, d); the source's by default, for a joint vocabulary.
        layers: blocks of the encoder, and of the decoder.
        heads: of every attention; divides d.
        feedforward: inner width of the feed-forward networks.
        dropout: of embedded words, inside the networks and before each residual sum.
        attention_dropout: of attention weights; ``dropout`` by default.
        norm: "pre": x + f(norm(x)) and a norm at the end of each stack; "post": norm(x + f(x)), as
            first published.
        impl: of the operations between products, in training: "auto", "reference" or "triton"; see
            ``drill.kernels.transformer.residual_norm``.
        pad: the id of padding, on the right.
        init_embeddings: also initialise the embeddings; by default they stay as they are.
    """

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding | None = None,
        *,
        layers: int = 6,
        heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.1,
        attention_dropout: float | None = None,
        norm: Norm = "pre",
        impl: SublayerImplementation = "auto",
        pad: int = 0,
        init_embeddings: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        target_embedding = source_embedding if target_embedding is None else target_embedding
        for each in (source_embedding, target_embedding):
            require_type(each, nn.Embedding, name, "embeddings", "nn.Embeddings")
        d, other = source_embedding.embedding_dim, target_embedding.embedding_dim
        require(d == other, name, "the target embedding", f"as wide as the source's, {d}", other)
        if d % check_integer(name, "heads", heads) != 0 or d % 2 != 0:
            raise ValueError(
                f"{name}: the embeddings have width {d}, which {heads} heads and two halves of "
                f"positions must divide; take a multiple of {math.lcm(heads, 2)}"
            )
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.output_size = d
        self.dropout = check_fraction(name, "dropout", dropout)
        self.norm = one_of(name, "norm", norm, get_args(Norm))
        self.impl = one_of(name, "impl", impl, SUBLAYER_IMPLEMENTATIONS)
        self.pad = check_integer(name, "pad", pad, minimum=0)
        words = min(source_embedding.num_embeddings, target_embedding.num_embeddings)
        require(pad < words, name, "pad", f"a row of both embeddings, below {words}", pad)
        of_attention = dropout if attention_dropout is None else attention_dropout
        check_fraction(name, "attention_dropout", of_attention)
        feedforward = check_integer(name, "feedforward", feedforward)
        options = BlockOptions(d, heads, feedforward, dropout, of_attention, norm == "pre")
        depth = range(check_integer(name, "layers", layers))
        with source_embedding.weight.device:
            encoder = nn.ModuleList(EncoderBlock(options) for _ in depth)
            decoder = nn.ModuleList(DecoderBlock(options) for _ in depth)
            # After the last residual of a "pre" model nothing has been normed yet.
            ends = [nn.LayerNorm(d) if norm == "pre" else nn.Identity() for _ in range(2)]
        self.encoder = cast(Sequence[EncoderBlock], encoder)
        self.decoder = cast(Sequence[DecoderBlock], decoder)
        self.encoder_norm, self.decoder_norm = ends
        for part in (encoder, decoder, *ends):
            part.to(source_embedding.weight.dtype)
        self._draw(init_embeddings)

    # -- all positions at once ----------------------------------------------------------------

    def encode(self, source: Tensor) -> Memory:
        """Read the source.

        Args:
            source: ids (B, S), padded on the right. An empty sentence reads as one ``pad``.

        Returns:
            Memory: states (B, S, d) and the mask of padding.
        """
        if source.shape[1] == 0:
            source = F.pad(source, (0, 1), value=self.pad)
        mask = source != self.pad
        first = torch.arange(source.shape[1], device=source.device) == 0
        # Attention over nothing is NaN, so an empty sentence shows its first position.
        mask = mask | (first & ~mask.any(1, keepdim=True))
        x = self._embedded(self.source_embedding, source, 0)
        mask = additive_mask(mask, x)
        dtype = compute_dtype(x)  # once, because every block of the decoder reads the states
        fused = fused_blocks(self.impl, self.encoder, self.encoder_norm, x)
        if fused is not None:
            return Memory(fused.encode(self.encoder, self.encoder_norm, x, mask), mask)
        for block in self.encoder:
            x = block(x, mask)
        return Memory(self.encoder_norm(x).to(dtype), mask)

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """Read the target: position t sees the source and the target up to t.

        Args:
            target: ids (B, T), padded on the right.
            memory: from ``encode``.

        Returns:
            Hidden states (B, T, d), for what follows each id. Ignore the values at padding.
        """
        x = self._embedded(self.target_embedding, target, 0)
        dtype = x.dtype
        fused = fused_blocks(self.impl, self.decoder, self.decoder_norm, x)
        if fused is not None:
            return fused.decode(self.decoder, self.decoder_norm, x, *memory)
        for block in self.decoder:
            x = block(x, *memory)
        return self.decoder_norm(x).to(dtype)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (B, S) and (B, T) -> hidden (B, T, d)."""
        return self.decode(target, self.encode(source))

    # -- step by step -------------------------------------------------------------------------

    def start(self, memory: Memory, hypotheses: int = 1, room: int | None = None) -> KeyValueCache:
        """The cache of ``step``.

        Args:
            memory: from ``encode``.
            hypotheses: K, of every sentence.
            room: allocates this many steps at once, at a fixed address: see ``KeyValueCache``.

        Returns:
            The cache, before the first step.
        """
        check_integer(type(self).__name__, "hypotheses", hypotheses)
        states, heads = memory.states, self.decoder[0].attention.heads
        source = [block.source_attention.keys_values(states) for block in self.decoder]
        like = states.new_empty((heads, self.output_size // heads), dtype=compute_dtype(states))
        return KeyValueCache(source, memory.mask, hypotheses, like, room)

    def step(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Read the next id of every hypothesis.

        As ``decode`` of all ids so far at the last position, up to rounding. For evaluation: the
        cache is written in place.

        Args:
            ids: (B*K,).
            cache: from ``start``; grows by one step.

        Returns:
            Hidden states (B*K, d).
        """
        x = self._embedded(self.target_embedding, ids[:, None], cache.length)  # (B*K, 1, d)
        x = x.view(cache.sentences, cache.hypotheses, self.output_size)
        dtype = x.dtype
        for i, (block, source) in enumerate(zip(self.decoder, cache.source, strict=True)):
            x = block(x, source, cache.mask, partial(cache.append, i))
        cache.length += 1
        return self.decoder_norm(x).to(dtype).flatten(0, 1)

    # -----------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        shared = self.source_embedding is self.target_embedding
        return f"norm={self.norm!r}, dropout={self.dropout}, pad={self.pad}, shared={shared}"

    def _embedded(self, embedding: nn.Embedding, ids: Tensor, start: int | Tensor) -> Tensor:
        x = embedding(ids) * math.sqrt(self.output_size)
        x = x + sinusoids(start, ids.shape[1], self.output_size, x)
        return F.dropout(x, self.dropout, self.training)

    @torch.no_grad()
    def _draw(self, embeddings: bool) -> None:
        joined = {"query_key_value": 3, "key_value": 2}  # maps in one matrix are drawn one by one
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                for part in module.weight.detach().chunk(joined.get(name.rpartition(".")[2], 1)):
                    nn.init.xavier_uniform_(part)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding) and embeddings:
                nn.init.xavier_uniform_(module.weight)


# -- inputs ---------------------------------------------------------------------------------------


def sinusoids(start: int | Tensor, length: int, width: int, like: Tensor) -> Tensor:
    """Positions start..start+length-1, (length, width): sin(t w_i), then cos(t w_i).

    w_i = 10000^(-2i/width) for i = 0..width/2-1. Made when asked for, so no sentence is too long.
    """
    exact = torch.promote_types(like.dtype, torch.float32)
    t = torch.arange(length, device=like.device, dtype=exact) + start
    i = torch.arange(width // 2, device=like.device, dtype=exact)
    angles = t[:, None] * torch.exp(i * (-2.0 * math.log(10_000.0) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)


def additive_mask(seen: Tensor, x: Tensor) -> Tensor:
    """(B, S) of True and False as (B, 1, 1, S) of 0 and -inf, in the precision of attention."""
    rows, length = seen.shape
    room = x.new_zeros((rows, 1, 1, -(-length // ALIGNED) * ALIGNED), dtype=compute_dtype(x))
    return room[..., :length].masked_fill_(~seen[:, None, None], -torch.inf)
