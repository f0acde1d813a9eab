"""The step that is measured is the step of the recipe, for both contestants."""

import sys
from pathlib import Path

import pytest
import torch

from drill import build
from drill.config import recipe

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def step(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import step

    yield step
    for name in ("step", "setting", "table", "timing"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["demo", "ptb"])
def test_both_contestants_are_the_recipe(step, name, monkeypatch):
    from setting import SIZES, Setting

    made, built = [], []
    monkeypatch.setattr(step, "Plain", spy(step.Plain, made))
    monkeypatch.setattr(step.build, "language_model", spy(build.language_model, built))
    size = SIZES[name]
    few = size._replace(labels=50, tokens=80)
    setting = Setting(name, few, "float32", torch.device("cpu"))
    tied, deep = (recipe(each) for each in step.RECIPES[name])
    training = tied.training
    assert size.width == tied.encoder["width"]
    assert size.tokens == training["batch_size"] * training["bptt"]
    plain, *ours = step.contestants(setting).values()
    for prepare in (plain, *ours):
        assert torch.isfinite(prepare()()[0])
    assert made[0][0] == (50, tied.encoder)
    more = [] if name == "demo" else [recipe(step.RECIPES[name][0], step.MIXTURE)]
    assert [arguments[0] for arguments, _ in built] == [tied, deep, *more]
    # The tied model has the same parameters but for the names.
    counts = [sum(p.numel() for p in model.parameters()) for _, model in (made[0], built[0])]
    assert counts[0] == counts[1]
    kind = {"adamw": torch.optim.AdamW, "nt-asgd": torch.optim.SGD}[tied.optimizer["name"]]
    assert type(step.plain_optimizer(tied.optimizer, made[0][1])) is kind


def spy(call, seen: list):
    def called(*arguments):
        seen.append((arguments[:2], call(*arguments)))
        return seen[-1][1]

    return called
