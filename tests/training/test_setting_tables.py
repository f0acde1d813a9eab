"""The tables of settings in the docs have the names and defaults of the code."""

import inspect
import re
from pathlib import Path

import pytest

from drill.training.optim import Sgd
from drill.training.options import LanguageModelOptions, TranslationOptions

DOCS = Path(__file__).parents[2] / "docs"
BY_OTHERS = {"`seed`": None}  # a default that another setting gives


@pytest.mark.parametrize(
    ("page", "head", "of"),
    [
        ("language-models.md", "setting", LanguageModelOptions),
        ("language-models.md", "setting of `sgd`", Sgd),
        ("translation.md", "setting", TranslationOptions),
    ],
    ids=["language model", "sgd", "translator"],
)
def test_settings_and_their_defaults_are_those_of_the_docs(page, head, of):
    text = (DOCS / page).read_text()
    table = text.split(f"| {head} | default | meaning |\n|---|---|---|\n")[1]
    documented = {}
    for line in table.split("\n\n")[0].splitlines():
        names, defaults, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        values = [value.strip() for value in defaults.split(",")]
        documented |= dict(zip(re.findall(r"`(\w+)`", names), values, strict=True))
    wanted = {name: option.default for name, option in inspect.signature(of).parameters.items()}
    assert documented.keys() == wanted.keys()
    for name, default in documented.items():
        found = wanted[name]
        expected = "none" if found is None else str(found).lower()
        if isinstance(found, float):
            assert float(default) == found, name
        elif default in BY_OTHERS:
            assert found is BY_OTHERS[default], name
        else:
            assert default.strip("`") == expected, name
