"""The README's perplexities are made from the ledger, never by hand."""

import subprocess
import sys
from pathlib import Path

from drill.report import read

ROOT = Path(__file__).parents[2]


def test_the_curves_of_the_readme_are_what_the_ledger_says(tmp_path):
    copy, page = tmp_path / "README.md", (ROOT / "README.md").read_text()
    copy.write_text(page.replace("| 3 | 182.0 |", "| 3 | 182.1 |"))
    assert copy.read_text() != page
    command = [sys.executable, "bench/curves.py", "results/runs.jsonl", "--into", str(copy)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert copy.read_text() == page


def test_every_language_model_of_the_ledger_has_its_curve():
    rows = [row for row in read(ROOT / "results/runs.jsonl") if row.recipe.startswith("ptb-")]
    assert len(rows) >= 4
    for row in rows:
        assert [epoch for epoch, _, _ in row.curve] == list(range(1, row.epochs + 1))
        assert min(valid for _, valid, _ in row.curve) == row.valid
