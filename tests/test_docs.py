"""Every Python block of README.md and docs/ runs, page by page, top to bottom.

The blocks of one page share a namespace. A block below the line `<!-- not executed: reason -->` is
left out; `pycon`, `console` and all other blocks are only read.
"""

import pkgutil
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from drill.layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGES = [
    page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if page.is_file()
]

FENCE = re.compile(r"^(`{3,}|~{3,})\s*(\w*)")
NOT_EXECUTED = re.compile(r"^<!-- not executed: (.+) -->$")


@dataclass(frozen=True)
class Block:
    line: int  # of the first line of code, from 1
    code: str
    skipped: str | None  # the reason


def python_blocks(text: str) -> list[Block]:
    blocks = []
    lines = text.splitlines()
    opened: re.Match[str] | None = None
    start = 0
    for number, line in enumerate(lines):
        if opened is None:
            if opened := FENCE.match(line):
                start = number + 1
        elif line.startswith(opened[1]) and not line.strip(opened[1][0] + " "):
            if opened[2] == "python":
                above = [text.strip() for text in lines[: start - 1] if text.strip()]
                reason = NOT_EXECUTED.match(above[-1]) if above else None
                code = "\n".join(lines[start:number]) + "\n"
                blocks.append(Block(start + 1, code, reason and reason[1]))
            opened = None
    assert opened is None, f"the block opened in line {start} is never closed"
    return blocks


def run_page(page: Path) -> None:
    """Run the page's blocks; a failure names the page and the line in it."""
    namespace = {"__name__": "__main__"}
    for block in python_blocks(page.read_text(encoding="utf-8")):
        if block.skipped:
            print(f"{page.name}:{block.line} not executed: {block.skipped}")
            continue
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)


# bfloat16 on a CPU, hundreds of training steps, converters
SLOW = {"inference", "loss", "transformer", "tutorial", "onnx", "ctranslate2"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.stem in SLOW else ()) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.stem == "onnx":  # the exporter warns of itself
        warnings.simplefilter("ignore")
    with patch.dict(LAYERS), torch.random.fork_rng(devices=[]):  # a page adds a layer
        torch.manual_seed(0)
        try:
            run_page(page)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("drill"):
                raise
            pytest.skip(f"needs {error.name}")


NAME = re.compile(r"`(drill(?:\.\w+)+)[`(]")
FILE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|cu|cuh|toml))`")


def exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_of_code_exist():
    """`drill.x.y` and `path/file.py` in pages and docstrings; the log has names of its time."""
    folders = ("src", "tests", "bench", "studies", "docs")
    files = [
        f"/{path.relative_to(ROOT)}" for name in folders for path in (ROOT / name).rglob("*.*")
    ]
    pages = [ROOT / "CONTRIBUTING.md", *PAGES, *(ROOT / "src").rglob("*.py")]
    for page in pages:
        text = page.read_text(encoding="utf-8") if page.name != "log.md" else ""
        lost = [name for name in NAME.findall(text) if not exists(name)]
        lost += [n for n in FILE.findall(text) if not any(f.endswith(f"/{n}") for f in files)]
        assert lost == [], page
