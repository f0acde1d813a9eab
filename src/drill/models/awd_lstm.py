"""AWD-LSTM, the regularised recurrent encoder (Merity, Keskar & Socher, ICLR 2018).

x^(0) = lock(rows(E)[ids])
x^(l) = LSTM_l(x^(l-1); W_hh * m_l)        l = 1..layers, lock(x^(l)) in between
output = lock(x^(layers)),  raw = x^(layers)

``lock`` is locked dropout, ``rows`` drops whole words, ``m_l`` drops entries of recurrent weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from drill.kernels.lstm.lstm import IMPLEMENTATIONS, Implementation, choose, in_words, lstm_stack
from drill.kernels.lstm.weights import Weights
from drill.kernels.runtime.checks import one_of, require, require_type
from drill.kernels.runtime.dropout_masks import draw_mask, masked
from drill.layers.checks import fraction, positive, restored_modes, span
from drill.models.encoder import Encoded, Encoder, State


class AwdLstm(Encoder):
    """Stacked LSTMs with dropout on words, inputs, weights and outputs; for language models.

    LSTMs are initialised by PyTorch's default, uniform in +-1/sqrt(width).

    Args:
        embedding: the model's nn.Embedding (V, d), shared; LSTMs go to its device and dtype.
        hidden_size: width of all LSTMs but the last.
        layers: number of LSTMs.
        output_size: width of the last LSTM; d by default, as tied labels need.
        dropout_embedding: probability that a word of the vocabulary is dropped from the input.
        dropout_input: locked dropout of the embedded words.
        dropout_hidden: locked dropout between LSTMs.
        dropout_output: locked dropout of the last output.
        weight_drop: DropConnect of the hidden-to-hidden matrices.
        impl: "auto", "reference", "cudnn", "persistent" or "graph"; see drill.kernels.lstm.
        init_range: initialise the embedding uniformly in +-init_range; None leaves it as it is.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        hidden_size: int = 1150,
        layers: int = 3,
        *,
        output_size: int | None = None,
        dropout_embedding: float = 0.1,
        dropout_input: float = 0.65,
        dropout_hidden: float = 0.3,
        dropout_output: float = 0.4,
        weight_drop: float = 0.5,
        impl: Implementation = "auto",
        init_range: float | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require_type(embedding, nn.Embedding, name, "embedding", "an nn.Embedding")
        d = embedding.embedding_dim
        self.output_size = d if output_size is None else positive(name, "output_size", output_size)
        hidden_size = positive(name, "hidden_size", hidden_size)
        inner = [hidden_size] * (positive(name, "layers", layers) - 1)
        self.embedding = embedding
        self.dropout_embedding = fraction(name, "dropout_embedding", dropout_embedding)
        self.dropout_input = fraction(name, "dropout_input", dropout_input)
        self.dropout_hidden = fraction(name, "dropout_hidden", dropout_hidden)
        self.dropout_output = fraction(name, "dropout_output", dropout_output)
        self.weight_drop = fraction(name, "weight_drop", weight_drop)
        one_of(name, "impl", impl, IMPLEMENTATIONS)
        self.impl: Implementation = impl
        self._dropping = True
        device, dtype = embedding.weight.device, embedding.weight.dtype
        widths = zip([d, *inner], [*inner, self.output_size], strict=True)
        lstms = [nn.LSTM(i, o, device=device, dtype=dtype) for i, o in widths]
        self.lstms = cast(Sequence[nn.LSTM], nn.ModuleList(lstms))
        if init_range is not None:
            nn.init.uniform_(embedding.weight, -span(name, init_range), init_range)

    def forward(self, ids: Tensor, state: State | None = None) -> Encoded:
        """ids (T, B) -> output and raw (T, B, output_size), and the state after the last step.

        Every call draws new masks. In eval mode nothing is dropped and output is raw.
        """
        whole = ids.dtype in (torch.int64, torch.int32) and ids.dim() == 2 and 0 not in ids.shape
        given = ids.dtype, tuple(ids.shape)
        require(whole, "AwdLstm", "ids", "whole numbers of shape (T, B)", given, TypeError)
        state = self.initial_state(ids.shape[1]) if state is None else state
        dropping = self.training and self._dropping
        x = self.embedding(ids)  # (T, B, d)
        if dropping:
            rows = self.embedding.weight.shape[0]
            x = row_dropout(x, ids, rows, self.dropout_embedding)
            x = locked_dropout(x, self.dropout_input)
        x, carried = lstm_stack(
            x,
            state,
            [Weights(*lstm.all_weights[0]) for lstm in self.lstms],
            self.impl,
            drop=self.weight_drop if dropping else 0.0,
            between=self.dropout_hidden if dropping else 0.0,
        )
        output = locked_dropout(x, self.dropout_output) if dropping else x
        return Encoded(output, x, tuple(carried))

    def kernel_summary(self, batch: int) -> list[str]:
        x = self.embedding.weight.new_empty(1, batch, 0)
        made = [choose(self.impl, x, Weights(*each.all_weights[0]).w_hh) for each in self.lstms]
        return [
            f"LSTM {in_words(chosen, x.device)} ({reason})"
            for chosen, reason in dict.fromkeys(made)
        ]

    def initial_state(self, batch: int) -> State:
        """Zeros: per layer h and c, each (1, batch, width)."""
        like = self.embedding.weight

        def zeros(lstm: nn.LSTM) -> Tensor:
            return like.new_zeros(1, batch, lstm.hidden_size)

        return tuple((zeros(lstm), zeros(lstm)) for lstm in self.lstms)

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """A block in which the encoder is in train mode without dropout; for dynamic evaluation.

        cuDNN has no backward in eval mode.
        """
        before, self._dropping = self._dropping, False
        try:
            with restored_modes(self):
                self.train()
                yield
        finally:
            self._dropping = before

    def extra_repr(self) -> str:
        sites = [f"dropout_{site}" for site in ("embedding", "input", "hidden", "output")]
        return ", ".join(f"{site}={getattr(self, site)}" for site in (*sites, "weight_drop"))


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """x * m with one mask m (1, B, H) for all T steps of x (T, B, H) (variational dropout)."""
    return masked(x, draw_mask((1, *x.shape[1:]), p, x)) if p > 0.0 else x


def row_dropout(vectors: Tensor, ids: Tensor, rows: int, p: float) -> Tensor:
    """m[ids] * vectors with a mask m (rows, 1): all occurrences of a word are dropped.

    For ``vectors`` (T, B, d) of ``ids`` (T, B): the same as dropping whole rows of the embedding
    (rows, d) before the lookup, without changing the embedding, which labels may share.
    """
    return masked(vectors, draw_mask((rows, 1), p, vectors)[ids]) if p > 0.0 else vectors
