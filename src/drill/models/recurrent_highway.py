"""Recurrent highway network (Zilly, Srivastava, Koutnik & Schmidhuber, ICML 2017).

s_t^(0) = s_{t-1}^(depth)
s_t^(l) = t h + (1 - t) s_t^(l-1)                                     l = 1..depth
h = tanh(W_h x_t [l = 1] + R_h^(l) (m s_t^(l-1)) + b_h^(l))
t = sigmoid(W_t x_t [l = 1] + R_t^(l) (m s_t^(l-1)) + b_t^(l))

raw_t = s_t^(depth). The masks of x, s (``m``) and the output are drawn once for all steps, and a
word is dropped wherever it stands in a sequence (variational dropout, Gal & Ghahramani 2016).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from drill.kernels.runtime.dropout_masks import draw_mask, masked
from drill.layers.checks import check_fraction, check_integer, init_uniform
from drill.layers.label_source import LabelSource, factory_kwargs, label_count, label_width
from drill.models.awd_lstm import locked_dropout, sequence_row_dropout
from drill.models.encoder import Encoded, Encoder, State


class RecurrentHighway(Encoder):
    """One recurrent layer with ``depth`` highway layers in every step; for language models.

    The state is as wide as the output: tied labels need embedding_dim = hidden_size.

    Args:
        embedding: the model's nn.Embedding (V, d) or label source, shared.
        hidden_size: width of the state.
        depth: highway layers of a step.
        dropout_embedding: probability that a word is dropped from a sequence.
        dropout_input: dropout of the embedded words.
        dropout_state: dropout of the state where highway layers read it, one mask for all.
        dropout_output: dropout of the output.
        transform_bias: initial b_t; below 0 a highway layer starts by passing most of s on.
        init_range: initialise the embedding and all weights but b_t uniformly in +-init_range.
    """

    can_compile = True

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        hidden_size: int = 830,
        depth: int = 10,
        *,
        dropout_embedding: float = 0.25,
        dropout_input: float = 0.75,
        dropout_state: float = 0.25,
        dropout_output: float = 0.75,
        transform_bias: float = -2.0,
        init_range: float = 0.04,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        d = label_width(name, embedding)
        H = self.output_size = check_integer(name, "hidden_size", hidden_size)
        self.embedding = embedding
        self.dropout_embedding = check_fraction(name, "dropout_embedding", dropout_embedding)
        self.dropout_input = check_fraction(name, "dropout_input", dropout_input)
        self.dropout_state = check_fraction(name, "dropout_state", dropout_state)
        self.dropout_output = check_fraction(name, "dropout_output", dropout_output)
        self._cell: Callable[..., tuple[Tensor, Tensor]] = highway_cell
        like = factory_kwargs(embedding)
        self.input = nn.Linear(d, 2 * H, bias=False, **like)
        highways = [nn.Linear(H, 2 * H, **like) for _ in range(check_integer(name, "depth", depth))]
        self.highways = cast(Sequence[nn.Linear], nn.ModuleList(highways))
        init_uniform(name, "init_range", init_range, self.parameters())
        for each in self.highways:
            nn.init.constant_(each.bias[H:], transform_bias)

    def forward(self, ids: Tensor, state: State | None = None) -> Encoded:
        """ids (T, B) -> output and raw (T, B, hidden_size), and the state after the last step."""
        ((s,),) = self.initial_state(ids.shape[1]) if state is None else state
        x, mask = self.embed(ids), None  # (T, B, d)
        if self.training:
            rows = label_count(self.embedding)
            x = sequence_row_dropout(x, ids, rows, self.dropout_embedding)
            x = locked_dropout(x, self.dropout_input)
            if self.dropout_state > 0.0:
                mask = draw_mask(tuple(s.shape[1:]), self.dropout_state, s)
        s = s[0]  # (B, H)
        read = s if mask is None else masked(s, mask)
        outputs = []
        for step in self.input(x):  # (B, 2 H)
            for i, highway in enumerate(self.highways):
                both = highway(read) if i > 0 else highway(read) + step
                s, read = self._cell(both, s, mask)
            outputs.append(s)
        raw = torch.stack(outputs)
        output = locked_dropout(raw, self.dropout_output) if self.training else raw
        return Encoded(output, raw, ((s[None],),))

    def initial_state(self, batch: int) -> State:
        """Zeros, (1, batch, hidden_size)."""
        return ((next(self.parameters()).new_zeros(1, batch, self.output_size),),)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the pointwise part of a highway layer: all steps would take minutes."""
        self._cell = torch.compile(highway_cell, *args, **{"dynamic": False, **kwargs})

    def kernel_summary(self, batch: int) -> list[str]:
        return ["recurrent highway network step by step (it has no kernel)"]

    def extra_repr(self) -> str:
        sites = [f"dropout_{site}" for site in ("embedding", "input", "state", "output")]
        return ", ".join(f"{site}={getattr(self, site)}" for site in sites)


def highway_cell(both: Tensor, s: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The next state (B, H) from h and t before their activations, ``both`` (B, 2 H).

    Also gives the state as the next highway layer reads it.
    """
    h, t = both.chunk(2, dim=1)
    s = s + t.sigmoid() * (h.tanh() - s)
    return s, s if mask is None else masked(s, mask)
