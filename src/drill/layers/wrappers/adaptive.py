"""Adaptive softmax (Grave et al., 2017) over any matrix layer."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from drill.errors import require
from drill.kernels.loss.checks import IGNORE_INDEX, check_head
from drill.kernels.loss.nll import reduce_losses
from drill.kernels.runtime.checks import is_integer, is_number
from drill.kernels.runtime.dispatch import must_not_wait
from drill.layers.base import MatrixLayer
from drill.layers.label_cache import LabelCache
from drill.layers.losses import (
    LossOptions,
    adversarial_delta,
    head_log_probs,
    head_nll,
    nll_with_lowered_target,
    target_rows,
)
from drill.layers.wrappers.base import Ranking, WrappingLayer, blockwise_nll

OUTSIDE = -1


class ClusterSoftmax(NamedTuple):
    """One softmax of the hierarchy: p = softmax(weight map(context) + bias)."""

    map: nn.Module  # (N, k) -> (N, k_i)
    weight: Tensor  # (labels, k_i)
    bias: Tensor  # (labels,)


class AdaptiveSoftmax(WrappingLayer):
    """A small softmax over frequent labels and clusters, and one narrow softmax per cluster.

        log p(y) = log p_head(y)                                y of rank [0, c_1)
        log p(y) = log p_head(cluster i) + log p_i(y)           y of rank [c_i, c_{i+1})

        p_head = softmax over [labels()[:c_1]; cluster_weight] context(h) + [b; cluster_bias]
        p_i    = softmax((labels()[c_i:c_{i+1}] B_i) . (context(h) A_i) + b)

    A_i and B_i are k x k_i, k_i = k / reduction_factor^i: a token costs the head and one narrow
    cluster. For large vocabularies of words, most of whose tokens are frequent ones. Adds
    C*(k + 1) + 2 k sum(k_i) parameters for C clusters.

    Args:
        layer: the MatrixLayer whose labels are split.
        cutoffs: c_1 < c_2 < ... < V, the ranks at which the clusters start.
        reduction_factor: how much narrower each cluster is than the one before; 1.0: no maps.
        counts: (V,) training counts that rank the labels; by default ids are sorted by frequency,
            id 0 being the most frequent label.
    """

    row_parameters = ("cluster_weight",)

    def __init__(
        self,
        layer: MatrixLayer,
        cutoffs: Sequence[int],
        *,
        reduction_factor: float = 4.0,
        counts: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(layer)
        name = type(self).__name__
        valid = is_number(reduction_factor) and 1.0 <= reduction_factor < math.inf
        expected = "a finite number of at least 1"
        require(valid, name, "reduction_factor", expected, reduction_factor)
        self.cutoffs = _checked_cutoffs(name, cutoffs, layer.vocabulary_size)
        self.reduction_factor = float(reduction_factor)
        self.ranking = Ranking(name, layer, counts)
        k, clusters = layer.joint_size, len(self.cutoffs)
        like = next(layer.parameters(), torch.empty(0))  # on the layer's device, in its dtype
        bound = 1 / math.sqrt(k)
        self.cluster_weight = nn.Parameter(like.new_empty(clusters, k).uniform_(-bound, bound))
        self.cluster_bias = nn.Parameter(like.new_zeros(clusters))
        self.context_maps = nn.ModuleList()  # A_i
        self.label_maps = nn.ModuleList()  # B_i
        for i in range(1, clusters + 1):
            A, B = _maps(k, max(1, round(k / self.reduction_factor**i)), reduction_factor, like)
            self.context_maps.append(A)
            self.label_maps.append(B)
        self._cache: LabelCache[tuple[Tensor, list[ClusterSoftmax]]] = LabelCache()

    @torch.no_grad()
    def init_bias(self, counts: Tensor | Sequence[float]) -> None:
        super().init_bias(counts)
        _, *tails = self.ranking.by_rank(cast(Tensor, self.bias)).split(self.sizes)
        self.cluster_bias.copy_(torch.stack([b.logsumexp(0) for b in tails]))

    # -- the hierarchy ----------------------------------------------------------------------

    @property
    def sizes(self) -> list[int]:
        """How many labels the head and each cluster have."""
        return [end - start for start, end in pairwise((0, *self.cutoffs, self.vocabulary_size))]

    def softmaxes(self, weight: Tensor) -> list[ClusterSoftmax]:
        """The head, then the clusters, from all encoded labels (V, k)."""
        V = weight.shape[0]
        self.ranking.check(V)
        bias = self.cluster_bias.new_zeros(V) if self.layer.bias is None else self.layer.bias
        W, *W_tail = self.ranking.by_rank(weight).split(self.sizes)
        b, *b_tail = self.ranking.by_rank(bias).split(self.sizes)
        b_cluster: Tensor = self.cluster_bias
        if self.layer.bias is not None:
            # A cluster whose labels are all masked has no softmax: the head masks it as a whole.
            masked = [(b_i == -torch.inf).all() for b_i in b_tail]
            b_cluster = b_cluster.masked_fill(torch.stack(masked), -torch.inf)
            b_tail = [b_i.masked_fill(gone, 0.0) for b_i, gone in zip(b_tail, masked, strict=True)]
        W = torch.cat([W, self.cluster_weight])  # (c_1 + C, k)
        b = torch.cat([b, b_cluster])
        tails = zip(self.context_maps, self.label_maps, W_tail, b_tail, strict=True)
        return [
            ClusterSoftmax(nn.Identity(), W, b),
            *(ClusterSoftmax(A, B(W_i), b_i) for A, B, W_i, b_i in tails),
        ]

    def _join(self, context: Tensor, softmaxes: list[ClusterSoftmax]) -> Tensor:
        """log p of every label, (..., k) -> (..., V), in order of label ids."""
        head, *clusters = (head_log_probs(s.map(context), s.weight, s.bias) for s in softmaxes)
        c_1 = self.cutoffs[0]
        parts = [head[..., :c_1]]
        parts += [p + head[..., c_1 + i, None] for i, p in enumerate(clusters)]
        return self.ranking.by_label(torch.cat(parts, dim=-1))

    def _encode(self, hidden: Tensor) -> tuple[Tensor, Tensor, list[ClusterSoftmax]]:
        """context(h), all labels and the softmaxes over them.

        Labels are encoded once, so head and clusters share a dropout mask.
        """
        context = self.layer.context(hidden)
        weight, softmaxes = self._cache.read(self, self._encode_labels)
        check_head(type(self).__name__, context, weight, self.layer.bias)
        return context, weight, softmaxes

    def _encode_labels(self) -> tuple[Tensor, list[ClusterSoftmax]]:
        weight = self.layer.weight
        check_head(type(self).__name__, weight[:1], weight, self.layer.bias)
        return weight, self.softmaxes(weight)

    def log_probs(self, hidden: Tensor) -> Tensor:
        context, _, softmaxes = self._encode(hidden)
        return self._join(context, softmaxes)

    def logits(self, hidden: Tensor) -> Tensor:
        """``log_probs``: a hierarchy has no unnormalised scores."""
        return self.log_probs(hidden)

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        """-log p(target | h): the head for all tokens, each cluster for its own tokens only.

        Only the device knows how many tokens a cluster has, so on a GPU this waits for it. Inside
        ``torch.compile`` or a CUDA graph, which cannot wait, each cluster computes all tokens.
        """
        context, weight, softmaxes = self._encode(hidden)
        if options.label_smoothing:  # needs every label's log-probability, not only the target's

            def joined(inputs: tuple[Tensor, ...], _: Tensor) -> Tensor:
                return self._join(inputs[0], softmaxes)

            losses = blockwise_nll(joined, (context,), weight, targets, options, copies=8)
        else:
            (losses,) = self._losses(context, targets, softmaxes, options)
        return reduce_losses(losses, targets, options.reduction, options.ignore_index)

    def checked_adversarial_nll(
        self, hidden: Tensor, targets: Tensor, epsilon: float, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        context, _, softmaxes = self._encode(hidden)
        losses, lowered = self._losses(context, targets, softmaxes, options, epsilon)
        return losses, lowered

    def kernel_summary(self, tokens: int) -> list[str]:
        head = self.cutoffs[0] + len(self.cutoffs)
        loss = self.layer.loss_kernel_summary(tokens, head)
        return [*super().kernel_summary(tokens), f"the head's {loss}"]

    def _losses(
        self,
        context: Tensor,  # (..., k)
        targets: Tensor,  # (...)
        softmaxes: list[ClusterSoftmax],
        options: LossOptions,
        epsilon: float | None = None,
    ) -> list[Tensor]:  # (...); with epsilon also those of the adversarial softmax
        V, shape = self.vocabulary_size, targets.shape
        context, targets = context.reshape(-1, context.shape[-1]), targets.reshape(-1)
        ignored = targets == options.ignore_index
        outside = ~ignored & ((targets < 0) | (targets >= V))
        rank = self.ranking.ranks_of(torch.where(ignored | outside, 0, targets))
        cluster = torch.zeros_like(rank)  # 0 the head, i the cluster that starts at c_i
        for c_i in self.cutoffs:
            cluster += rank >= c_i
        cluster = torch.where(ignored | outside, 0, cluster)
        in_head = torch.where(cluster == 0, rank, self.cutoffs[0] - 1 + cluster)
        # Not the caller's ignore_index, which may equal a rank.
        in_head = torch.where(ignored, IGNORE_INDEX, torch.where(outside, OUTSIDE, in_head))
        options = options._replace(reduction="none", ignore_index=IGNORE_INDEX)

        head, *clusters = softmaxes

        def part_of_losses(s: ClusterSoftmax, context: Tensor, targets: Tensor) -> Tensor:
            """(n, 1), or (n, 2) with the adversarial losses: only labels are lowered."""
            mapped = s.map(context)
            losses = head_nll(mapped, s.weight, targets, s.bias, options)
            if epsilon is None:
                return losses[:, None]
            delta = adversarial_delta(epsilon, mapped, target_rows(s.weight, targets))
            if s is head:
                delta = delta * (cluster == 0)
            return torch.stack([losses, nll_with_lowered_target(losses, delta)], 1)

        losses = part_of_losses(head, context, in_head)
        in_cluster = [
            torch.where(cluster == i + 1, rank - c_i, IGNORE_INDEX)
            for i, c_i in enumerate(self.cutoffs)
        ]
        if must_not_wait(context.device):
            for softmax, targets in zip(clusters, in_cluster, strict=True):
                losses = losses + part_of_losses(softmax, context, targets)
        else:
            sizes = torch.stack([(cluster == i).sum() for i in range(len(softmaxes))]).tolist()
            _, *members = cluster.argsort(stable=True).split(sizes)
            for softmax, targets, tokens in zip(clusters, in_cluster, members, strict=True):
                # Also without tokens: data-parallel training waits for a gradient of all.
                context_i = context.index_select(0, tokens)
                part = part_of_losses(softmax, context_i, targets[tokens])
                losses = losses.index_add(0, tokens, part)
        return [column.view(shape) for column in losses.unbind(1)]

    # -- as the wrapped layer -----------------------------------------------------------------

    @contextmanager
    def cached_labels(self) -> Iterator[None]:
        """As the wrapped layer's; the labels of each cluster are mapped by B_i once, too."""
        with self.layer.cached_labels(), self._cache.cached(self, self._encode_labels):
            yield

    def train(self, mode: bool = True) -> Self:
        if mode != self.training:
            self._cache.clear()
        return super().train(mode)

    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        """As the wrapped layer's. Only the last cluster grows or shrinks: new labels join it."""
        ids, last = self.ranking.ids, self.cutoffs[-1]
        if new_size <= last or (ids is not None and bool((ids[:last] >= new_size).any())):
            raise ValueError(
                f"{type(self).__name__}: resize to {new_size} labels would take labels from before "
                f"the last cutoff, rank {last}; keep them, or build it again with smaller cutoffs"
            )
        super().resize(new_size, vectors)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, cutoffs={list(self.cutoffs)}, "
            f"reduction_factor={self.reduction_factor}"
        )


