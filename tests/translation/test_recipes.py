"""The recipes of translators: what they hold, and what no recipe can hold."""

import pytest
import torch

from drill.errors import SettingsError
from drill.recipes.reader import recipe_names
from drill.training.settings import TRANSLATION, recipe
from drill.translation.build import translator

CORPORA = ("wmt14", "europarl", "europarl-big", "multi30k")
TRANSLATIONS = [name for name in recipe_names() if recipe(name).task == TRANSLATION]


def test_there_is_a_recipe_for_every_corpus_and_layer():
    wanted = {f"{corpus}-{layer}" for corpus in CORPORA for layer in ("tied", "dual", "drill")}
    assert set(TRANSLATIONS) == wanted | {"mt-demo", "mt-demo-tied"}


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_recipes_of_one_corpus_differ_in_their_layer_alone(name):
    corpus, _, _ = name.rpartition("-")
    settings = recipe(name)
    if corpus in CORPORA:
        differing = recipe(f"{corpus}-tied").differences(settings)
        assert all(each.startswith("layer.") for each in differing)
    assert settings.data["corpus"] in ("wmt14", "europarl", "multi30k", "numbers")


@pytest.mark.parametrize("corpus", CORPORA)
def test_dual_layer_is_as_strong_as_ours(corpus):
    """What it is compared with decides what a comparison says."""
    dual, ours = (recipe(f"{corpus}-{each}").layer for each in ("dual", "drill"))
    assert (dual["activation"], dual["residual"]) == (ours["activation"], True)


def test_papers_model_has_the_papers_size():
    """Encoder and decoder as published; 79.4M parameters mean about 68.9K rows of embeddings."""
    counts = {}
    for name in ("wmt14-tied", "wmt14-drill"):
        with torch.device("meta"):
            model = translator(recipe(name), 34_450, list, "meta")
        assert model.transformer.source_embedding is not model.transformer.target_embedding
        assert model.layer.label_weight is model.transformer.target_embedding.weight
        counts[name] = model.parameter_count()
    assert counts["wmt14-drill"] - counts["wmt14-tied"] == 525_312
    assert counts["wmt14-tied"] == 44_140_544 + 2 * 34_450 * 512 + 34_450
    rate = recipe("wmt14-drill").optimizer
    assert rate["lr"] == pytest.approx(2 * (512 * 8000) ** -0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("encoder.preset=tinny", "did you mean tiny?"),
        ("encoder.shared=1", "must be true or false, got 1"),
        ("subwords.sice=10", "did you mean subwords.size?"),
        ("filters.ratio=0.5", "must be at least 1, got 0.5"),
        ("training.average_checkpoints=0", "must be at least 1, got 0"),
        ("training.gradient_accumulation_steps=0", "must be at least 1, got 0"),
        ("training.label_smoothing=1", "must be in [0, 1), got 1.0"),
        ("training.length_penalty=inf", "must be a finite number, got inf"),
        ("training.bptt=3", "unknown setting"),
        ("optimizer.average_from=0.5", "is for language models"),
    ],
)
def test_wrong_setting_is_named(change, fault):
    with pytest.raises(SettingsError) as caught:
        recipe("mt-demo", [change])
    assert str(caught.value).startswith(f"{change.partition('=')[0]}: ")
    assert fault in str(caught.value)


def test_table_of_translation_is_none_of_a_language_model():
    with pytest.raises(SettingsError, match="subwords: unknown table"):
        recipe("demo-drill", ["subwords.size=300"])
