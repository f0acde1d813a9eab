"""The contract of every output layer.

    p(y | h) = softmax( g_out(E) g_in(h) + b )

Shape legend, used in every file of this folder:

    N, ...  tokens (any leading dimensions)
    V       labels, the vocabulary
    d       width of a label vector, a row of E
    h, d_h  a hidden state, what the encoder gives, and its width
    k       width in which labels and contexts meet

A layer whose logits are one matrix product is a :class:`MatrixLayer`: it says what ``labels`` and
``context`` are and the rest is written here, once. Layers over such layers (mixtures, sampled and
adaptive softmax) hold one: see ``wrapper.py``.
"""

import abc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.loss.checks import check_head, check_states, check_targets
from drill.kernels.loss.nll import (
    DEFAULT_MEMORY,
    Implementation,
    Reduction,
    check_settings,
    choose,
    nll,
)
from drill.kernels.runtime.dispatch import compute_dtype, must_not_wait
from drill.layers.adversarial import bound, with_lowered_target
from drill.layers.argument_checks import switch
from drill.layers.init_check import warn_of_default_start
from drill.layers.label_cache import FrozenLabels, LabelCache, SharedLabels, evaluated
from drill.layers.label_source import (
    LabelSource,
    checked_rows,
    label_count,
    label_vectors,
    placement,
    refill,
    resize_rows,
)


class NotFoldable(TypeError):
    """This layer is no single matrix, so no ``nn.Linear`` equals it."""


class LossOptions(NamedTuple):
    """The options of ``nll``, handed on by layers that wrap others."""

    reduction: Reduction
    ignore_index: int
    label_smoothing: float
    impl: Implementation
    memory: int
    check: bool


class OutputLayer(nn.Module, abc.ABC):
    """What a model, a trainer or an evaluation may ask of any output layer."""

    hidden_size: int

    @property
    @abc.abstractmethod
    def vocabulary_size(self) -> int:
        """V, the number of labels."""

    @abc.abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores whose softmax is p(y | h): (..., d_h) -> (..., V)."""

    @abc.abstractmethod
    def log_probs(self, hidden: Tensor) -> Tensor:
        """log p(y | h) of every label: (..., d_h) -> (..., V), normalised, at least float32."""

    def nll(
        self,
        hidden: Tensor,  # (..., d_h)
        targets: Tensor,  # (...)
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        impl: Implementation = "auto",
        memory: int = DEFAULT_MEMORY,
        check: bool = True,
    ) -> Tensor:
        """-log p(target | h), without (..., V) logits in memory; see ``drill.kernels.loss.nll``.

        ``memory`` is what it may use in bytes: less costs time. ``check`` looks whether every
        target is a label, which on a GPU waits for the device.
        """
        label_smoothing, memory, ignore_index = check_settings(
            reduction, label_smoothing, impl, memory, ignore_index
        )
        self.check_hidden(hidden)
        check_targets(hidden, targets, self.vocabulary_size, ignore_index, check)
        if check and self.training and not must_not_wait(hidden.device):
            self.check_start()
        options = LossOptions(reduction, ignore_index, label_smoothing, impl, memory, check)
        return self.checked_nll(hidden, targets.long(), options)

    @abc.abstractmethod
    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        """``nll`` of inputs that have been looked at; targets are int64."""

    def adversarial_nll(
        self,
        hidden: Tensor,  # (..., d_h)
        targets: Tensor,  # (...)
        epsilon: float,
        *,
        impl: Implementation = "auto",
        memory: int = DEFAULT_MEMORY,
        check: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """-log p(target | h) of every token (...), and the same with the target's logit lowered.

        By epsilon |w_y| |h|, see ``drill.layers.adversarial``; gradients are those of the second.
        For layers whose logits are one matrix product.
        """
        raise TypeError(
            f"{type(self).__name__}: its logits are no single product, so no norm bounds how far "
            "a target is lowered; train it with adversarial=0, or take a layer of one matrix"
        )

    @abc.abstractmethod
    def fold(self) -> nn.Linear:
        """The plain linear head that equals this layer; NotFoldable where there is none."""

    @abc.abstractmethod
    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        """Grow or shrink to ``new_size`` labels; what is kept keeps its parameters and its tie."""

    @abc.abstractmethod
    def cached_labels(self) -> AbstractContextManager[None]:
        """Inside, labels are encoded once; for evaluation. A changed parameter raises."""

    @abc.abstractmethod
    def shared_labels(self) -> AbstractContextManager[None]:
        """Inside, micro-batches share one encoding of the labels and one backward through it."""

    def check_start(self) -> None:
        """Look once, at the first loss in training, whether the labels start as they should."""
        return None

    def kernel_summary(self, tokens: int) -> list[str]:
        """Which kernels train on so many tokens, and why, for each part that has a choice."""
        return self.label_kernel_summary()

    def label_kernel_summary(self) -> list[str]:
        """Which kernels encode the labels, and why, if there is a choice."""
        return []

    def forward(self, hidden: Tensor) -> Tensor:
        """``logits``, as of a linear head, so that the layer can stand where one stood."""
        return self.logits(hidden)

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(layer)``."""
        return f"labels={self.vocabulary_size}, hidden_size={self.hidden_size}"

    def check_hidden(self, hidden: Tensor) -> None:
        check_states(type(self).__name__, hidden)
        if hidden.dim() < 1 or hidden.shape[-1] != self.hidden_size:
            raise ValueError(
                f"{type(self).__name__}: hidden {tuple(hidden.shape)} does not end in "
                f"hidden_size {self.hidden_size}; project it to {self.hidden_size} first"
            )


