"""Measured tables are made from what the benchmarks wrote, never by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def summary(*arguments: str) -> str:
    command = [sys.executable, "bench/summary.py", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_the_results_page_is_what_the_rows_say(name):
    page = ROOT / "docs" / ("results.md" if name == "h200" else f"results-{name}.md")
    assert summary(f"results/{name}.jsonl") == page.read_text()


def test_the_tables_of_the_readme_are_what_the_rows_say(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text())
    summary("results/h200.jsonl", "--into", str(copy))
    assert copy.read_text() == (ROOT / "README.md").read_text()
