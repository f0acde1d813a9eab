"""The README and its map: they name what is there, links lead somewhere, the demo is a run's."""

import re
from pathlib import Path
from statistics import mean, stdev

import pytest

from drill.cli.demo import FIVE_SEEDS, RECIPES
from drill.report import read_ledger

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAP = (ROOT / "docs/architecture.md").read_text().split("\n\n", 2)[2]  # below what links to it


def test_every_file_on_the_map_is_there():
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("src/drill/**/*")}
    names = re.findall(r"[\w/]+\.(?:py|cu)\b", MAP)
    assert len(names) > 40
    lost = [name for name in names if not any(f"/{each}".endswith(f"/{name}") for each in files)]
    assert lost == []


def anchors(page: Path) -> list[str]:
    """What links to the sections of a page end in."""
    headings = re.findall(r"^##+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]


def test_the_short_map_names_folders_that_are_there():
    section = README.split("## Architecture")[1].split("\n## ")[0]
    folders = re.findall(r"\b\w+/(?= )", section)
    assert len(folders) > 8
    for folder in folders:
        assert (ROOT / "src/drill" / folder).is_dir(), folder
    assert "Start reading at [`layers/deep_residual.py`]" in section


def test_it_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("name", ["README.md", "docs/figures.md", "docs/architecture.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([\w-]+))?\)", page.read_text())
    assert links
    for path, anchor in links:
        place = page.parent / path if path else page
        assert place.exists(), path
        assert not anchor or anchor in anchors(place), f"{path}#{anchor}"


def test_the_demo_on_the_first_screen_is_that_of_the_ledger():
    shown = re.search(r"^perplexity, all tokens +([\d.]+) +([\d.]+) ", README, re.MULTILINE)
    assert shown is not None
    rows = {row.recipe: row for row in read_ledger(ROOT / "results/runs.jsonl")}
    assert list(shown.groups()) == [
        f"{rows[f'demo-{each}'].test:.1f}" for each in ("tied", "drill")
    ]
    assert README[: shown.start()].count("\n") < 25


def test_the_spread_of_the_demo_is_that_of_the_ledger():
    shown = re.search(
        r"^  five seeds on a Xeon, mean and deviation +(.+?)  +(.+?)  +", README, re.MULTILINE
    )
    assert shown is not None
    rows = read_ledger(ROOT / "results/demo.jsonl")
    for recipe, spread, printed in zip(RECIPES, FIVE_SEEDS, shown.groups(), strict=True):
        tests = [row.test for row in rows if row.recipe == recipe]
        assert len(tests) == 5
        assert (round(mean(tests), 2), round(stdev(tests), 2)) == spread
        assert printed == "{:.1f} ± {:.1f}".format(*spread)
