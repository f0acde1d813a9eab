"""Sampled softmax (Bengio & Senecal, 2003; Blanc & Rendle, 2018) over any matrix layer."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.loss.checks import check_head
from drill.kernels.loss.nll import reduce_losses
from drill.kernels.runtime.checks import one_of
from drill.kernels.runtime.dispatch import must_not_wait, upcast
from drill.layers.base import MatrixLayer, OutputLayer
from drill.layers.checks import check_integer
from drill.layers.losses import LossOptions, adversarial_delta, nll_with_lowered_target
from drill.layers.wrappers.base import Ranking, WrappingLayer

Proposal = Literal["log-uniform", "uniform"]

WITHOUT_FLOAT64 = ("mps",)
"""Devices whose labels are drawn on the CPU."""


class SampledSoftmax(WrappingLayer):
    """Train on a partition function estimated from S labels; evaluate exactly.

        l_y = labels_y . context(h) + b_y
        Z_hat = exp(l_target) + sum_{s != target} exp(l_s) / (S q_s)
        nll = log Z_hat - l_target

    The S labels s are drawn with replacement from the proposal q, once per call and for all
    tokens, so E[Z_hat] = Z. A draw that equals a token's target is left out for that token. For
    vocabularies so large that encoding all labels dominates: only targets and samples are encoded,
    at most min(N + S, V) rows. Adds no parameters.

    Args:
        layer: the MatrixLayer to train.
        samples: S; the loss is biased low by about Var(Z_hat) / (2 Z^2), which falls as 1/S.
        proposal: q: "log-uniform" over frequency ranks, q(r) = log((r+2)/(r+1)) / log(V+1), which
            is close to the distribution of words; or "uniform".
        counts: (V,) training counts that rank the labels; by default ids are sorted by frequency,
            id 0 being the most frequent label.
    """

    trains_all_parameters = True
    takes_label_smoothing = False

    def __init__(
        self,
        layer: MatrixLayer,
        samples: int = 1024,
        *,
        proposal: Proposal = "log-uniform",
        counts: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(layer)
        name = type(self).__name__
        self.samples = check_integer(name, "samples", samples)
        self.proposal = one_of(name, "proposal", proposal, get_args(Proposal))
        self.ranking = Ranking(name, layer, counts)

    # -- the proposal -------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, count: int, device: torch.device) -> Tensor:
        """Frequency ranks (count,) drawn with replacement from q; never waits for a device."""
        V = self.vocabulary_size
        drawn_on = _with_float64(device)
        if self.proposal == "uniform":
            return torch.randint(V, (count,), device=drawn_on).to(device)
        # The inverse of the cumulative distribution log(r+1) / log(V+1). In float64: the grid of
        # float32 is as coarse as q itself in the tail of a large vocabulary.
        u = torch.rand(count, device=drawn_on, dtype=torch.float64)
        r = (u * math.log(V + 1)).exp().long() - 1
        return r.clamp(0, V - 1).to(device)  # exp may round up to V + 1

    def log_proposal(self, ranks: Tensor) -> Tensor:
        """log q of frequency ranks, in float64 (on the CPU where a device has none)."""
        V = self.vocabulary_size
        ranks = ranks.to(_with_float64(ranks.device))
        if self.proposal == "uniform":
            return torch.full_like(ranks, -math.log(V), dtype=torch.float64)
        return (ranks.double() + 1).reciprocal().log1p().log() - math.log(math.log(V + 1))

    # -- the loss ---------------------------------------------------------------------------

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        """Training: log Z_hat - l_target, with (N, S) logits in memory. Evaluation: exact.

        ``impl`` and ``memory`` only affect the exact loss.
        """
        if not self.training:
            return self.layer.checked_nll(hidden, targets, options)
        losses, _, _ = self._estimate(hidden, targets, options)
        return reduce_losses(losses, targets, options.reduction, options.ignore_index)

    def checked_adversarial_nll(
        self, hidden: Tensor, targets: Tensor, epsilon: float, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        if not self.training:
            return self.layer.checked_adversarial_nll(hidden, targets, epsilon, options)
        losses, context, rows = self._estimate(hidden, targets, options)
        delta = adversarial_delta(epsilon, context, rows).view(targets.shape)
        return losses, nll_with_lowered_target(losses, delta)

    def _estimate(
        self, hidden: Tensor, targets: Tensor, options: LossOptions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log Z_hat - l_target (...), contexts (N, k) and the targets' labels (N, k)."""
        name, V = type(self).__name__, self.vocabulary_size
        if options.label_smoothing:
            raise ValueError(
                f"{name}: label_smoothing={options.label_smoothing} needs the probabilities of all "
                "labels; train with label_smoothing=0, or train the wrapped layer"
            )
        if self.layer.bias is not None and len(self.layer.bias) != V:
            raise ValueError(
                f"{name}: bias {tuple(self.layer.bias.shape)} does not match the {V} labels; call "
                f"layer.resize({V})"
            )
        self.ranking.check(V)
        flat = targets.reshape(-1)  # (N,)
        ranks = self.sample(self.samples, hidden.device)  # (S,)
        drawn = self.ranking.labels_of(ranks)
        ignored = flat == options.ignore_index
        outside = ~ignored & ((flat < 0) | (flat >= V))
        # A token without a target uses a drawn label, so that no other row is encoded for it.
        known = torch.where(ignored | outside, drawn[0], flat)

        context = self.layer.context(hidden).reshape(-1, self.layer.joint_size)  # (N, k)
        ids = torch.cat([known, drawn])  # (N + S,)
        Y, inverse = self._encode(ids, options.check)  # (R, k), (N + S,)
        check_head(name, context, Y, None)
        # Gathered in float32, as the bias below: gradients of repeated labels are summed in it.
        wide = upcast(Y)
        Y_target = F.embedding(inverse[: len(known)], wide)  # (N, k)
        Y_drawn = F.embedding(inverse[len(known) :], wide).to(Y.dtype)  # (S, k)
        logits = F.linear(context, Y_drawn)  # (N, S)
        exact = torch.promote_types(logits.dtype, torch.float32)
        l_target = (context.to(exact) * Y_target.to(exact)).sum(-1)  # (N,)
        shift = -(self.log_proposal(ranks) + math.log(self.samples))  # (S,)
        shift = shift.to(ranks.device, exact)
        if self.layer.bias is not None:
            b = F.embedding(ids, self.layer.bias.to(exact)[:, None])[:, 0]
            l_target = l_target + b[: len(known)]
            shift = shift + b[len(known) :]
        # Not -inf, which gives NaN gradients where all draws of a token are hits or masked.
        lowest = torch.finfo(exact).min
        shift = shift.clamp(min=lowest)
        hits = known[:, None] == drawn
        log_rest = logits.to(exact).add_(shift).masked_fill_(hits, lowest).logsumexp(1)  # (N,)
        losses = -F.logsigmoid(l_target - log_rest)  # log(exp(l_target) + rest) - l_target
        losses = torch.where(outside, torch.nan, torch.where(ignored, 0, losses))
        return losses.view(targets.shape), context, Y_target

    def _encode(self, ids: Tensor, check: bool) -> tuple[Tensor, Tensor]:
        """Encoded labels Y (R, k) and the row of each id in it: ``Y[inverse]`` are labels(ids)."""
        if self.layer.labels_are_cached:
            return self.layer.weight, ids
        rows, inverse = distinct(ids, self.vocabulary_size, wait=check)
        return self.layer.labels(rows, check=False), inverse

    # -- as the wrapped layer -----------------------------------------------------------------

    @property
    def weight(self) -> Tensor:
        """All encoded labels (V, k): the wrapped layer's."""
        return self.layer.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised scores (..., V), exact in every mode."""
        return self.layer.logits(hidden)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return self.layer.log_probs(hidden)

    def fold(self) -> nn.Linear:
        return self.layer.fold()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, samples={self.samples}, proposal={self.proposal!r}"


def _with_float64(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def distinct(ids: Tensor, labels: int, wait: bool) -> tuple[Tensor, Tensor]:
    """Each id once (R,), and its position: ``rows[inverse] == ids``.

    Only the device knows how many distinct ids there are. Without ``wait`` (and inside
    ``torch.compile`` or a CUDA graph, which cannot wait) R is its upper bound, min(len(ids),
    labels), filled up with one of them.
    """
    if not must_not_wait(ids.device) and (wait or ids.device.type == "cpu"):
        rows, inverse = torch.unique(ids, return_inverse=True)
        return rows, inverse
    ordered, order = ids.sort()
    first = torch.cat([ordered.new_zeros(1), (ordered[1:] != ordered[:-1]).long()])
    slot = first.cumsum(0)  # of each ordered id among the distinct ones
    rows = ordered[-1:].repeat(min(len(ids), labels)).scatter(0, slot, ordered)
    return rows, torch.empty_like(ids).scatter(0, order, slot)


def foldable(layer: OutputLayer) -> MatrixLayer | None:
    """The MatrixLayer that ``layer`` is in evaluation, or None.

    A sampled softmax samples only in training, so it is the layer that it wraps.
    """
    matrix = layer.layer if isinstance(layer, SampledSoftmax) else layer
    return matrix if isinstance(matrix, MatrixLayer) else None
