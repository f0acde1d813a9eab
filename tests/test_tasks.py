"""drill.train and drill.load, for whichever task."""

import pytest

import drill
from drill.language_modeling.run import LanguageModelRun
from drill.translation.run import TranslationRun
from tests.tiny_place import make_place
from tests.tiny_translation_place import SMALL, write_pairs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = make_place(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    return folder


def test_a_language_model(here):
    recipe = drill.Recipe("tiny.toml", ["training.epochs=1"])
    outcome = drill.train(recipe, "runs/my", device="cpu", quiet=True)
    run = drill.load("runs/my", device="cpu")
    assert isinstance(run, LanguageModelRun)
    assert run.perplexity("test") == outcome.test
    assert run.perplexity("valid") == outcome.valid
    text = run.generate("the boat", max_new_tokens=4, seed=1)
    assert text.startswith("the boat")
    assert text == run.generate("the boat", max_new_tokens=4, seed=1)
    assert [scored.tokens for scored in run.score(["the boat", "lit"])] == [3, 2]


def test_a_translator(here):
    recipe = drill.Recipe("mt-demo", ["data.corpus=pairs", *SMALL])
    outcome = drill.train(recipe, "runs/mt", device="cpu", quiet=True)
    run = drill.load("runs/mt", device="cpu")
    assert isinstance(run, TranslationRun)
    assert run.bleu("test") == outcome.test.scores
    text, _ = run.split("test")
    assert run.translate(text.source) == list(outcome.test.hypotheses)
    assert len(run.translate(["ab", ""], beam_size=1)) == 2


def test_weights_can_be_chosen(here):
    assert drill.load("runs/tiny", device="cpu").weights == "best"
    assert drill.load("runs/tiny", weights="last", device="cpu").weights == "last"
