"""Mixtape (Yang et al., 2019) over any matrix layer."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.runtime.checks import is_integer
from drill.kernels.runtime.dispatch import upcast
from drill.layers.base import MatrixLayer, NotFoldable
from drill.layers.checks import check_fraction, check_integer, init_uniform
from drill.layers.label_source import factory_kwargs
from drill.layers.losses import adversarial_delta, target_rows
from drill.layers.wrappers.base import Ranking, ScoreLayer
from drill.layers.wrappers.mixture import dropped_tanh


class Mixtape(ScoreLayer):
    """p(y | h) = softmax_y( sum_e pi_ye(h) z_e,y + b_y ): K logits of each label, mixed by gates.

        z_e  = labels() context(tanh(W_e h + b_e))
        g_n  = sigmoid(v_y . tanh(U_n h) + u_n . h + b_yn)          n = 1..K-1, the gates of y
        pi_y = the leaves of a binary tree whose node n gives g_n left and 1 - g_n right

    One softmax instead of K, so its loss costs K products and one normaliser; the gates depend on
    the label, so the rank of a single softmax is no limit. Adds (d_h*w + w)*K parameters, w being
    the wrapped layer's hidden_size, and (d_h*s + d_h)*(K-1) + G*(s + K-1) for gates of size s.

    Args:
        layer: the MatrixLayer that all experts use.
        experts: K, a power of two.
        hidden_size: d_h; the layer's hidden_size by default.
        gate_size: s, the width of v_y.
        gates: G. The G-1 most frequent labels have gates of their own, all others share the last;
            by default every label has its own. Shared ones cost one product instead of K.
        counts: (V,) training counts that rank the labels; by default ids are sorted by frequency,
            id 0 being the most frequent label.
        dropout: dropout probability of the experts' contexts.
        locked: one mask for all time steps of a hidden of shape (time, batch, d_h).
        init_range: projections and gate vectors are initialised uniformly in +-init_range.
    """

    row_parameters = ("gate_vectors", "gate_bias")
    kept_by_resize = ("gates",)

    def __init__(
        self,
        layer: MatrixLayer,
        experts: int = 4,
        hidden_size: int | None = None,
        *,
        gate_size: int = 32,
        gates: int | None = None,
        counts: Tensor | Sequence[float] | None = None,
        dropout: float = 0.0,
        locked: bool = True,
        init_range: float = 0.1,
    ) -> None:
        super().__init__(layer)
        name, V = type(self).__name__, layer.vocabulary_size
        power = is_integer(experts) and experts >= 2 and experts & (experts - 1) == 0
        require(power, name, "experts", "a power of two of at least 2", experts)
        self.experts = int(experts)
        if hidden_size is not None:
            self.hidden_size = check_integer(name, "hidden_size", hidden_size)
        self.gate_size = check_integer(name, "gate_size", gate_size)
        self.gates = V if gates is None else check_integer(name, "gates", gates)
        require(self.gates <= V, name, "gates", f"at most the {V} labels", gates)
        self.dropout = check_fraction(name, "dropout", dropout)
        self.locked = locked
        self.ranking = Ranking(name, layer, counts)
        self.copies = 4 + -(-3 * self.experts * self.gates // V)
        factory, d_h, nodes = factory_kwargs(layer.embedding), self.hidden_size, self.experts - 1
        self.latent = nn.Linear(d_h, self.experts * layer.hidden_size, **factory)  # W_e, b_e
        self.gate_context = nn.Linear(d_h, nodes * self.gate_size, bias=False, **factory)  # U_n
        self.gate_prior = nn.Linear(d_h, nodes, bias=False, **factory)  # u_n
        self.gate_vectors = nn.Parameter(torch.empty(self.gates, self.gate_size, **factory))  # v_y
        self.gate_bias = nn.Parameter(torch.zeros(nodes, self.gates, **factory))  # b_yn
        weights = [f.weight for f in (self.latent, self.gate_context, self.gate_prior)]
        init_uniform(name, "init_range", init_range, [*weights, self.gate_vectors])

    def context(self, hidden: Tensor) -> Tensor:
        raise NotFoldable(
            f"a mixtape of {self.experts} experts has as many contexts; call layer.inputs(hidden)"
        )

    def inputs(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Contexts (..., K, k); of the gates tanh(U_n h) (..., K-1, s) and u_n . h (..., K-1)."""
        self.check_hidden(hidden)
        dropout = self.dropout if self.training else 0.0
        latent = dropped_tanh(self.latent(hidden), dropout, self.locked)
        contexts = self.layer.context(latent.unflatten(-1, (self.experts, -1)))
        gates = torch.tanh(self.gate_context(hidden)).unflatten(-1, (self.experts - 1, -1))
        return contexts, gates, self.gate_prior(hidden)

    def scores(self, inputs: tuple[Tensor, ...], weight: Tensor) -> Tensor:
        contexts, gates, prior = inputs
        V = weight.shape[0]
        self.ranking.check(V)
        G = min(self.gates, V)
        frequent, others = self.ranking.by_rank(weight).split([G - 1, V - G + 1])
        vectors, shared = self.gate_vectors[: G - 1], self.gate_vectors[G - 1]
        nodes = [
            torch.sigmoid(upcast(F.linear(g, vectors)) + p[..., None] + b[: G - 1])  # (..., G-1)
            for g, p, b in zip(gates.unbind(-2), prior.unbind(-1), self.gate_bias, strict=True)
        ]
        parts = [upcast(F.linear(context, frequent)) for context in contexts.unbind(-2)]
        mixed = mix(contexts, self._gates(gates, prior, shared, self.gate_bias[:, G - 1]))
        scores = torch.cat([mix_tree(parts, nodes), upcast(F.linear(mixed, others))], dim=-1)
        scores = self.ranking.by_label(scores)
        return scores if self.layer.bias is None else scores + self.layer.bias

    @staticmethod
    def _gates(gates: Tensor, prior: Tensor, vectors: Tensor, bias: Tensor) -> Tensor:
        """(..., K-1): the gates of one label for each token."""
        return torch.sigmoid(upcast((gates * vectors[..., None, :]).sum(-1)) + prior + bias)

    def score_drop(
        self, epsilon: float, inputs: tuple[Tensor, ...], weight: Tensor, targets: Tensor
    ) -> Tensor:
        contexts, gates, prior = inputs
        V = weight.shape[0]
        ranks = self.ranking.ranks_of(targets.clamp(0, V - 1)).clamp(max=min(self.gates, V) - 1)
        gates = self._gates(gates, prior, self.gate_vectors[ranks], self.gate_bias.t()[ranks])
        return adversarial_delta(epsilon, mix(contexts, gates), target_rows(weight, targets))

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, experts={self.experts}, gate_size={self.gate_size}, "
            f"gates={self.gates}, dropout={self.dropout}, locked={self.locked}"
        )


def mix_tree(leaves: list[Tensor], gates: list[Tensor]) -> Tensor:
    """sum_e pi_e leaves_e, from the leaves up; the first gate is the root's, as in a heap."""
    while len(leaves) > 1:
        half = len(leaves) // 2
        gates, level = gates[: half - 1], gates[half - 1 :]
        pairs = zip(leaves[::2], leaves[1::2], level, strict=True)
        leaves = [torch.lerp(right, left, gate) for left, right, gate in pairs]
    return leaves[0]


def mix(
    contexts: Tensor,  # (..., K, k)
    gates: Tensor,  # (..., K-1), one label per token
) -> Tensor:  # (..., k), in the dtype of the contexts
    mixed = mix_tree(list(upcast(contexts).unbind(-2)), list(gates[..., None].unbind(-2)))
    return mixed.to(contexts.dtype)
