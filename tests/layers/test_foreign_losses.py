"""A loss that knows nothing of this package and reads ``head.weight`` and ``head.bias``."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.layers.table import CASES, batch, every_matrix_case, gradients, make


class FusedCrossEntropy(torch.autograd.Function):
    """Makes the gradients in the forward pass, a few rows at a time, as fused losses do."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets):  # type: ignore[no-untyped-def]
        loss = hidden.new_zeros(())
        grads = torch.zeros_like(hidden), torch.zeros_like(weight), weight.new_zeros(len(weight))
        for rows in torch.arange(len(hidden)).split(2):
            logits = hidden[rows] @ weight.T
            p = (logits if bias is None else logits + bias).softmax(-1)
            loss -= p[torch.arange(len(rows)), targets[rows]].log().sum()
            p[torch.arange(len(rows)), targets[rows]] -= 1
            grads[0][rows] = p @ weight
            grads[1].add_(p.T @ hidden[rows])
            grads[2].add_(p.sum(0))
        ctx.save_for_backward(*grads)
        ctx.biased = bias is not None
        return loss / len(hidden)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        for_hidden, for_weight, for_bias = (
            saved * grad / len(ctx.saved_tensors[0]) for saved in ctx.saved_tensors
        )
        return for_hidden, for_weight, for_bias if ctx.biased else None, None


def fused_loss(head, hidden: Tensor, targets: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    return FusedCrossEntropy.apply(hidden, head.weight, head.bias, targets)


def trains_the_same(layer, hidden: Tensor, found: Tensor, truth: Tensor) -> None:  # type: ignore[no-untyped-def]
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(gradients(found, layer, hidden), gradients(truth, layer, hidden))


@pytest.mark.parametrize("training", [False, True])
@every_matrix_case
def test_a_fused_loss_over_weight_and_bias_trains_every_parameter(name, training):
    layer = make(name, torch.float64).train(training)
    hidden, targets = batch(layer, 7)
    torch.manual_seed(0)
    truth = layer.nll(hidden, targets)
    torch.manual_seed(0)
    trains_the_same(layer, hidden, fused_loss(layer, layer.context(hidden), targets), truth)


@every_matrix_case
def test_only_the_dual_map_moves_the_hidden_states(name):
    layer = make(name)
    hidden, _ = batch(layer, 3)
    assert (layer.context(hidden) is hidden) == (CASES[name].layer != "dual")


linear_cross_entropy = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this torch has no F.linear_cross_entropy"
)


@linear_cross_entropy
@every_matrix_case
def test_torchs_own_linear_cross_entropy_trains_every_parameter(name):
    layer = make(name, torch.float64)
    hidden, targets = batch(layer, 7)
    found = F.linear_cross_entropy(
        layer.context(hidden), layer.weight, targets, linear_bias=layer.bias
    )
    trains_the_same(layer, hidden, found, layer.nll(hidden, targets))


@linear_cross_entropy
@pytest.mark.skipif(
    not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="this torch has no chunked one"
)
@every_matrix_case
def test_torchs_chunked_linear_cross_entropy_trains_every_parameter(name):
    layer = make(name, torch.float64)
    hidden, targets = batch(layer, 7)
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=3, allow_retain_graph=True)
    found = F.linear_cross_entropy(
        layer.context(hidden), layer.weight, targets, linear_bias=layer.bias, options=options
    )
    trains_the_same(layer, hidden, found, layer.nll(hidden, targets))
