"""Label smoothing for layers whose log-probabilities are no single matrix product."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from drill.kernels.loss.nll import token_losses

MOST_ROWS = 256
"""Tokens whose (rows, V) log-probabilities are in memory at once, at most."""


def smoothed_nll(
    log_probs: Callable[..., Tensor],  # (*inputs, weight) -> (rows, V)
    inputs: tuple[Tensor, ...],  # each (..., anything), one row per token
    weight: Tensor,  # (V, k), handed to log_probs behind the inputs
    targets: Tensor,  # (...)
    *,
    ignore_index: int,
    label_smoothing: float,
    memory: int,
    copies: int,  # (rows, V) tensors that log_probs and its gradient keep at once
) -> Tensor:  # (...), 0 where ignored
    """(1 - s) * -log p(target) + s * mean over labels of -log p, a few rows at a time.

    Each block of rows is computed again in backward, so ``memory`` bounds it, down to one row.
    """
    height = max(1, min(MOST_ROWS, memory // (4 * copies * weight.shape[0])))
    lead = targets.dim()
    flat = targets.reshape(-1)
    rows = [x.reshape(-1, *x.shape[lead:]) for x in inputs]

    def block(targets: Tensor, *parts: Tensor) -> Tensor:
        # log-probabilities are logits of themselves: log_softmax leaves them as they are.
        return token_losses(log_probs(*parts), targets, ignore_index, label_smoothing)

    # At least one block, so that a batch without tokens reaches every parameter all the same.
    losses = [
        checkpoint(
            block,
            flat[i : i + height],
            *(x[i : i + height] for x in rows),
            weight,
            use_reentrant=False,
        )
        for i in range(0, max(1, flat.shape[0]), height)
    ]
    return torch.cat(losses).view(targets.shape)
