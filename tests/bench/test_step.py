"""The step that is measured is the step of the recipe, for every variant."""

import pytest
import step
import torch
from cases import SIZES, Case, Size

from drill.data import Vocabulary
from drill.language_modeling import build
from drill.training.build import build_optimizer
from drill.training.settings import recipe


@pytest.mark.parametrize("name", step.RECIPES)
def test_sizes_are_those_of_the_recipe(name):
    size, tied = SIZES[name], recipe(step.RECIPES[name][0])
    assert size.width == tied.encoder["embedding_dim"]
    assert size.tokens == tied.training["batch_size"] * tied.training["bptt"]


@pytest.mark.parametrize("name", ["demo-tied", "demo-drill", "ptb-drill-4", "wt2-drill-4"])
def test_a_plain_model_is_ours_where_nothing_is_dropped(name):
    nothing = {key: 0.0 for key in recipe(name).encoder if "drop" in key and key != "dropout_masks"}
    chosen = recipe(name).changed(encoder={**nothing, "embedding_dim": 16, "hidden_size": 24})
    if "dropout" in chosen.layer:
        chosen = chosen.changed(layer={"dropout": 0.0})
    words = Vocabulary(["<eos>", *map(str, range(1, 50))], [1] * 50)
    ours = build.language_model(chosen, words, torch.device("cpu"))
    plain = step.Plain(50, chosen.encoder, chosen.layer)
    ids = torch.randint(50, (8, 3))
    taken = {k: chosen.training[k] for k in ("ar_weight", "tar_weight")}
    with torch.no_grad():
        plain.embedding.weight.copy_(ours.encoder.embedding.weight)
        plain.bias.copy_(ours.layer.bias.normal_())
    plain.lstms.load_state_dict(ours.encoder.lstms.state_dict())
    for hand, learnt in zip(plain.maps, getattr(ours.layer, "maps", ()), strict=True):
        hand.load_state_dict(learnt.linear.state_dict())
    state = [(h.clone(), c.clone()) for h, c in ours.initial_state(3)]
    loss, _ = plain(ids[:-1], ids[1:], state, **taken)
    truth = ours(ids[:-1], ids[1:], ours.initial_state(3), **taken).total
    torch.testing.assert_close(loss, truth)
    loss.backward()
    truth.backward()
    torch.testing.assert_close(
        plain.embedding.weight.grad, ours.encoder.embedding.weight.grad, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", ["demo-drill", "ptb-drill-4"])
def test_a_plain_model_takes_the_step_of_the_optimizer(name):
    """Of AdamW by the same kernel on the same groups, so neither is slower by its options."""
    chosen = recipe(name).changed(encoder={"embedding_dim": 16, "hidden_size": 24})
    table = chosen.optimizer
    made = [step.Plain(50, chosen.encoder, chosen.layer) for _ in "ab"]
    made[1].load_state_dict(made[0].state_dict())
    optimizer = build_optimizer(chosen)
    optimizer.setup(made[0].named_parameters())
    plain = step.plain_optimizer(table, made[1])
    if table["name"] == "adamw":
        assert plain.defaults["fused"] is optimizer.optimizer.defaults["fused"] is True
    ours, theirs = (
        [[(p.shape, group["weight_decay"]) for p in group["params"]] for group in each.param_groups]
        for each in (optimizer.optimizer, plain)
    )
    assert ours == theirs
    for _ in range(3):
        for a, b in zip(made[0].parameters(), made[1].parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for group in plain.param_groups:
            group["lr"] = optimizer.rate(0.5)
        torch.nn.utils.clip_grad_norm_(made[1].parameters(), table["max_grad_norm"])
        optimizer.step(70, 70, 0.5)
        plain.step()
    torch.testing.assert_close(*([*each.parameters()] for each in made))


def test_the_model_of_transformers_is_the_recipes():
    pytest.importorskip("transformers")
    import gpt

    chosen = gpt.settings("medium", "tied", quick=True)
    case = Case("medium", Size(32, 50, 32), "float32", torch.device("cpu"))
    ours = build.language_model(chosen, gpt.vocabulary(50)).train()
    stock = gpt.stock(chosen, case)
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
