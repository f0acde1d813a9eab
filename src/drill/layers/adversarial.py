"""Adversarial softmax: in training the logit of the target is lowered, within a bound.

    nll' = -log softmax(l - delta onehot(y))[y],    delta = epsilon |w_y| |h|

That is the worst that a change of w_y by at most epsilon |w_y| can do to the target (Wang, Gong &
Liu, ICML 2019). delta is a constant for the gradient.
"""

import torch
from torch import Tensor


def with_lowered_target(
    losses: Tensor,  # (...), -log p(target)
    delta: Tensor,  # (...), at least 0
) -> Tensor:  # (...)
    """-log p(target) once the logit of the target is lowered by ``delta``.

    With p = exp(-nll):  nll' = nll + delta + log((1 - p) + p exp(-delta)). Both terms of the sum
    are positive, so nothing cancels.
    """
    return losses + delta + torch.log(torch.exp(-losses - delta) - torch.expm1(-losses))


@torch.no_grad()
def bound(
    epsilon: float,
    context: Tensor,  # (..., k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
) -> Tensor:  # (...)
    """delta = epsilon |w_y| |h|, in at least float32."""
    known = targets.reshape(-1).clamp(0, weight.shape[0] - 1)  # others have no loss either
    rows = _norms(weight.index_select(0, known)).view(targets.shape)
    return epsilon * rows * _norms(context)


def _norms(x: Tensor) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    return torch.linalg.vector_norm(x, dim=-1, dtype=exact)
