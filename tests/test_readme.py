"""The README's map: what it names is there, and both tasks are on it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "README.md").read_text().split("## How it fits together")[1].split("\n## ")[0]


def test_every_file_on_the_map_is_there():
    held = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("src/drill/**/*")}
    names = re.findall(r"[\w/]+\.(?:py|cu)\b", MAP)
    assert len(names) > 40
    lost = [name for name in names if not any(f"/{each}".endswith(f"/{name}") for each in held)]
    assert lost == []


@pytest.mark.parametrize(
    "part",
    ["subwords.py", "pair_batches.py", "transformer.py", "search.py", "bleu.py", "product.py",
     "residual_norm.py", "relu_dropout.py", "BLEU) -> analysis"],
)  # fmt: skip
def test_translation_is_on_the_map(part):
    assert part in MAP


def test_figures_of_speed_have_a_command_and_rows():
    page = (ROOT / "docs/transformer.md").read_text()
    section = page.split("## How fast")[1].split("\n## ")[0]
    assert "`python bench/translation.py`" in section
    links = re.findall(r"\((results[\w-]*)\.md#([\w-]+)\)", section)
    assert len(links) == 2
    for name, anchor in links:
        headings = re.findall(r"^## (.*)$", (ROOT / f"docs/{name}.md").read_text(), re.MULTILINE)
        assert anchor in [
            re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings
        ]
