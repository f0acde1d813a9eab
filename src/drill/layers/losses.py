"""What every layer computes its losses with: options of ``nll``, and the loss of one matrix.

The adversarial softmax lowers the logit of each target by delta; see ``OutputLayer``.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.kernels.loss.nll import Implementation, Reduction, nll
from drill.kernels.runtime.dispatch import upcast


class LossOptions(NamedTuple):
    """The checked options of ``nll``."""

    reduction: Reduction
    ignore_index: int
    label_smoothing: float
    impl: Implementation
    memory: int
    check: bool


def head_log_probs(context: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """log softmax(context @ weight.T + bias), (..., V), normalised in at least float32."""
    logits = upcast(F.linear(context, weight))
    return F.log_softmax(logits if bias is None else logits + bias, dim=-1)


def head_nll(
    context: Tensor,  # (..., k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
    bias: Tensor | None,  # (V,)
    options: LossOptions,
    sigsoftmax: bool = False,
) -> Tensor:
    """-log softmax(context @ weight.T + bias)[targets], by the kernels of ``nll``."""
    settings = options._replace(check=False)._asdict()
    return nll(context, weight, targets, bias, sigsoftmax=sigsoftmax, **settings)


def adversarial_nll(
    epsilon: float,
    context: Tensor,  # (..., k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
    bias: Tensor | None,  # (V,)
    options: LossOptions,
) -> tuple[Tensor, Tensor]:
    """``head_nll`` per token, as it is and with the logits of the targets lowered."""
    losses = head_nll(context, weight, targets, bias, options)
    delta = adversarial_delta(epsilon, context, target_rows(weight, targets))
    return losses, nll_with_lowered_target(losses, delta)


def nll_with_lowered_target(
    losses: Tensor,  # (...), -log p(target)
    delta: Tensor,  # (...), at least 0
) -> Tensor:  # (...)
    """-log p(target) with the logit of the target lowered by ``delta``.

    With p = exp(-nll):  nll' = nll + delta + log((1 - p) + p exp(-delta)). Both terms of the sum
    are positive, so nothing cancels.
    """
    return losses + delta + torch.log(torch.exp(-losses - delta) - torch.expm1(-losses))


@torch.no_grad()
def adversarial_delta(
    epsilon: float,
    context: Tensor,  # (..., k)
    rows: Tensor,  # (..., k), the vectors of the targets
) -> Tensor:  # (...)
    """epsilon |w_y| |context|, in at least float32."""
    return epsilon * upcast(rows).norm(dim=-1) * upcast(context).norm(dim=-1)


def target_rows(weight: Tensor, targets: Tensor) -> Tensor:
    """(V, ...) -> (..., ...): the row of each target; any for targets that are no labels."""
    known = targets.reshape(-1).clamp(0, weight.shape[0] - 1)  # tokens of others have no loss
    return weight.index_select(0, known).view(*targets.shape, *weight.shape[1:])
