"""The API reference has every public name, with what it takes and returns."""

import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = tomllib.loads((ROOT / "docs/api.toml").read_text("utf-8"))
NAMES = [name for page in PAGES.values() for name in page["names"]]
INTERNAL = re.compile("_|check|forward|extra_repr|.*_summary")  # as the filters of mkdocs.yml
PACKAGES = [
    ".".join(path.relative_to(ROOT / "src").parent.parts)
    for path in sorted((ROOT / "src/drill").rglob("__init__.py"))
    if "\n__all__ = " in path.read_text("utf-8")
]
# Classes that users call methods of; layers share those of OutputLayer.
METHODS = """drill.OutputLayer drill.language_modeling.run.LanguageModelRun
drill.translation.run.TranslationRun drill.models.LanguageModel drill.models.Translator
drill.models.Transformer"""


def named(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def functions() -> Iterator[Any]:
    """Functions, methods and constructors of the reference; not those that Python generates."""
    for name in NAMES:
        public = named(name)
        code = public if inspect.isfunction(public) else vars(public).get("__init__")
        if code is public or (code and code.__code__.co_filename == inspect.getfile(public)):
            yield pytest.param(public, id=name)
    for name in METHODS.split():
        for attribute, member in vars(named(name)).items():
            method = getattr(member, "__func__", member)
            if inspect.isfunction(method) and not INTERNAL.match(attribute):
                yield pytest.param(method, id=f"{name}.{attribute}")


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_in_the_reference_and_not_those_of_modules(package):
    module, reference = importlib.import_module(package), [*map(named, NAMES)]
    public = {name: getattr(module, name) for name in module.__all__}
    assert [name for name, each in public.items() if callable(each) and each not in reference] == []
    assert {each.name for each in pkgutil.iter_modules(module.__path__)}.isdisjoint(module.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_reference_have_docstrings(name):
    generated = f"{name.rpartition('.')[2]}("  # for a dataclass or a named tuple without one
    assert not (named(name).__doc__ or generated).startswith(generated)


@pytest.mark.parametrize("public", list(functions()))
def test_arguments_and_results_are_documented(public):
    text, signature = inspect.getdoc(public) or "", inspect.signature(public)
    if not inspect.isclass(public) and signature.return_annotation not in (None, "None"):
        assert re.search("^(Returns|Yields):", text, re.MULTILINE)
    arguments = signature.parameters.keys() - {"self", "cls"}
    assert {a for a in arguments if not re.search(rf"^\s+\**{a}: ", text, re.MULTILINE)} == set()
