"""The contract of every output layer.

    p(y | h) = softmax( g_out(E) g_in(h) + b )

Shape legend, used in every file of this folder:

    N, ...  tokens (any leading dimensions)
    V       labels, the vocabulary
    d       width of a label vector, a row of E
    h, d_h  a hidden state, the encoder's output, and its width
    k       width of the joint space of labels and contexts

A layer whose logits are one matrix product is a :class:`MatrixLayer`: it defines ``labels`` and
``context``; the rest is here. Mixtures, sampled and adaptive softmax wrap such a layer:
``wrappers/``.
"""

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.errors import DrillError
from drill.kernels.loss.checks import IGNORE_INDEX, check_head, check_states, check_targets
from drill.kernels.loss.nll import (
    DEFAULT_MEMORY,
    Implementation,
    Reduction,
    check_settings,
    choose,
)
from drill.kernels.runtime.dispatch import compute_dtype, must_not_wait
from drill.layers.checks import check_counts, warn_if_default_init
from drill.layers.label_cache import LabelCache, call_in_eval_mode
from drill.layers.label_source import (
    LabelSource,
    checked_rows,
    factory_kwargs,
    label_count,
    label_vectors,
    resize_entries,
    resize_rows,
)
from drill.layers.losses import LossOptions, adversarial_nll, head_log_probs, head_nll


class NotFoldable(DrillError, TypeError):
    """The layer is not a single matrix, so no ``nn.Linear`` equals it."""