class MatrixLayer(OutputLayer):
    """An output layer whose logits are ``context(h) @ labels().T + bias``.

    ``embedding`` holds the label vectors E and is shared with the model: the layer keeps the
    module, so the tie survives ``.to()``, loading and a swapped parameter. It may also be any
    :class:`~drill.layers.vectors.LabelSource`, such as vectors encoded from descriptions.
    """

    scales_with_embedding: ClassVar[bool] = False
    """Whether logits grow with E: then an E that starts like N(0, 1) is worth a warning."""

    def __init__(
        self, embedding: nn.Embedding | LabelSource, hidden_size: int, bias: bool, joint_size: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden_size = hidden_size
        self.joint_size = joint_size
        zeros = torch.zeros(label_count(embedding), **placement(embedding))
        self.bias = nn.Parameter(zeros) if switch(type(self).__name__, "bias", bias) else None
        self._cache: LabelCache[Tensor] = LabelCache()

    # -- what a layer says ------------------------------------------------------------------

    @abc.abstractmethod
    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        """g_out: the encoded labels (V, k), or only those of ``rows`` (R,) -> (R, k).

        They come in the dtype of the products that encode them, autocast's where it is on; label
        vectors that nothing encodes (tied, full) come as they are.
        ``check`` looks whether every row is a label, which on a GPU waits for the device.
        """

    def context(self, hidden: Tensor) -> Tensor:
        """g_in: (..., d_h) -> (..., k); the identity unless a layer says otherwise."""
        self.check_hidden(hidden)
        return hidden

    # -- what follows -----------------------------------------------------------------------

    @property
    def vocabulary_size(self) -> int:
        return label_count(self.embedding)

    @property
    def label_weight(self) -> Tensor:
        """E, (V, d): the embedding's own Parameter."""
        return label_vectors(self.embedding)

    @property
    def weight(self) -> Tensor:
        """``labels()``, (V, k): what a fused loss that reads ``head.weight`` must train.

        It multiplies ``context(hidden)``, which is ``hidden`` for every layer with g_in = identity.
        In eval mode without gradients the labels are encoded once and reused until a parameter
        changes.
        """
        return self._cache.read(self, self.labels)

    @property
    def holds_labels(self) -> bool:
        """Whether this is inside ``cached_labels`` or ``shared_labels``."""
        return self._cache.block is not None

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised scores (..., V)."""
        context, weight = self.context(hidden), self.weight
        check_head(type(self).__name__, context, weight, self.bias)
        return F.linear(context, weight, self.bias)

    def log_probs(self, hidden: Tensor) -> Tensor:
        context, weight = self.context(hidden), self.weight
        check_head(type(self).__name__, context, weight, self.bias)
        return head_log_probs(context, weight, self.bias)

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        return nll(
            self.context(hidden),
            self.weight,
            targets,
            self.bias,
            reduction=options.reduction,
            ignore_index=options.ignore_index,
            label_smoothing=options.label_smoothing,
            impl=options.impl,
            memory=options.memory,
            check=False,
        )

    def adversarial_nll(
        self,
        hidden: Tensor,
        targets: Tensor,
        epsilon: float,
        *,
        impl: Implementation = "auto",
        memory: int = DEFAULT_MEMORY,
        check: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """As of every layer: w_y is what multiplies, the encoded label, and h is ``context(h)``."""
        context, weight = self.context(hidden), self.weight
        losses = nll(
            context,
            weight,
            targets,
            self.bias,
            reduction="none",
            impl=impl,
            memory=memory,
            check=check,
        )
        delta = bound(epsilon, context, weight, targets)
        return losses.detach(), with_lowered_target(losses, delta)

    def check_start(self) -> None:
        # Not when it is built: many models are initialised, or loaded, only after that.
        if self.scales_with_embedding and torch.is_grad_enabled():
            warn_of_default_start(type(self).__name__, self.embedding)

    @torch.no_grad()
    def fold(self) -> nn.Linear:
        """``fold()(context(h))`` has this layer's logits: training depth, the cost of a tied head.

        Dropout is off in what is folded. The result shares no memory with the layer.
        """
        weight = evaluated(self, self.labels)
        head = nn.Linear(
            weight.shape[1],
            weight.shape[0],
            bias=self.bias is not None,
            device="meta",
        )
        head.weight = nn.Parameter(weight.detach().clone())
        if self.bias is not None:
            head.bias = nn.Parameter(self.bias.detach().clone())
        return head.train(self.training)

    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        """Grow or shrink to ``new_size`` labels, in place.

        Rows, bias entries and the tie of what stays are kept. New rows are ``vectors`` (new, d) or
        the mean of the old ones; new bias entries are the mean of the old ones. The Parameter
        objects stay the same, so build optimisers after resizing: their state keeps the old size.
        """
        if self._cache.block is not None:
            raise RuntimeError("resize inside cached_labels() or shared_labels(); leave it first")
        resize_rows(type(self).__name__, self.embedding, new_size, vectors)
        if self.bias is not None and self.bias.shape[0] != new_size:
            old = self.bias.detach()
            finite = old[old.isfinite()]  # a masked label's -inf is no bias to hand on
            mean = finite.mean() if len(finite) else old.new_zeros(())
            fresh = mean.expand(max(0, new_size - old.shape[0]))
            refill(self.bias, torch.cat([old[:new_size], fresh]))

    @contextmanager
    def cached_labels(self) -> Iterator[None]:
        """Encode the labels once for the evaluation inside; a parameter that changes raises.

        ``weight`` reuses them without this block, too, but encodes again after a change. Inside,
        they are encoded without autocast, which the block may outlast.
        """
        if self.training:
            raise RuntimeError(
                f"{type(self).__name__}: cached_labels() in training mode; call .eval() first, or "
                "use shared_labels() to train"
            )
        frozen = FrozenLabels(self, evaluated(self, self.labels))
        with self._cache.inside(self, frozen):
            yield

    @contextmanager
    def shared_labels(self) -> Iterator[None]:
        """Encode the labels once for the micro-batches inside; leaving runs g_out's backward once.

            with layer.shared_labels():
                for hidden, targets in micro_batches:
                    (layer.nll(hidden, targets, reduction="sum") / tokens).backward()
            optimizer.step()  # after the block: only then the labels have their gradient

        The gradients of the micro-batches are summed in float32. One dropout mask serves them all.
        An exception inside drops what was summed. An optimiser that steps inside raises, and so
        does a parameter, setting or mode that changes; only writes that are no step and that
        autograd does not see either (``.data``, NumPy) go unnoticed.
        """
        shared = SharedLabels(self, self.labels())
        try:
            with self._cache.inside(self, shared):
                yield
            shared.backward()
        finally:
            shared.close()

    def kernel_summary(self, tokens: int) -> list[str]:
        return [
            *super().kernel_summary(tokens),
            self.loss_kernel_summary(tokens, self.vocabulary_size),
        ]

    def loss_kernel_summary(self, tokens: int, labels: int) -> str:
        """Which kernels compute ``nll`` of so many tokens and labels, and why."""
        like = torch.empty(0, **placement(self.embedding))
        choice = choose(tokens, labels, compute_dtype(like), like.device)
        return f"loss {choice.impl} ({choice.reason})"

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{super().extra_repr()}, joint_size={self.joint_size}, bias={bias}"

    def train(self, mode: bool = True) -> Self:
        if mode != self.training:
            self._cache.clear()
        return super().train(mode)

    def label_rows(self, rows: Tensor | None, check: bool) -> Tensor:
        """E, or the rows of it: what every ``labels`` starts from."""
        if rows is not None:
            rows = checked_rows(type(self).__name__, self.embedding, rows, check)
        return label_vectors(self.embedding, rows)


def head_log_probs(context: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """log softmax(context @ weight.T + bias), (..., V), normalised in at least float32."""
    logits = F.linear(context, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.log_softmax(logits if bias is None else logits + bias, dim=-1)
