"""What users install: the wheel and what it declares, in an environment with nothing else in it."""

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from drill import LAYERS

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

pytestmark = pytest.mark.slow


class Environment:
    """A virtual environment without pip, and what was put into it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        self.distributions: set[str] = set()
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True)

    def install(self, wheel: Path) -> None:
        python = ["--python", str(self.bin / "python")]
        subprocess.run([*PIP, *python, "install", "--no-deps", "--no-index", wheel], check=True)

    def link(self, distribution: metadata.Distribution) -> None:
        """Make a distribution of this process importable there, as if pip had installed it."""
        self.distributions.add(canonical(distribution.name))
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = self.site / top
            if not link.exists():  # namespace packages are shared
                link.symlink_to(Path(str(distribution.locate_file(top))))

    def run(self, *command: str, cwd: Path) -> str:
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env={},  # neither PYTHONPATH nor anything else of ours
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def required(requirements: Iterable[str], extras: set[str]) -> list[Requirement]:
    """Those that hold on this machine."""
    parsed = [Requirement(text) for text in requirements]
    return [
        r
        for r in parsed
        if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras | {""})
    ]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Environment:
    """The freshly built wheel and its dependencies, and theirs, as their metadata declare them."""
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("environment")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(PIP + build, check=True)
    (wheel,) = wheels.glob("drill_lm-*.whl")
    environment = Environment(folder)
    environment.install(wheel)
    (drill,) = metadata.distributions(path=[str(environment.site)])
    waiting = required(drill.requires or [], set())
    seen = set()
    while waiting:
        requirement = waiting.pop()
        key = canonical(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        found = metadata.distribution(requirement.name)
        environment.link(found)
        waiting += required(found.requires or [], set(requirement.extras))
    return environment


def files(package: Path) -> set[Path]:
    found = (path for path in package.rglob("*") if path.is_file())
    return {path.relative_to(package) for path in found if "__pycache__" not in path.parts}


def test_the_wheel_holds_every_file_of_the_package(installed):
    source = files(ROOT / "src" / "drill")
    assert Path("py.typed") in source
    assert files(installed.site / "drill") == source


def test_nothing_but_what_is_declared_can_be_imported_there(installed, tmp_path):
    """Without this the test below would pass though a dependency were not declared."""
    names = {
        name: {canonical(owner) for owner in owners}
        for name, owners in metadata.packages_distributions().items()
        if name.isidentifier() and name not in sys.stdlib_module_names and name != "drill"
    }
    program = (
        "import json, sys; from importlib.util import find_spec; "
        "print(json.dumps([n for n in json.loads(sys.argv[1]) if find_spec(n)]))"
    )
    found = installed.run("python", "-c", program, json.dumps([*names]), cwd=tmp_path)
    importable = set(json.loads(found))
    assert {"torch", "numpy", "safetensors", "typer", "rich"} <= importable
    assert not {"pytest", "pip", "mypy", "hypothesis"} & importable
    assert [n for n in importable if not names[n] & installed.distributions] == []


def test_the_command_runs_from_an_empty_folder(installed, tmp_path):
    table = installed.run("python", "-I", "-m", "drill", "layers", cwd=tmp_path)
    assert [name for name in LAYERS if name not in table] == []
    assert "drill.cli" in (installed.bin / "drill").read_text()
