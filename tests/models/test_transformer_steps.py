"""A Transformer step by step is the whole decoded."""

import pytest
import torch

from drill.models.transformer.decoding_cache import STEPS_AT_ONCE
from tests.models.small_transformers import B, S, T, both_norms, ids, make, ragged


@both_norms
@pytest.mark.parametrize("room", [None, STEPS_AT_ONCE + 6], ids=["growing", "fixed"])
@torch.no_grad()
def test_steps_are_the_whole_decoded(norm, room):
    model, source, length = make(norm, shared=False), ragged(S), STEPS_AT_ONCE + 3
    target = ids(B, length)
    memory = model.encode(source)
    cache = model.start(memory, room=room)
    steps = torch.stack([model.step(target[:, t], cache) for t in range(length)], dim=1)
    assert cache.length == length
    torch.testing.assert_close(steps, model.decode(target, memory), rtol=0, atol=1e-11)


@pytest.mark.parametrize("room", [None, STEPS_AT_ONCE + 6], ids=["growing", "fixed"])
@torch.no_grad()
def test_hypotheses_are_reordered_and_sentences_left_behind(room):
    model, K = make(), 4
    memory = model.encode(ragged(S))
    prefixes = ids(B * K, 3)
    cache = model.start(memory, hypotheses=K, room=room)
    for t in range(3):
        model.step(prefixes[:, t], cache)
    rows = torch.tensor([1, 1, 0, 3, 7, 4, 4, 4, 8, 9, 11, 8])  # each within its sentence
    for _ in range(STEPS_AT_ONCE):
        cache.reorder(rows)
        following = ids(B * K, 1)
        prefixes = torch.cat([prefixes[rows], following], dim=1)
        found = model.step(following[:, 0], cache)
        rows = rows.roll(1).view(B, K).sort(0).values.flatten() % K + rows // K * K
    assert cache.length > STEPS_AT_ONCE
    whole = model.decode(prefixes, memory.repeat(K))[:, -1]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-11)

    cache.select(torch.tensor([2, 0]))
    kept = [*range(8, 12), *range(4)]
    last = ids(2 * K, 1)
    found = model.step(last[:, 0], cache)
    prefixes = torch.cat([prefixes[kept], last], dim=1)
    left = type(memory)(memory.states[[2, 0]], memory.mask[[2, 0]])
    whole = model.decode(prefixes, left.repeat(K))[:, -1]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@torch.no_grad()
def test_steps_keep_the_precision_of_autocast():
    model, source, target = make().float().eval(), ids(B, S), ids(B, T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = model.encode(source)
        cache = model.start(memory)
        steps = torch.stack([model.step(target[:, t], cache) for t in range(T)], dim=1)
        whole = model.decode(target, memory)
    torch.testing.assert_close(steps, whole, rtol=0.05, atol=0.05)


def test_steps_with_gradients_raise():
    model = make()
    cache = model.start(model.encode(ids(1, S)))
    with pytest.raises(RuntimeError, match=r"under torch.no_grad\(\), or all at once to train"):
        model.step(torch.ones(1, dtype=torch.int64), cache)
