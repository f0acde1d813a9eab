"""Encoder and layer together: the loss by hand, the tie, regularisers, adversarial loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.layers import DeepResidual, TiedSoftmax
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from tests.models.lstm_reference import OFF

V, d, H, T, B = 41, 10, 13, 6, 4


def make(dropouts: dict[str, float] | None = None, **options) -> LanguageModel:
    embedding = nn.Embedding(V, d, dtype=torch.float64)
    encoder = AwdLstm(embedding, H, init_range=0.1, **(OFF if dropouts is None else dropouts))
    return LanguageModel(encoder, DeepResidual(embedding, depth=2, **options))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randint(V, (T, B)), torch.randint(V, (T, B))


def test_the_loss_is_cross_entropy_and_three_regularisers_by_hand():
    model, (ids, targets) = make({**OFF, "dropout_output": 0.5}), batch()
    torch.manual_seed(4)
    weights = {"ar_weight": 2.0, "tar_weight": 1.0, "norm_weight": 3.0, "norm_target": 1.5}
    loss = model.loss(ids, targets, **weights)
    torch.manual_seed(4)
    output, raw, _ = model.encoder(ids)
    assert not torch.equal(output, raw)
    logits = output.view(-1, d) @ model.layer.weight.T + model.layer.bias
    nll = F.cross_entropy(logits, targets.flatten())
    small = sum(x.item() ** 2 for x in output.flatten()) / (T * B * d)
    steps = (raw[1:] - raw[:-1]).flatten()
    slow = sum(x.item() ** 2 for x in steps) / ((T - 1) * B * d)
    assert loss.nll.item() == pytest.approx(nll.item(), abs=1e-10)  # reported without the others
    norms = [math.hypot(*row) for row in model.encoder.embedding.weight.tolist()]
    far = math.dist(norms, [1.5] * V)
    assert loss.total.item() == pytest.approx(nll.item() + 2 * small + slow + 3 * far, abs=1e-10)


def test_one_step_changes_by_nothing_and_not_by_nan():
    model, (ids, targets) = make(), batch()
    with_it = model.loss(ids[:1], targets[:1], tar_weight=1.0).total
    without = model.loss(ids[:1], targets[:1], tar_weight=0.0).total
    assert torch.equal(with_it, without)
    assert with_it.isfinite()
    with_it.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_dropped_words_are_not_dropped_as_labels():
    model, (ids, targets) = make({**OFF, "dropout_embedding": 0.9}), batch()
    before = model.layer.weight.detach().clone()
    model.loss(ids, targets).total.backward()
    assert torch.equal(model.layer.weight, before)
    grad = model.encoder.embedding.weight.grad.abs().sum(1)
    assert (grad > 0).all()  # every label is in the softmax, whatever the input lost


def test_without_dropout_reaches_the_layer_and_comes_back():
    dropouts = dict.fromkeys(OFF, 0.5)
    model, (ids, targets) = make(dropouts, dropout=0.5), batch()
    truth = model.eval().loss(ids, targets, ar_weight=0.0, tar_weight=0.0).total
    expected = torch.autograd.grad(truth, list(model.parameters()))
    model.train()
    with model.without_dropout():
        assert all(lstm.training for lstm in model.encoder.lstms)
        loss = model.loss(ids, targets, ar_weight=0.0, tar_weight=0.0).total
        found = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert all(module.training for module in model.modules())
    assert not torch.equal(model.loss(ids, targets).nll, model.loss(ids, targets).nll)


def test_widths_that_do_not_fit_raise():
    embedding = nn.Embedding(V, d)
    with pytest.raises(ValueError, match="hidden_size 10"):
        LanguageModel(AwdLstm(embedding, H, output_size=H), TiedSoftmax(embedding))


def test_lowered_targets_are_minimised_and_not_reported():
    model = make()
    ids, targets = batch()
    plain = model.loss(ids, targets, ar_weight=0.0, tar_weight=0.0)
    assert torch.equal(plain.total, plain.nll)
    assert (plain.total.requires_grad, plain.nll.requires_grad) == (True, False)
    loss = model.loss(ids, targets, ar_weight=0.0, tar_weight=0.0, adversarial=0.1)
    hidden = model.encoder(ids).output
    _, lowered = model.layer.adversarial_nll(hidden, targets, 0.1)
    torch.testing.assert_close(loss.nll, plain.nll)
    torch.testing.assert_close(loss.total, lowered.mean())
    assert loss.total > loss.nll


def test_sequences_are_reset_each_by_its_own_chance(monkeypatch):
    model = make()
    ids, targets = torch.randint(5, (3, 4)), torch.randint(5, (3, 4))
    old = tuple(
        tuple(torch.full_like(tensor, torch.inf) for tensor in layer)
        for layer in model.initial_state(4)
    )
    drawn = torch.tensor([0.1, 0.5, 0.3, 0.29])
    monkeypatch.setattr(torch, "rand", lambda *size, **options: drawn)
    given = []
    model.encoder.register_forward_pre_hook(lambda module, inputs: given.append(inputs[1]))
    model.loss(ids, targets, old, state_reset=0.3)
    for layer in given[0]:
        for tensor in layer:
            zero, kept = tensor[:, [0, 3]], tensor[:, [1, 2]]
            assert zero.eq(0).all()  # of infinities, too
            assert kept.isinf().all()
    assert all(tensor.isinf().all() for layer in old for tensor in layer)
