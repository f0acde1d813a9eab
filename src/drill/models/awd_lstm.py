"""AWD-LSTM, the regularised recurrent encoder (Merity, Keskar & Socher, ICLR 2018).

x^(0) = lock(rows(E)[ids])
x^(l) = LSTM_l(x^(l-1); W_hh * m_l)        l = 1..layers, lock(x^(l)) in between
output = lock(x^(layers)),  raw = x^(layers), or [.., x^(layers-1), x^(layers)] of several layers

``lock`` is locked dropout, ``rows`` drops whole words, ``m_l`` drops entries of recurrent weights.
Other settings give other published LSTMs: of Zaremba, Sutskever & Vinyals (2014), of Gal &
Ghahramani (NIPS 2016), of Melis, Dyer & Blunsom (ICLR 2018).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.lstm.lstm import (
    IMPLEMENTATIONS,
    Implementation,
    choose,
    in_words,
    lstm,
    lstm_stack,
)
from drill.kernels.lstm.weights import Weights
from drill.kernels.runtime.checks import one_of
from drill.kernels.runtime.dropout_masks import draw_mask, masked
from drill.layers.checks import (
    check_fraction,
    check_integer,
    init_uniform,
    restored_modes,
)
from drill.layers.label_source import LabelSource, factory_kwargs, label_count, label_width
from drill.models.encoder import Encoded, Encoder, State

Masks = Literal["locked", "variational", "standard"]


class AwdLstm(Encoder):
    """Stacked LSTMs with dropout on words, inputs, weights and outputs; for language models.

    LSTMs are initialised by PyTorch's default, uniform in +-1/sqrt(width).

    Args:
        embedding: the model's nn.Embedding (V, d) or label source, shared; LSTMs go to its device
            and dtype.
        hidden_size: width of all LSTMs but the last; of all of them with ``skip_connections``.
        layers: number of LSTMs.
        output_size: width of the last LSTM; d by default, as tied labels need.
        output_layers: how many of the last LSTMs are concatenated in the output; for layers such as
            ``DirectOutputConnection`` that read several states.
        dropout_embedding: probability that a word of the vocabulary is dropped from the input.
        dropout_input: dropout of the embedded words.
        dropout_hidden: dropout between LSTMs.
        dropout_output: dropout of the last output.
        dropout_state: dropout of h where the next step reads it, one mask for all steps.
        dropout_masks: "locked" has one mask for all steps, and drops a word for the whole batch;
            "variational" drops it for each sequence; "standard" has a new mask for every step.
        weight_drop: DropConnect of the hidden-to-hidden matrices.
        skip_connections: the output is the sum of all LSTMs' outputs, which a matrix maps to
            ``output_size`` where that is not ``hidden_size``.
        cap_input_gate: the input gate is at most 1 - the forget gate, so |c| stays at most 1.
        impl: "auto", "reference", "cudnn", "persistent" or "graph"; see drill.kernels.lstm.
        init_range: initialise the embedding uniformly in +-init_range; None leaves it as it is.
        lstm_init_range: initialise the LSTMs uniformly in +-lstm_init_range.
        forget_bias: is added to the biases of the forget gates.
    """

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        hidden_size: int = 1150,
        layers: int = 3,
        *,
        output_size: int | None = None,
        output_layers: int = 1,
        dropout_embedding: float = 0.1,
        dropout_input: float = 0.65,
        dropout_hidden: float = 0.3,
        dropout_output: float = 0.4,
        dropout_state: float = 0.0,
        dropout_masks: Masks = "locked",
        weight_drop: float = 0.5,
        skip_connections: bool = False,
        cap_input_gate: bool = False,
        impl: Implementation = "auto",
        init_range: float | None = None,
        lstm_init_range: float | None = None,
        forget_bias: float = 0.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        d = label_width(name, embedding)
        last = d if output_size is None else check_integer(name, "output_size", output_size)
        hidden_size = check_integer(name, "hidden_size", hidden_size)
        self.skip_connections = skip_connections
        widths = [hidden_size] * check_integer(name, "layers", layers)
        if not skip_connections:
            widths[-1] = last
        self.output_layers = check_integer(name, "output_layers", output_layers)
        most = 1 if skip_connections else layers  # all are summed with skip connections
        require(output_layers <= most, name, "output_layers", f"at most {most}", output_layers)
        self.output_size = last if skip_connections else sum(widths[-output_layers:])
        self.embedding = embedding
        self.dropout_embedding = check_fraction(name, "dropout_embedding", dropout_embedding)
        self.dropout_input = check_fraction(name, "dropout_input", dropout_input)
        self.dropout_hidden = check_fraction(name, "dropout_hidden", dropout_hidden)
        self.dropout_output = check_fraction(name, "dropout_output", dropout_output)
        self.dropout_state = check_fraction(name, "dropout_state", dropout_state)
        self.dropout_masks = one_of(name, "dropout_masks", dropout_masks, get_args(Masks))
        self.weight_drop = check_fraction(name, "weight_drop", weight_drop)
        self.cap_input_gate = cap_input_gate
        self.impl = one_of(name, "impl", impl, IMPLEMENTATIONS)
        self._dropping = True
        factory = factory_kwargs(embedding)
        lstms = [nn.LSTM(d_in, d_out, **factory) for d_in, d_out in pairwise([d, *widths])]
        self.lstms = cast(Sequence[nn.LSTM], nn.ModuleList(lstms))
        self.projection: nn.Linear | None = None
        if skip_connections and last != hidden_size:
            self.projection = nn.Linear(hidden_size, last, bias=False, **factory)
            nn.init.orthogonal_(self.projection.weight)
        if init_range is not None:
            words = cast(nn.Module, embedding).parameters()
            init_uniform(name, "init_range", init_range, words)
        for layer in self.lstms:
            if lstm_init_range is not None:
                init_uniform(name, "lstm_init_range", lstm_init_range, layer.parameters())
            if forget_bias != 0.0:
                with torch.no_grad():
                    Weights(*layer.all_weights[0]).b_ih.chunk(4)[1].add_(forget_bias)

    def forward(self, ids: Tensor, state: State | None = None) -> Encoded:
        """ids (T, B) -> output and raw (T, B, output_size), and the state after the last step.

        Every call draws new masks. In eval mode nothing is dropped and output is raw.
        """
        state = self.initial_state(ids.shape[1]) if state is None else state
        x = self.embed(ids)  # (T, B, d)
        if self._drops:
            drop = sequence_row_dropout if self.dropout_masks == "variational" else row_dropout
            x = drop(x, ids, label_count(self.embedding), self.dropout_embedding)
        x = self._drop(x, self.dropout_input)
        by_layer = self._drops and (self.dropout_state > 0.0 or self.dropout_masks == "standard")
        one_by_one = by_layer or self.skip_connections or self.cap_input_gate
        outputs, carried = self._layers(x, state) if one_by_one else self._stacks(x, state)
        if self.skip_connections:
            raw = sum(outputs[1:], outputs[0])
        else:
            last = outputs[-self.output_layers :]
            raw = last[0] if len(last) == 1 else torch.cat(last, dim=-1)
        output = self._drop(raw, self.dropout_output)
        if self.projection is not None:
            output, raw = self.projection(output), self.projection(raw)
        return Encoded(output, raw, tuple(carried))

    @property
    def output_widths(self) -> tuple[int, ...]:
        if self.skip_connections:
            return (self.output_size,)
        return tuple(layer.hidden_size for layer in self.lstms[-self.output_layers :])

    def _stacks(self, x: Tensor, state: State) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Outputs and states of the LSTMs, in stacks that end where an output is read."""
        weights = [Weights(*layer.all_weights[0]) for layer in self.lstms]
        drop = self.weight_drop if self._drops else 0.0
        between = self.dropout_hidden if self._drops else 0.0
        outputs: list[Tensor] = []
        carried: list[tuple[Tensor, Tensor]] = []
        ends = range(len(self.lstms) - self.output_layers + 1, len(self.lstms) + 1)
        for start, stop in pairwise([0, *ends]):
            x = self._drop(x, between) if outputs else x
            part = slice(start, stop)
            x, last = lstm_stack(
                x, state[part], weights[part], self.impl, drop=drop, between=between
            )
            outputs.append(x)
            carried += last
        return outputs, carried

    def _layers(self, x: Tensor, state: State) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Outputs and states of the LSTMs one by one, for what a whole stack has no kernels for."""
        drop = self.weight_drop if self._drops else 0.0
        p = self.dropout_state if self._drops else 0.0
        outputs: list[Tensor] = []
        carried: list[tuple[Tensor, Tensor]] = []
        for layer, (h, c) in zip(self.lstms, state, strict=True):
            x = self._drop(x, self.dropout_hidden) if outputs else x
            weights = Weights(*layer.all_weights[0])
            mask = draw_mask(tuple(h.shape[1:]), p, h) if p > 0.0 else None
            x, h, c = lstm(
                x, h, c, weights, self.impl,
                drop=drop, mask=mask, cap_input_gate=self.cap_input_gate,
            )  # fmt: skip
            carried.append((h, c))
            outputs.append(x)
        return outputs, carried

    @property
    def _drops(self) -> bool:
        return self.training and self._dropping

    def _drop(self, x: Tensor, p: float) -> Tensor:
        if not self._drops or p == 0.0:
            return x
        steps = x.shape[0] if self.dropout_masks == "standard" else 1
        return masked(x, draw_mask((steps, *x.shape[1:]), p, x))

    def kernel_summary(self, batch: int) -> list[str]:
        plain = not (self.cap_input_gate or self.dropout_state > 0.0)
        x = next(self.parameters()).new_empty(1, batch, 0)
        weights = [Weights(*layer.all_weights[0]) for layer in self.lstms]
        choices = [choose(self.impl, x, each.w_hh, plain) for each in weights]
        return [
            f"LSTM {in_words(impl, x.device)} ({reason})" for impl, reason in dict.fromkeys(choices)
        ]

    def initial_state(self, batch: int) -> State:
        """Zeros: per layer h and c, each (1, batch, width)."""
        like, widths = next(self.parameters()), [layer.hidden_size for layer in self.lstms]
        return tuple((like.new_zeros(1, batch, w), like.new_zeros(1, batch, w)) for w in widths)

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
        sites = [f"dropout_{site}" for site in ("embedding", "input", "hidden", "output", "state")]
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


def sequence_row_dropout(vectors: Tensor, ids: Tensor, rows: int, p: float) -> Tensor:
    """``row_dropout`` with a mask of words for each of the B sequences."""
    if p == 0.0:
        return vectors
    mask = draw_mask((rows, ids.shape[1]), p, vectors)
    return masked(vectors, mask.gather(0, ids.long())[..., None])
