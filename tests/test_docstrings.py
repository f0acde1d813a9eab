"""Every public function and constructor says what its arguments are and what it returns."""

import inspect
import re

import pytest
from torch import nn

import drill
from drill import hf

PUBLIC = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module in (drill, hf)
    for name in module.__all__
    if callable(getattr(module, name))
]


@pytest.mark.parametrize("public", PUBLIC)
def test_arguments_and_results_are_documented(public):
    text = inspect.getdoc(public)
    assert text
    if not inspect.isclass(public):
        assert "Returns:" in text
    elif not (issubclass(public, nn.Module) and "__init__" in vars(public)):
        return
    arguments = inspect.signature(public).parameters
    assert [a for a in arguments if not re.search(rf"^\s*\**{a}\b.*:", text, re.MULTILINE)] == []
