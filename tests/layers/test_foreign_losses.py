"""A loss that knows nothing of this package and reads ``head.weight`` and ``head.bias``."""

import pytest
import torch
import torch.nn.functional as F

from tests.layers.table import CASES, batch, every_matrix_case, given, gradients, make

has_chunks = hasattr(F, "linear_cross_entropy") and hasattr(torch.nn, "LinearCrossEntropyOptions")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "chunks",
    [None, pytest.param(3, marks=pytest.mark.skipif(not has_chunks, reason="not in this torch"))],
)
@every_matrix_case
def test_a_loss_over_weight_and_bias_trains_every_parameter(name, chunks, training):
    layer = make(name, torch.float64).train(training)
    hidden, targets = batch(layer, 7)
    torch.manual_seed(0)
    truth = layer.nll(hidden, targets)
    torch.manual_seed(0)
    context, weight = layer.context(hidden), layer.weight
    if chunks is None:
        found = F.cross_entropy(F.linear(context, weight, layer.bias), targets)
    else:
        options = torch.nn.LinearCrossEntropyOptions(
            batch_chunk_size=chunks, allow_retain_graph=True
        )
        found = F.linear_cross_entropy(
            context, weight, targets, linear_bias=layer.bias, options=options
        )
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(gradients(found, layer, hidden), gradients(truth, layer, hidden))


@every_matrix_case
def test_only_the_dual_map_moves_the_hidden_states(name):
    layer, hidden, _ = given(name, 3)
    assert (layer.context(hidden) is hidden) == (CASES[name].layer != "dual")
