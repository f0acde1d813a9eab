"""Mixture of softmaxes (Yang et al., 2018) over any matrix layer."""

import abc

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.loss.checks import check_head
from drill.kernels.loss.nll import reduce_losses
from drill.kernels.mixture.mixture_nll import mixture_nll
from drill.kernels.runtime.dropout_masks import draw_mask, masked
from drill.layers.base import MatrixLayer, NotFoldable
from drill.layers.checks import check_fraction, check_integer, init_uniform
from drill.layers.label_source import factory_kwargs
from drill.layers.losses import LossOptions, adversarial_nll, head_log_probs
from drill.layers.wrappers.base import WrappingLayer, blockwise_nll


class Mixture(WrappingLayer):
    """p(y | h) = sum_e pi_e(h) p_layer(y | c_e): K softmaxes of one matrix layer, mixed.

    A layer defines pi and the contexts c_e. The loss does not need K logits tensors: see
    ``drill.kernels.mixture``.
    """

    static_shapes = True
    experts: int  # K

    def __init__(self, layer: MatrixLayer, dropout: float, locked: bool) -> None:
        super().__init__(layer)
        name = type(self).__name__
        self.dropout = check_fraction(name, "dropout", dropout)
        self.locked = locked

    @abc.abstractmethod
    def expert_contexts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """log pi (..., K) and the experts' contexts (..., K, w)."""

    def _experts(self, prior: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """From the logits of pi (..., K) and the contexts before tanh (..., K * w)."""
        log_prior = F.log_softmax(
            prior, dim=-1, dtype=torch.promote_types(prior.dtype, torch.float32)
        )
        contexts = dropped_tanh(latent, self.dropout if self.training else 0.0, self.locked)
        return log_prior, contexts.unflatten(-1, (self.experts, self.layer.hidden_size))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dropout={self.dropout}, locked={self.locked}"

    def context(self, hidden: Tensor) -> Tensor:
        raise NotFoldable(
            f"a mixture of {self.experts} softmaxes has as many contexts; call "
            "layer.expert_contexts(hidden)"
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """``log_probs``: a mixture has no unnormalised scores."""
        return self.log_probs(hidden)

    def log_probs(self, hidden: Tensor) -> Tensor:
        log_prior, contexts, weight = self._read(hidden)
        check_head(type(self).__name__, contexts, weight, self.layer.bias)
        return self._mix((log_prior, contexts), weight)

    def _read(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log pi (..., K), contexts (..., K, k) and the encoded labels (V, k)."""
        log_prior, contexts = self.expert_contexts(hidden)
        return log_prior, self.layer.context(contexts), self.layer.weight

    def _mix(self, inputs: tuple[Tensor, ...], weight: Tensor) -> Tensor:
        """logsumexp over experts, one at a time: a few (..., V) tensors without gradients."""
        log_prior, contexts = inputs
        mixed: Tensor | None = None
        for log_pi, context in zip(log_prior.unbind(-1), contexts.unbind(-2), strict=True):
            part = head_log_probs(context, weight, self.layer.bias) + log_pi[..., None]
            mixed = part if mixed is None else _log_add(mixed, part)
        assert mixed is not None
        return mixed

    def kernel_summary(self, tokens: int) -> list[str]:
        loss = self.layer.loss_kernel_summary(tokens * self.experts, self.vocabulary_size)
        return [*super().kernel_summary(tokens), loss]

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        log_prior, contexts, weight = self._read(hidden)
        if options.label_smoothing:  # needs every label's log-probability, not only the target's
            inputs, copies = (log_prior, contexts), 5 * self.experts
            losses = blockwise_nll(self._mix, inputs, weight, targets, options, copies)
            return reduce_losses(losses, targets, options.reduction, options.ignore_index)
        return mixture_nll(
            log_prior,
            contexts,
            weight,
            targets,
            self.layer.bias,
            reduction=options.reduction,
            ignore_index=options.ignore_index,
            impl=options.impl,
            memory=options.memory,
        )

    def checked_adversarial_nll(
        self, hidden: Tensor, targets: Tensor, epsilon: float, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        log_prior, contexts, weight = self._read(hidden)
        of_experts = targets[..., None].expand(contexts.shape[:-1])  # (..., K)
        losses = adversarial_nll(epsilon, contexts, weight, of_experts, self.layer.bias, options)
        ignored = targets == options.ignore_index
        plain, lowered = (
            torch.where(ignored, 0.0, -torch.logsumexp(log_prior - x, -1)) for x in losses
        )
        return plain, lowered


class MixtureOfSoftmaxes(Mixture):
    """p(y | h) = sum_e pi_e(h) p_layer(y | tanh(W_e h + b_e)): K softmaxes of one matrix layer.

    Breaks the rank limit of a single softmax for K times its cost. Adds d_h*K + (d_h*w + w)*K
    parameters, w being the wrapped layer's hidden_size.

    Args:
        layer: the MatrixLayer that all experts use.
        experts: K.
        hidden_size: d_h; the layer's hidden_size by default.
        dropout: dropout probability of the experts' contexts.
        locked: one mask for all time steps of a hidden of shape (time, batch, d_h).
        init_range: the projections are initialised uniformly in +-init_range.
    """

    def __init__(
        self,
        layer: MatrixLayer,
        experts: int = 15,
        hidden_size: int | None = None,
        *,
        dropout: float = 0.0,
        locked: bool = True,
        init_range: float = 0.1,
    ) -> None:
        super().__init__(layer, dropout, locked)
        name = type(self).__name__
        self.experts = check_integer(name, "experts", experts)
        if hidden_size is not None:
            self.hidden_size = check_integer(name, "hidden_size", hidden_size)
        factory = factory_kwargs(layer.embedding)
        self.prior = nn.Linear(self.hidden_size, self.experts, bias=False, **factory)
        self.latent = nn.Linear(self.hidden_size, self.experts * layer.hidden_size, **factory)
        weights = (self.prior.weight, self.latent.weight)
        init_uniform(name, "init_range", init_range, weights)

    def expert_contexts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.check_hidden(hidden)
        return self._experts(self.prior(hidden), self.latent(hidden))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, experts={self.experts}"


def dropped_tanh(latent: Tensor, dropout: float, locked: bool) -> Tensor:
    """dropout(tanh(latent)); ``locked`` takes one mask for all time steps of three dimensions."""
    if dropout == 0:
        return torch.tanh(latent)
    steps = 1 if locked and latent.dim() == 3 else latent.shape[0]
    return masked(torch.tanh(latent), draw_mask((steps, *latent.shape[1:]), dropout, latent))


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """torch.logaddexp whose gradient is 0, not NaN, where both are -inf (a masked label)."""
    peak = torch.maximum(a, b).detach()
    peak = torch.where(peak == -torch.inf, 0, peak)
    mass = (a - peak).exp() + (b - peak).exp()
    empty = mass == 0
    return torch.where(empty, -torch.inf, peak + torch.where(empty, 1, mass).log())
