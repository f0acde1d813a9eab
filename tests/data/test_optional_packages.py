"""Optional packages: hints name the extras of pyproject.toml."""

import tomllib
from pathlib import Path

from drill.data.optional_packages import EXTRAS

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extras_are_those_of_the_project():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert {name: {*brings} for name, brings in EXTRAS.items()} == {
        name: {*extras[name]} for name in EXTRAS
    }
