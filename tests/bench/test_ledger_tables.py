"""Tables of results are made from the ledger or from rows, never by hand."""

import pytest

from drill.report import read
from tests.bench.scripts import ROOT, script


@pytest.mark.parametrize(
    ("page", "maker", "files", "true", "false"),
    [
        (
            "README.md",
            "headline",
            ["h200", "runs"],
            "authors' published curve ",
            "authors' printed curve ",
        ),
        ("README.md", "bleu", ["runs"], "| multi30k | tied |", "| multi30k | untied |"),
        ("docs/figures.md", "curves", ["runs"], "| 3 | 182.0 |", "| 3 | 182.1 |"),
        ("docs/figures.md", "at_length", ["runs"], "| 600 | 16.4 |", "| 600 | 16.5 |"),
        ("docs/figures.md", "aims", ["h200"], "| released code 12.6 s |", "| released code 12 s |"),
    ],
)
def test_the_tables_of_a_page_are_what_the_rows_say(tmp_path, page, maker, files, true, false):
    copy, page = tmp_path / "page.md", (ROOT / page).read_text()
    copy.write_text(page.replace(true, false))
    assert copy.read_text() != page
    rows = [f"results/{file}.jsonl" for file in files]
    script(maker, *rows, "--into", copy).check_returncode()
    assert copy.read_text() == page


def test_a_page_without_the_table_is_named_and_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n")
    done = script("aims", "results/h200.jsonl", "--into", page)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{page}: has no table between <!-- from bench/aims.py --> and ")
    assert page.read_text() == "# Nothing\n"


def test_every_language_model_of_the_ledger_has_its_curve():
    rows = [row for row in read(ROOT / "results/runs.jsonl") if row.recipe.startswith("ptb-")]
    assert len(rows) >= 8
    for row in rows:
        first = 0 if row.recipe.endswith("-finetune") else 1  # 0: the weights it starts from
        assert [epoch for epoch, _, _ in row.curve] == list(range(first, row.epochs + 1))
        assert min(valid for _, valid, _ in row.curve) == row.valid
