"""The model of transformers that is timed is the recipe's."""

import pytest
import torch
from setting import Setting, Size

from drill.language_modeling import build

pytest.importorskip("transformers")
import gpt


def test_both_sides_are_one_model():
    chosen = gpt.settings("medium", "tied", quick=True)
    setting = Setting("medium", Size(32, 50, 32), "float32", torch.device("cpu"))
    ours = build.language_model(chosen, gpt.vocabulary(50)).train()
    stock = gpt.stock(chosen, setting)
    assert stock.lm_head.weight is stock.model.embed_tokens.weight
    stock.model.embed_tokens.weight = ours.encoder.embedding.weight
    stock.tie_weights()
    missing = stock.model.load_state_dict(ours.encoder.body.state_dict(), strict=False)
    assert missing.missing_keys == ["embed_tokens.weight"]
    ids = torch.randint(50, (17, 2))
    loss = ours(ids[:-1], ids[1:], ar_weight=0.0, tar_weight=0.0).total
    logits = stock(input_ids=ids[:-1].t()).logits
    theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:].t().flatten())
    torch.testing.assert_close(loss, theirs)