def _maps(k: int, k_i: int, reduction_factor: float, like: Tensor) -> tuple[nn.Module, nn.Module]:
    """A and B, k -> k_i, initialised with the same values; the identity for factor 1.

    Both are the same random orthonormal rows, so a context close to a label stays close to it.
    The scale keeps the variance of the logits of unrelated pairs: with A = B = a Q it is
    a^4 k_i / k^2 |c|^2 |y|^2, and without maps |c|^2 |y|^2 / k, hence a = (k / k_i)^(1/4).
    """
    if reduction_factor == 1.0:
        return nn.Identity(), nn.Identity()
    A, B = (nn.Linear(k, k_i, bias=False, device="meta", dtype=like.dtype) for _ in range(2))
    if not like.is_meta:
        Q = torch.empty(k_i, k, dtype=torch.float32, device="cpu")
        nn.init.orthogonal_(Q, gain=(k / k_i) ** 0.25)
        for linear in (A, B):
            linear.weight = nn.Parameter(Q.to(like.device, like.dtype, copy=True))
    return A, B


def _checked_cutoffs(name: str, cutoffs: Sequence[int], labels: int) -> tuple[int, ...]:
    ranks = list(cutoffs) if isinstance(cutoffs, Iterable) else []
    valid = bool(ranks) and all(map(is_integer, ranks))
    valid = valid and all(a < b for a, b in pairwise([0, *ranks, labels]))
    expected = f"a list of increasing whole numbers between 1 and {labels - 1}"
    require(valid, name, "cutoffs", expected, cutoffs)
    return tuple(map(int, ranks))
