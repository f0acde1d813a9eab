"""Texts and tables in Markdown; nothing that a name says becomes markup."""

import pytest

from drill.report.tables.markup import Table, markdown_text


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("ptb_tied-seed_28", "ptb_tied-seed_28"), ("_x_ *y* `z`", r"\_x\_ \*y\* \`z\`"),
        ("a|b\nc", r"a\|b c"), ("[x](javascript:y)", r"\[x\](javascript:y)"),
        ("<b> &amp; \\", r"\<b> \&amp; \\"), ("60.1 ± 0.2", "60.1 ± 0.2"),
        ("< 0.1 -> 0.2", "< 0.1 -> 0.2"), ("> x", r"\> x"),
    ],
)  # fmt: skip
def test_markdown_of_a_text_reads_as_the_text(text, markdown):
    assert markdown_text(text) == markdown


def test_a_table_without_rows_has_its_notes():
    assert Table.of([], ["A note."]).markdown().endswith("A note.\n")


def test_a_table_in_markdown_has_no_empty_columns():
    rows = [
        [("run", run), ("test", test), ("never", "")]
        for run, test in (("tied", "58.00"), ("a|b", "57.10"))
    ]
    assert Table.of(rows, ["A note."]).markdown() == (
        "| run | test |\n|---|---:|\n| tied | 58.00 |\n| a\\|b | 57.10 |\n\nA note.\n"
    )