class OutputLayer(nn.Module, abc.ABC):
    """The interface of all output layers, for models, training and evaluation."""

    hidden_size: int

    static_shapes: ClassVar[bool] = False
    """Whether no size inside a loss depends on the targets, as a CUDA graph of a step requires."""
    trains_all_parameters: ClassVar[bool] = False
    """Whether each loss reaches every parameter, as losses of static shapes do, for DDP."""
    takes_label_smoothing: ClassVar[bool] = True
    """Whether the loss in training has the probabilities of all labels, which smoothing needs."""
    map_parameters: ClassVar[tuple[str, ...]] = ()
    """Attributes that map label vectors: ``optimizer.map_lr_scale`` is for their parameters."""
    row_parameters: ClassVar[tuple[str, ...]] = ()
    """Attributes with a row or column for each label or cluster: Muon leaves them to AdamW."""
    kept_by_resize: ClassVar[tuple[str, ...]] = ()
    """Options whose default depends on V, but that ``resize`` keeps: ``drill.hf`` saves them."""

    @property
    @abc.abstractmethod
    def matrix(self) -> "MatrixLayer":
        """The layer with the label matrix: this one, or the one that it wraps."""

    @property
    def vocabulary_size(self) -> int:
        """V, the number of labels."""
        return label_count(self.matrix.embedding)

    @property
    def label_weight(self) -> Tensor:
        """E, (V, d): the Parameter of an embedding, or what a label source computes."""
        return label_vectors(self.matrix.embedding)

    @abc.abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every label.

        Args:
            hidden: (..., d_h), the encoder's output.

        Returns:
            Scores whose softmax is p(y | h), (..., V).
        """

    @abc.abstractmethod
    def log_probs(self, hidden: Tensor) -> Tensor:
        """log p(y | h) of every label.

        Args:
            hidden: (..., d_h), the encoder's output.

        Returns:
            Normalised log-probabilities, (..., V), at least float32.
        """

    def nll(
        self,
        hidden: Tensor,  # (..., d_h)
        targets: Tensor,  # (...)
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        label_smoothing: float = 0.0,
        impl: Implementation = "auto",
        memory: int = DEFAULT_MEMORY,
        check: bool = True,
    ) -> Tensor:
        """-log p(target | h); logits take at most ``memory`` bytes, chunk by chunk.

        Args:
            hidden: (..., d_h), the encoder's output.
            targets: (...), label ids.
            reduction: "mean" over the tokens that are not ignored, "sum" or "none".
            ignore_index: a target that is left out.
            label_smoothing: as in ``F.cross_entropy``.
            impl: "reference", "chunked", "triton" or "auto"; see ``drill.kernels.loss.nll``.
            memory: most bytes to use; less costs time.
            check: raise IndexError if a target is no label; on a GPU this waits for the device.

        Returns:
            A scalar; with "none" a loss per token, (...).
        """
        options = LossOptions(reduction, ignore_index, label_smoothing, impl, memory, check)
        options = self._check_loss(hidden, targets, options)
        return self.checked_nll(hidden, targets.long(), options)

    def _check_loss(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> LossOptions:
        reduction, ignore_index, label_smoothing, impl, memory, check = options
        label_smoothing, memory, ignore_index = check_settings(
            reduction, label_smoothing, impl, memory, ignore_index
        )
        self.check_hidden(hidden)
        check_targets(hidden, targets, self.vocabulary_size, ignore_index, check)
        # Not in the constructor: many models are initialised or loaded after it.
        training = self.training and torch.is_grad_enabled() and not must_not_wait(hidden.device)
        if check and training and self.matrix.scales_with_embedding:
            warn_if_default_init(type(self.matrix).__name__, self.matrix.embedding)
        return LossOptions(reduction, ignore_index, label_smoothing, impl, memory, check)

    @abc.abstractmethod
    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        """``nll`` of checked inputs; targets are int64."""

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
        """Adversarial softmax (Wang, Gong & Liu, ICML 2019).

            nll' = -log softmax(l - delta onehot(y))[y],    delta = epsilon |w_y| |context(h)|

        delta is the most that a change of w_y by epsilon |w_y| can lower the target's logit. It is
        a constant for the gradient. A mixture lowers the logit in each of its softmaxes; a layer
        whose scores are a function of logits lowers the score by as much as delta does.

        Args:
            hidden: (..., d_h), the encoder's output.
            targets: (...), label ids.
            epsilon: how far w_y moves, as a share of its length.
            impl: as in ``nll``.
            memory: as in ``nll``.
            check: as in ``nll``.

        Returns:
            nll (...), detached, and nll' (...).
        """
        options = LossOptions("none", IGNORE_INDEX, 0.0, impl, memory, check)
        options = self._check_loss(hidden, targets, options)
        losses, lowered = self.checked_adversarial_nll(hidden, targets.long(), epsilon, options)
        return losses.detach(), lowered

    @abc.abstractmethod
    def checked_adversarial_nll(
        self, hidden: Tensor, targets: Tensor, epsilon: float, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        """nll and nll' of ``adversarial_nll``, each (...), of checked inputs."""

    def init_bias(self, counts: Tensor | Sequence[float]) -> None:
        """Start at the frequencies of the labels (Meister et al., ACL 2023).

        Sets the output bias so that label y has the probability count_y / sum(counts) wherever
        contexts are zero; states of a new model are small.

        Args:
            counts: (V,), of each label in the training text; 0 is taken for 1.
        """
        self.matrix.init_bias(counts)

    @abc.abstractmethod
    def fold(self) -> nn.Linear:
        """Turn the trained layer into a plain linear one; NotFoldable if that cannot be.

        Returns:
            The ``nn.Linear`` with the logits of this layer, without dropout.
        """

    @abc.abstractmethod
    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        """Grow or shrink; labels that stay keep their parameters and their tie.

        Args:
            new_size: the number of labels then.
            vectors: of the new labels, a row each; the mean of the old ones by default.
        """

    def cached_labels(self) -> AbstractContextManager[None]:
        """Encode labels once, for evaluation.

        Returns:
            A context manager; in its block a changed parameter raises.
        """
        return self.matrix.cached_labels()

    def shared_labels(self) -> AbstractContextManager[None]:
        """Encode all labels once for several micro-batches, with one backward of it.

        Returns:
            A context manager for the micro-batches of one step.
        """
        return self.matrix.shared_labels()

    def kernel_summary(self, tokens: int) -> list[str]:
        """Which kernels train on this many tokens, and why; one line per part with a choice."""
        return self.matrix.label_kernel_summary()

    def forward(self, hidden: Tensor) -> Tensor:
        """``logits``, so that the layer can replace an ``nn.Linear`` head."""
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

    Args:
        embedding: has the label vectors E and is shared with the model. The layer refers to the
            module, so the tie survives ``.to()``, loading and a swapped parameter. It may also be a
            :class:`~drill.layers.label_source.LabelSource`, such as vectors encoded from
            descriptions.
        hidden_size: d_h, the width of hidden states.
        bias: use an output bias.
        joint_size: the width of ``labels()`` and of ``context(h)``.
    """

    static_shapes = True
    row_parameters = ("embedding",)
    scales_with_embedding: ClassVar[bool] = False
    """Whether logits grow with E, so that an E of N(0, 1) is worth a warning."""

    def __init__(
        self, embedding: nn.Embedding | LabelSource, hidden_size: int, bias: bool, joint_size: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden_size = hidden_size
        self.joint_size = joint_size
        zeros = torch.zeros(label_count(embedding), **factory_kwargs(embedding))
        self.bias = nn.Parameter(zeros) if bias else None
        self._cache: LabelCache[Tensor] = LabelCache()

    # -- defined by each layer ----------------------------------------------------------------

    @abc.abstractmethod
    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        """g_out: the encoded labels.

        Args:
            rows: (R,) label ids to encode; all labels by default.
            check: raise IndexError if a row is no label; on a GPU this waits for the device.

        Returns:
            (V, k) or (R, k), in the dtype of the products that encode them.
        """

    def context(self, hidden: Tensor) -> Tensor:
        """g_in: (..., d_h) -> (..., k); the identity by default."""
        self.check_hidden(hidden)
        return hidden

    # -- the same for all ---------------------------------------------------------------------

    @property
    def matrix(self) -> "MatrixLayer":
        return self

    @property
    def weight(self) -> Tensor:
        """``labels()``, (V, k), for fused losses that read ``head.weight``.

        It multiplies ``context(hidden)``. In eval mode without gradients the labels are encoded
        once and reused until a parameter changes.
        """
        return self._cache.read(self, self.labels)

    @property
    def labels_are_cached(self) -> bool:
        """Whether this is inside ``cached_labels`` or ``shared_labels``."""
        return self._cache.block is not None

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised scores (..., V)."""
        return F.linear(*self._head(hidden))

    def log_probs(self, hidden: Tensor) -> Tensor:
        return head_log_probs(*self._head(hidden))

    def _head(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        context, weight = self.context(hidden), self.weight
        check_head(type(self).__name__, context, weight, self.bias)
        return context, weight, self.bias

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        return head_nll(self.context(hidden), self.weight, targets, self.bias, options)

    def checked_adversarial_nll(
        self, hidden: Tensor, targets: Tensor, epsilon: float, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        context, weight = self.context(hidden), self.weight
        return adversarial_nll(epsilon, context, weight, targets, self.bias, options)

    @torch.no_grad()
    def init_bias(self, counts: Tensor | Sequence[float]) -> None:
        name = type(self).__name__
        if self.bias is None:
            raise ValueError(f"{name}: init_bias needs bias=True")
        seen = check_counts(name, counts, self.vocabulary_size).clamp(min=1)
        self.bias.copy_((seen / seen.sum()).log())

    @torch.no_grad()
    def fold(self) -> nn.Linear:
        """The ``nn.Linear`` with ``fold()(context(h)) == logits(h)``, without dropout.

        It costs as much as a tied head and shares no memory with the layer.
        """
        weight = call_in_eval_mode(self, self.labels)
        labels, width = weight.shape
        head = nn.Linear(width, labels, bias=self.bias is not None, device="meta")
        head.weight = nn.Parameter(weight.detach().clone())
        if self.bias is not None:
            head.bias = nn.Parameter(self.bias.detach().clone())
        return head.train(self.training)

    def resize(self, new_size: int, vectors: Tensor | None = None) -> None:
        """Grow or shrink to ``new_size`` labels, in place.

        New rows are ``vectors`` (new, d) or the mean of the old ones; new bias entries are the
        mean of the old ones. The Parameter objects stay the same, so ties survive; build optimizers
        after resizing, because their state has the old size.
        """
        if self._cache.block is not None:
            raise RuntimeError("resize inside cached_labels() or shared_labels(); leave it first")
        resize_rows(type(self).__name__, self.embedding, new_size, vectors)
        if self.bias is not None:
            resize_entries(self.bias, new_size)

    def cached_labels(self) -> AbstractContextManager[None]:
        """Encode the labels once for the evaluation inside; a changed parameter raises StaleLabels.

        ``weight`` reuses them without this block, too, but encodes again after a change. The labels
        are encoded without autocast, which the block may outlast.
        """
        return self._cache.cached(self, self.labels)

    def shared_labels(self) -> AbstractContextManager[None]:
        """Encode the labels once for the micro-batches inside; the end runs their backward once.

            with layer.shared_labels():
                for hidden, targets in micro_batches:
                    (layer.nll(hidden, targets, reduction="sum") / tokens).backward()
            optimizer.step()  # after the block: the labels have no gradient before

        The gradients of the micro-batches are summed in float32 and share one dropout mask. A step
        of any optimizer inside raises StaleLabels at the end.
        """
        return self._cache.shared(self, self.labels)

    def label_kernel_summary(self) -> list[str]:
        """Which kernels encode the labels, and why, if there is a choice."""
        return []

    def kernel_summary(self, tokens: int) -> list[str]:
        loss = self.loss_kernel_summary(tokens, self.vocabulary_size)
        return [*super().kernel_summary(tokens), loss]

    def loss_kernel_summary(self, tokens: int, labels: int) -> str:
        """Which kernels compute ``nll`` of this many tokens and labels, and why."""
        like = torch.empty(0, **factory_kwargs(self.embedding))
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
        """E (V, d), or its ``rows`` (R, d), from which ``labels`` starts."""
        if rows is not None:
            rows = checked_rows(type(self).__name__, self.embedding, rows, check)
        return label_vectors(self.embedding, rows)
