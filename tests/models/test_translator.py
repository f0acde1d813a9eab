"""Transformer and layer together: the loss by hand, padding, the tie, micro-batches, any layer."""

import pytest
import torch
from torch import Tensor, nn

from drill.layers import DeepResidual, FullSoftmax, MixtureOfSoftmaxes, TiedSoftmax
from drill.models import Transformer
from drill.models.translator import Translator
from tests.models.small_transformers import PAD

V, d, B, S, T = 37, 8, 4, 6, 5
SIZES = {"layers": 1, "heads": 2, "feedforward": 16}


def make(layer=DeepResidual, dropout: float = 0.0, dtype=torch.float64) -> Translator:
    embedding = nn.Embedding(V, d, dtype=dtype)
    transformer = Transformer(embedding, dropout=dropout, init_embeddings=True, **SIZES)
    return Translator(transformer, layer(embedding))


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Rows of unequal lengths, filled up with PAD."""
    source, target = torch.randint(1, V, (B, S)), torch.randint(1, V, (B, T + 1))
    for i in range(B):
        source[i, S - i :] = PAD
        target[i, T + 1 - i :] = PAD
    return source, target[:, :-1], target[:, 1:].clone()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_smoothed_cross_entropy_over_real_tokens_by_hand(smoothing):
    model, (source, target_in, target_out) = make(), batch()
    hidden = model.transformer(source, target_in)
    log_p = torch.log_softmax(hidden @ model.layer.weight.T + model.layer.bias, dim=-1)
    losses = []
    for b in range(B):
        for t in range(T):
            y = int(target_out[b, t])
            if y != PAD:
                hit, all_alike = -log_p[b, t, y], -log_p[b, t].mean()
                losses.append((1 - smoothing) * hit + smoothing * all_alike)
    found = model.loss(source, target_in, target_out, label_smoothing=smoothing)
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.log_probs(source, target_in), log_p, rtol=0, atol=1e-12)


def test_the_loss_never_asks_for_logits(monkeypatch):
    model, rows = make(), batch()

    for name in ("logits", "log_probs"):
        monkeypatch.setattr(DeepResidual, name, lambda *_: pytest.fail("logits of all labels"))
    model.loss(*rows).backward()


def test_a_locked_dropout_of_the_layer_is_shared_over_time_not_over_sentences(calls_of):
    model = make(lambda e: MixtureOfSoftmaxes(TiedSoftmax(e), 2, dropout=0.5))
    calls = calls_of(model.layer, "expert_contexts")
    model.loss(*batch())
    ((_, contexts),) = (call.result for call in calls)
    lost = contexts == 0  # (T, B, K, w)
    assert lost.shape[:2] == (T, B)
    assert (lost == lost[:1]).all()
    assert not (lost == lost[:, :1]).all()


def test_separate_vocabularies_tie_the_target_alone():
    source, target = nn.Embedding(50, d), nn.Embedding(V, d)
    model = Translator(Transformer(source, target, **SIZES), TiedSoftmax(target))
    assert model.layer.label_weight is target.weight
    rows = batch()
    model.loss(*rows).backward()
    assert (target.weight.grad.abs().sum(1) > 0).all()  # every label is in the softmax
    read = set(rows[0].flatten().tolist()) - {PAD}
    assert set((source.weight.grad.abs().sum(1) > 0).nonzero().flatten().tolist()) == read


def test_what_is_frozen_is_not_counted():
    model = make()
    whole = model.parameter_count()
    model.transformer.source_embedding.weight.requires_grad_(False)
    assert model.parameter_count() == whole - V * d


def test_parts_that_do_not_fit_raise():
    embedding = nn.Embedding(V, d)
    transformer = Transformer(embedding, **SIZES)
    with pytest.raises(ValueError, match="hidden_size"):
        Translator(transformer, FullSoftmax(embedding, 5))
    with pytest.raises(ValueError, match="9 labels"):
        Translator(transformer, FullSoftmax(9, d))
    source, target_in, target_out = batch()
    with pytest.raises(ValueError, match="targets"):
        make().loss(source, target_in, target_out[:, 1:])
