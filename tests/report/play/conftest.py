from pathlib import Path

import pytest

from drill.language_modeling.run import load_language_model
from drill.report.play.answers import LanguageModelPlayer, TranslatorPlayer
from drill.tasks import train
from drill.training.settings import recipe
from drill.translation.run import load_translator
from tests.helpers.workspaces import RECIPE, inside, pairs_workspace, text_workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    """A folder with the runs tiny and tied, language models of one text."""
    folder = text_workspace(tmp_path_factory.mktemp("workspace"))
    with inside(folder):
        text = RECIPE.replace("deep-residual", "tied").replace("depth = 2\n", "")
        (folder / "tied.toml").write_text(text)
        settings = recipe("tied.toml", ["training.epochs=1"])
        assert train(settings, "runs/tied", device="cpu", quiet=True).finished
    return folder


@pytest.fixture(scope="session")
def translator_workspace(tmp_path_factory) -> Path:
    """A folder with the translator runs/tiny."""
    return pairs_workspace(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def models(workspace) -> list[LanguageModelPlayer]:
    return [
        LanguageModelPlayer(name, load_language_model(workspace / "runs" / name, device="cpu"))
        for name in ("tied", "tiny")
    ]


@pytest.fixture(scope="session")
def subword_workspace(tmp_path_factory) -> Path:
    """A folder with the runs subwords and other, language models with two tokenizers."""
    pytest.importorskip("tokenizers")
    folder = text_workspace(tmp_path_factory.mktemp("subwords"))
    with inside(folder):
        for name, size in (("subwords", 266), ("other", 262)):
            changes = ["training.epochs=1", f"data.tokenizer={size}"]
            train(recipe("tiny.toml", changes), f"runs/{name}", device="cpu", quiet=True)
    return folder


@pytest.fixture(scope="session")
def subword_models(subword_workspace) -> list[LanguageModelPlayer]:
    folder = subword_workspace / "runs/subwords"
    return [
        LanguageModelPlayer(weights, load_language_model(folder, weights, "cpu"))
        for weights in ("best", "last")
    ]


@pytest.fixture(scope="session")
def translators(translator_workspace) -> list[TranslatorPlayer]:
    return [
        TranslatorPlayer(
            weights, load_translator(translator_workspace / "runs/tiny", weights, "cpu")
        )
        for weights in ("best", "last")
    ]
