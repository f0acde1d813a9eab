"""The rank of the log-probabilities: exact on models small enough to know it."""

import pytest
import torch
from torch import nn

from drill.layers import (
    DeepResidual,
    DualNonlinear,
    FullSoftmax,
    MatrixLayer,
    MixtureOfSoftmaxes,
    TiedSoftmax,
)
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.report.analysis.log_prob_rank import log_prob_rank

V, D = 30, 4


@pytest.mark.parametrize(
    ("build", "rank"),
    [
        (lambda e: TiedSoftmax(e), D + 2),
        (lambda e: TiedSoftmax(e, bias=False), D + 1),
        (lambda e: FullSoftmax(V, D), D + 2),
        (lambda e: DeepResidual(e, depth=2), D + 2),
        (lambda e: DualNonlinear(e, joint_size=7), 9),
        (lambda e: MixtureOfSoftmaxes(TiedSoftmax(e), experts=3), V),
    ],
    ids=["tied", "tied without bias", "full", "deep residual", "dual", "mixture"],
)
def test_one_softmax_has_rank_d_plus_2_and_a_mixture_has_not(build, rank):
    embedding = nn.Embedding(V, D)
    layer = build(embedding)
    model = LanguageModel(AwdLstm(embedding, 8, 2), layer)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.uniform_(-5.0, 5.0, generator=generator)
    ids = torch.randint(V, (200,), generator=generator)
    found = log_prob_rank(model, ids, batch_size=2, bptt=7)
    assert (found.tokens, found.labels) == (198, V)
    assert model.training  # as it was
    assert model.encoder.embedding is embedding
    assert embedding.weight.dtype == torch.float32
    assert found.relative == rank
    assert D < found.absolute <= rank
    assert found.bound == (layer.joint_size + 2 if isinstance(layer, MatrixLayer) else None)
