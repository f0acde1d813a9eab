"""Train with shared labels first, then with a matrix of its own.

W = g_out(E) when the share ``training.untie_at`` of a run is done; from there on W is free. Over
the tied layer this is "tie, then untie"; over a deep residual layer it folds the label maps.
"""

import torch

from drill.layers import FullSoftmax, MatrixLayer, OutputLayer


def check_untie(layer: OutputLayer) -> None:
    """Raise ValueError for a layer that no matrix continues."""
    if not isinstance(layer, MatrixLayer) or type(layer).context is not MatrixLayer.context:
        raise ValueError(
            "untie_at is for layers of one matrix that read the hidden state as it is, not for "
            f"{type(layer).__name__}; leave it out"
        )


@torch.no_grad()
def untied(layer: OutputLayer) -> FullSoftmax:
    """A layer with the same logits and a matrix of its own."""
    check_untie(layer)
    head = layer.fold()
    free = FullSoftmax(head.out_features, head.in_features, bias=head.bias is not None)
    free = free.to(head.weight).train(layer.training)
    free.label_weight.copy_(head.weight)
    if free.bias is not None:
        free.bias.copy_(head.bias)
    return free
