"""What users install: the wheel, away from this checkout, holds all that the command needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with nothing but the freshly built and installed wheel."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(pip + build, check=True)
    (wheel,) = wheels.glob("drill-*.whl")
    install = ["install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(pip + install, check=True)
    return target


def python(arguments: list[str], installed: Path, cwd: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_the_type_marker(installed):
    package = installed / "drill"
    assert (package / "py.typed").is_file()
    source = ROOT / "src" / "drill"
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    assert modules == {path.relative_to(package) for path in package.rglob("*.py")}


@pytest.mark.slow
def test_the_command_runs_from_an_empty_folder(installed, tmp_path):
    where = python(["-c", "import drill; print(drill.__file__)"], installed, tmp_path).strip()
    assert Path(where) == installed / "drill" / "__init__.py"
    table = python(["-m", "drill", "layers"], installed, tmp_path)
    assert "tied" in table
    assert "deep-residual" in table
