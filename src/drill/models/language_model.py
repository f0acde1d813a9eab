"""A language model: an encoder and an output layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import upcast
from drill.layers.base import OutputLayer
from drill.layers.checks import restored_modes
from drill.layers.label_source import label_vectors
from drill.models.encoder import Encoded, Encoder, State, check_widths, map_state


class Loss(NamedTuple):
    """The loss of a batch."""

    total: Tensor  # nll and the regularisers: call backward on it
    nll: Tensor  # mean over tokens, to report; detached
    state: State  # for the next batch; detached


class LanguageModel(nn.Module):
    """p(y_t | y_<t) = layer(encoder(y_<t)): any encoder with any output layer.

    If both share an embedding, it is one Parameter and counted once.

        model = LanguageModel(AwdLstm(embedding), DeepResidual(embedding, depth=4))
        loss = model.loss(ids, targets, state)

    Args:
        encoder: its output is as wide as the layer's hidden states.
        layer: the output layer.
    """

    def __init__(self, encoder: Encoder, layer: OutputLayer) -> None:
        super().__init__()
        check_widths("LanguageModel", encoder, layer)
        self.encoder = encoder
        self.layer = layer

    def loss(
        self,
        ids: Tensor,  # (T, B)
        targets: Tensor,  # (T, B)
        state: State | None = None,
        *,
        ar_weight: float = 2.0,
        tar_weight: float = 1.0,
        adversarial: float = 0.0,
        augmented: float = 0.0,
        augmented_temperature: float = 10.0,
        norm_weight: float = 0.0,
        norm_target: float = 2.0,
        state_reset: float = 0.0,
        **options: Any,
    ) -> Loss:
        """nll + ar_weight * mean(output^2) + tar_weight * mean((raw[t+1] - raw[t])^2).

        Args:
            ids: (T, B), input words.
            targets: (T, B), the words after them.
            state: of the batch before; the initial state by default.
            ar_weight: of the activation regulariser, on the encoder's output after dropout.
            tar_weight: of the temporal regulariser, on its changes between steps before dropout.
            adversarial: epsilon of ``layer.adversarial_nll``; lowers the targets' logits in
                ``total``, not in ``nll``.
            augmented: weight of ``augmented_loss`` with the encoder's embedding.
            augmented_temperature: of that loss.
            norm_weight: of the regulariser of Herold, Gao & Ney (WMT 2018), the distance of the
                norms of the layer's label vectors from ``norm_target``:
                sqrt(sum_v (norm(E_v) - target)^2).
            norm_target: the norm of that regulariser.
            state_reset: probability that a sequence starts from the initial state, not ``state``.
            options: for ``layer.nll``; ``check=False`` avoids waiting for a GPU.

        Returns:
            The loss with the regularisers, the loss to report, and the state for the next batch.
        """
        if state_reset != 0.0:
            state = self._reset(state, ids.shape[1], state_reset)
        encoded: Encoded = self.encoder(ids, state)
        if adversarial == 0.0:
            nll = total = self.layer.nll(encoded.output, targets, **options)
        else:
            tokens = self.layer.adversarial_nll(encoded.output, targets, adversarial, **options)
            nll, total = (losses.mean() for losses in tokens)
        if augmented != 0.0:
            log_probs = self.layer.log_probs(encoded.output)
            E = label_vectors(self.encoder.embedding)
            total = total + augmented * augmented_loss(log_probs, targets, E, augmented_temperature)
        if norm_weight != 0.0:
            norms = self.layer.matrix.label_weight.norm(dim=1)
            total = total + norm_weight * (norms - norm_target).norm()
        if ar_weight != 0.0:
            total = total + ar_weight * upcast(encoded.output).square().mean()
        if tar_weight != 0.0 and encoded.raw.shape[0] > 1:  # the mean over no changes is NaN
            changes = upcast(encoded.raw[1:] - encoded.raw[:-1])
            total = total + tar_weight * changes.square().mean()
        return Loss(total, nll.detach(), self.encoder.detach(encoded.state))

    def _reset(self, state: State | None, batch: int, probability: float) -> State:
        """``state``, with the initial one for sequences drawn with this probability.

        Drawn on the device, and also if there is no state yet: captured steps always have one.
        """
        first = self.initial_state(batch)
        start = torch.rand(batch, device=first[0][0].device) < probability

        def chosen(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(start.view(1, -1, *[1] * (old.dim() - 2)), new, old)

        return map_state(chosen, first if state is None else state, first)

    def forward(
        self, ids: Tensor, targets: Tensor, state: State | None = None, **options: Any
    ) -> Loss:
        """``loss``, for wrappers such as DistributedDataParallel."""
        return self.loss(ids, targets, state, **options)

    def log_probs(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """log p of every label after every step.

        Args:
            ids: (T, B), input words.
            state: of the batch before; the initial state by default.

        Returns:
            log p, (T, B, V), and the state after the last step.
        """
        encoded: Encoded = self.encoder(ids, state)
        return self.layer.log_probs(encoded.output), encoded.state

    def initial_state(self, batch: int) -> State:
        """The state at the start of a text.

        Args:
            batch: number of sequences.

        Returns:
            The state of the encoder.
        """
        return self.encoder.initial_state(batch)

    def kernel_summary(self, batch: int, length: int) -> list[str]:
        """Which kernels train on this many sequences of this length, and why."""
        return [*self.encoder.kernel_summary(batch), *self.layer.kernel_summary(batch * length)]

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """A block with gradients and without dropout; for dynamic evaluation.

        Returns:
            A context manager.
        """
        with restored_modes(self.layer), self.encoder.without_dropout():
            self.layer.eval()
            yield

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that require a gradient.

        Returns:
            Parameters by name; shared ones once.
        """
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def parameter_count(self) -> int:
        """Count ``trained_parameters``.

        Returns:
            The number of their entries.
        """
        return sum(p.numel() for p in self.trained_parameters().values())


def augmented_loss(
    log_probs: Tensor,  # (T, B, V)
    targets: Tensor,  # (T, B)
    E: Tensor,  # (V, d)
    temperature: float,
) -> Tensor:
    """KL(softmax(E e_y / temperature) || softmax(log p / temperature)), the mean over tokens.

    Words with a vector like the target's get a part of its probability (Inan, Khosravi & Socher,
    ICLR 2017). The gradient is that of log p alone.
    """
    with torch.no_grad():
        similarity = (E[targets] @ E.t() / temperature).float().softmax(-1)  # (T, B, V)
    log_q = (log_probs / temperature).log_softmax(-1)
    return nn.functional.kl_div(log_q, similarity.to(log_q.dtype), reduction="none").sum(-1).mean()
