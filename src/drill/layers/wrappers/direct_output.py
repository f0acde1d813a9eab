"""Direct output connection, DOC (Takase et al., 2018), over any matrix layer."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.runtime.checks import is_integer
from drill.layers.base import MatrixLayer
from drill.layers.checks import init_uniform
from drill.layers.label_source import factory_kwargs
from drill.layers.wrappers.mixture import Mixture


class DirectOutputConnection(Mixture):
    """p(y | h) = sum_e pi_e p_layer(y | tanh(W_e h^(n(e)) + b_e)): softmaxes of several states.

    h is the concatenation of the states h^(1) .. h^(N) of an encoder's layers, such as those of
    ``AwdLstm(..., output_layers=N)``. Expert e reads state n(e); pi = softmax(W_pi h^(N)) depends
    on the last state alone. With all experts on the last state it is a mixture of softmaxes. Adds
    d_N*K + sum_e (d_n(e)*w + w) parameters, w being the wrapped layer's hidden_size.

    Args:
        layer: the MatrixLayer that all experts use.
        experts: how many experts read each state, the lowest first; K in all.
        widths: d_1 .. d_N, the width of each state; by default one of the layer's hidden_size.
        dropout: dropout probability of the experts' contexts.
        locked: one mask for all time steps of a hidden of shape (time, batch, d_h).
        init_range: the projections are initialised uniformly in +-init_range.
    """

    def __init__(
        self,
        layer: MatrixLayer,
        experts: Sequence[int] = (15,),
        widths: Sequence[int] | None = None,
        *,
        dropout: float = 0.0,
        locked: bool = True,
        init_range: float = 0.1,
    ) -> None:
        super().__init__(layer, dropout, locked)
        name = type(self).__name__
        self.widths = (layer.hidden_size,) if widths is None else tuple(widths)
        whole = isinstance(experts, Iterable) and all(is_integer(x) and x >= 0 for x in experts)
        fits = whole and len(experts) == len(self.widths) and sum(experts) > 0
        expected = f"a number for each of the {len(self.widths)} states of the encoder"
        require(fits, name, "experts", expected, experts)
        self.experts_per_state = tuple(map(int, experts))
        self.experts = sum(self.experts_per_state)
        self.hidden_size = sum(self.widths)
        factory, w = factory_kwargs(layer.embedding), layer.hidden_size
        self.prior = nn.Linear(self.widths[-1], self.experts, bias=False, **factory)
        latents = {
            str(n): nn.Linear(d_n, K_n * w, **factory)
            for n, (d_n, K_n) in enumerate(zip(self.widths, self.experts_per_state, strict=True))
            if K_n > 0
        }
        self.latents = nn.ModuleDict(latents)  # W_e and b_e, by state
        weights = [linear.weight for linear in (self.prior, *latents.values())]
        init_uniform(name, "init_range", init_range, weights)

    def expert_contexts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.check_hidden(hidden)
        states = hidden.split(self.widths, dim=-1)
        latent = [linear(states[int(n)]) for n, linear in self.latents.items()]
        return self._experts(self.prior(states[-1]), torch.cat(latent, -1))

    def extra_repr(self) -> str:
        experts = list(self.experts_per_state)
        return f"{super().extra_repr()}, experts={experts}, widths={list(self.widths)}"
