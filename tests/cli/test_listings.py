"""`drill recipes`, `drill settings` and the counts of `drill data`."""

import itertools
import re
from pathlib import Path

import pytest

from drill.cli.listings import _length, descriptions, setting_rows
from drill.layers import LAYERS
from drill.recipes import reader
from drill.recipes.reader import read, recipe_names
from drill.training.optim import OPTIMIZERS
from drill.training.settings import flatten, recipe


def test_recipes_lists_every_one(cli_output):
    out = cli_output("recipes")
    lines = out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(named) == recipe_names()
    assert "wmt14-drill                   350,000 steps" in out
    assert "ptb-fast-drill-4              5 minutes" in out


def test_no_two_recipes_have_one_name():
    names = [path.stem for path in Path(reader.__file__).parent.rglob("[!_]*.toml")]
    assert sorted(names) == recipe_names()


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_state_the_length_that_is_listed(name):
    """The list is read without defaults, which would need torch."""
    assert _length(read(name)["training"]) == _length(recipe(name).training)


@pytest.mark.parametrize("name", ["ptb-mos-drill", "mt-demo", "tiny.toml", "runs/tiny"])
def test_settings_is_a_recipe(cli_output, workspace, name):
    out = cli_output("settings", name, "--set", "training.epochs=7")
    (workspace / "printed.toml").write_text(out)
    path = "runs/tiny/recipe.toml" if name == "runs/tiny" else name
    wanted = recipe(path, ["training.epochs=7"])
    assert recipe("printed.toml").tables() == wanted.tables()
    remarks = [line.partition("  # ")[2] for line in out.splitlines() if " = " in line]
    assert sum(map(bool, remarks)) == len(flatten(wanted.tables()))
    assert any(each.startswith("number of epochs [an integer]") for each in remarks)


def test_settings_show_a_default_that_is_changed(cli_output):
    out = cli_output("settings", "demo-drill")
    assert re.search(r"^depth = 2 +# number of label maps \[an integer\]; default 4$", out, re.M)
    assert re.search(r"^residual = true +# .* \[true or false\]$", out, re.M)


def test_every_setting_has_a_description_and_none_is_left_over():
    described = set()
    changes = [[f"layer.name={name}"] for name in LAYERS if name != "adaptive"]
    changes += [["layer.name=adaptive", "layer.cutoffs=[2]"]]
    changes += [[f"optimizer.name={name}"] for name in OPTIMIZERS]
    changes += [["optimizer.name=adamw", "optimizer.schedule=inverse-sqrt"]]
    recipes = ("demo-tied", "gpt-demo", "ptb-rhn-tied", "mt-demo-tied")
    for name, each in itertools.product(recipes, changes):
        for row in setting_rows(recipe(name, each)):
            assert row.description, row.key
            described.add(row.key.replace(".inner.", "."))
    known = {f"{table}.{key}" for table, keys in descriptions().items() for key in keys}
    assert described == known


def test_data_counts_a_corpus(cli_output):
    out = cli_output("data", "text")
    assert out.startswith("text: 7 words; tokens train 1,800  valid 240  test 240\n")


def test_data_counts_unknown_words(cli_output, workspace):
    """Ten lines: the last is the test, the one before validation."""
    lines = ["odd a a b b c", *["a a b b c"] * 7, "a b", "a b c new"]
    (workspace / "rare.txt").write_text("\n".join(lines) + "\n")
    out = cli_output("data", "rare.txt", "--min-count", "3")
    assert "2.0% of the training tokens, 20.0% of the test tokens" in out
