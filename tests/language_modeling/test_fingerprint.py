"""Fingerprints: equal for equal models and texts, different for any difference that counts."""

import torch

from drill.language_modeling.fingerprint import text_fingerprint, weights_fingerprint
from tests.language_modeling.models import every_layer, language_model


@every_layer
def test_equal_models_have_one_fingerprint_in_any_mode(name):
    first, second = language_model(name), language_model(name)
    assert weights_fingerprint(first) == weights_fingerprint(second.eval())
    assert weights_fingerprint(first) != weights_fingerprint(language_model(name, seed=1))


@every_layer
def test_the_smallest_change_of_any_parameter_shows(name):
    model = language_model(name)
    before = weights_fingerprint(model)
    for parameter in model.parameters():
        held = parameter.detach().clone()
        flat = parameter.data.view(-1)
        flat[-1] = torch.nextafter(flat[-1], flat.new_tensor(torch.inf))
        assert weights_fingerprint(model) != before
        parameter.data.copy_(held)
    assert weights_fingerprint(model) == before


def test_what_a_layer_does_with_its_weights_counts_too():
    names = ("deep residual 2", "deep residual relu", "deep residual without map bias")
    assert len({weights_fingerprint(language_model(name)) for name in names}) == 3


def test_dtype_and_order_of_the_numbers_count():
    model = language_model(dtype=torch.float32)
    halves = [weights_fingerprint(model.to(dtype)) for dtype in (torch.bfloat16, torch.float16)]
    assert len(set(halves)) == 2


def test_a_text_is_its_ids_and_its_columns():
    ids = torch.arange(12)
    prints = {text_fingerprint(ids.view(shape)) for shape in ((12, 1), (6, 2), (4, 3))}
    assert len(prints) == 3
    assert text_fingerprint(ids.view(12, 1)) == text_fingerprint(torch.arange(12).view(12, 1))
    assert text_fingerprint(ids.view(12, 1)) not in text_fingerprint(ids.flip(0).view(12, 1))
