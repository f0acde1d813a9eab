"""Texts and tables in Markdown; nothing that a name says becomes markup."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drill.report.tables.markup import Table, escape, markdown_text, visible
from tests.report.hostile import HOSTILE
from tests.report.page_reader import Page


def hostile(test):
    for text in HOSTILE:
        test = example(text=text)(test)
    return test


@hostile
@given(text=st.text(st.characters(exclude_categories=[]), max_size=40))
@settings(max_examples=80)
def test_any_text_survives_escaping(text):
    found = Page(f'<p title="{escape(text)}">{escape(text)}</p>')
    assert found.elements == [("p", {"title": visible(text)})]
    assert found.text == visible(text)
    escape(text).encode("utf-8")


def test_only_characters_that_cannot_be_shown_are_replaced():
    assert visible("naïve 日本 \t\n עברית 🙂") == "naïve 日本 \t\n עברית 🙂"
    assert visible("a\x00b\x1bc\ud800d\u202ee\u2066f") == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf"


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("ptb_tied-seed_28", "ptb_tied-seed_28"),
        ("_x_ *y* `z`", r"\_x\_ \*y\* \`z\`"),
        ("a|b\nc", r"a\|b c"),
        ("[x](javascript:y)", r"\[x\](javascript:y)"),
        ("<b> &amp; \\", r"\<b\> \&amp; \\"),
        ("60.1 ± 0.2", "60.1 ± 0.2"),
    ],
)
def test_markdown_of_a_text_reads_as_the_text(text, markdown):
    assert markdown_text(text) == markdown


def test_a_table_in_markdown_has_no_empty_columns():
    rows = [
        [("run", run), ("test", test), ("never", "")]
        for run, test in (("tied", "58.00"), ("a|b", "57.10"))
    ]
    assert Table.of(rows, ["A note."]).markdown() == (
        "| run | test |\n|---|---:|\n| tied | 58.00 |\n| a\\|b | 57.10 |\n\nA note.\n"
    )
