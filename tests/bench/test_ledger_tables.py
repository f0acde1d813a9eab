"""The README's tables of results are made from the ledger or from rows, never by hand."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drill.report import Row, read

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "file", "true", "false"),
    [
        ("curves", "runs", "| 3 | 182.0 |", "| 3 | 182.1 |"),
        ("bleu", "runs", "| multi30k | tied |", "| multi30k | untied |"),
        ("aims", "h200", "| released code 12.6 s |", "| released code 12.7 s |"),
    ],
)
def test_the_tables_of_the_readme_are_what_the_rows_say(tmp_path, script, file, true, false):
    copy, page = tmp_path / "README.md", (ROOT / "README.md").read_text()
    copy.write_text(page.replace(true, false))
    assert copy.read_text() != page
    command = [sys.executable, f"bench/{script}.py", f"results/{file}.jsonl", "--into", str(copy)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert copy.read_text() == page


def test_runs_of_other_settings_are_not_pooled(monkeypatch):
    """Of a recipe the latest settings stand in the table, of a seed its latest run."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import bleu

    row = next(row for row in read(ROOT / "results/runs.jsonl") if row.recipe == "multi30k-tied")

    def made(layer: str, seed: int, score: float, minute: int, digest: str = "a") -> Row:
        return replace(
            row, recipe=f"multi30k-{layer}", layer=layer, seed=seed, settings_digest=digest,
            recorded=f"2026-01-01T00:{minute:02}:00+00:00", extra={"bleu": score},
        )  # fmt: skip

    rows = [
        *(made("tied", seed, 40.0 + seed, seed) for seed in (1, 2)),
        *(made("dual", seed, 30.0, 3) for seed in (1, 2)),
        made("dual", 2, 41.0, 9, "b"),
        made("dual", 1, 11.0, 7, "b"),
        made("dual", 1, 43.0, 8, "b"),
    ]
    _, _, tied, dual = bleu.table(rows)
    assert tied.split(" | ")[3:5] == ["41.0, 42.0", "41.50"]
    assert dual.split(" | ")[3:] == ["43.0, 41.0", "42.00", "1.41", "+0.50 |"]


def test_every_language_model_of_the_ledger_has_its_curve():
    rows = [row for row in read(ROOT / "results/runs.jsonl") if row.recipe.startswith("ptb-")]
    assert len(rows) >= 8
    for row in rows:
        assert [epoch for epoch, _, _ in row.curve] == list(range(1, row.epochs + 1))
        assert min(valid for _, valid, _ in row.curve) == row.valid
