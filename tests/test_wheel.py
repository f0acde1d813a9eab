"""The wheel that users install has every file of the package, and its command runs.

``test_imports.py`` checks that it imports no package that it does not declare.
"""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from drill import LAYERS
from tests.helpers.processes import ROOT, python

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*PIP, *build], check=True)
    (found,) = folder.glob("drill_lm-*.whl")
    return found


def test_the_wheel_has_every_file_of_the_package(wheel):
    files = (path for path in (ROOT / "src/drill").rglob("*") if path.is_file())
    source = {path.relative_to(ROOT / "src").as_posix() for path in files if path.suffix != ".pyc"}
    assert "drill/py.typed" in source
    with ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("drill/")} == source


def test_the_installed_command_runs_from_an_empty_folder(wheel, tmp_path):
    site = tmp_path / "site"
    subprocess.run(
        [*PIP, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True
    )
    program = "import drill.cli, sys; assert drill.__file__.startswith(sys.argv.pop(1)); "
    program += "drill.cli.main()"
    out = python("-c", program, site, "layers", cwd=tmp_path, PYTHONPATH=str(site))
    assert [name for name in LAYERS if name not in out] == []
    assert "drill.cli" in (site / "bin/drill").read_text()
