"""What is said where a package is missing is what pyproject.toml installs."""

import tomllib
from pathlib import Path

from drill.data.extras import EXTRAS, MODULES

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extras_are_those_of_the_project():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert {name: {*brings} for name, brings in EXTRAS.items()} == {
        name: {*extras[name]} for name in EXTRAS
    }
    assert {package for brings in EXTRAS.values() for package in brings} == {*MODULES}
