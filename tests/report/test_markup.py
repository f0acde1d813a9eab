"""Nothing that people or files say becomes markup."""

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drill.report.tables.markup import Column, Table, escape, markdown_text, visible
from tests.report.hostile import HOSTILE


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        self.text += data


def parsed(page: str) -> Text:
    parser = Text()
    parser.feed(page)
    parser.close()
    return parser


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_texts_in_elements_and_attributes(text):
    found = parsed(f'<p title="{escape(text)}">{escape(text)}</p>')
    assert found.tags == [("p", [("title", visible(text))])]
    assert found.text == visible(text)
    escape(text).encode("utf-8")


@given(text=st.text(st.characters(exclude_categories=[]), max_size=40))
@settings(max_examples=200)
def test_any_text_survives_escaping(text):
    found = parsed(f'<p title="{escape(text)}">{escape(text)}</p>')
    assert found.tags == [("p", [("title", visible(text))])]
    assert found.text == visible(text)


def test_only_what_cannot_be_shown_is_replaced():
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


TABLE = Table.of(
    [Column("run", numeric=False), Column("test"), Column("never")],
    [["tied", "58.00", ""], ["a|b", "57.10", ""]],
    ["A note."],
)


def test_a_table_as_markdown_leaves_out_what_nobody_knows():
    assert TABLE.markdown() == (
        "| run | test |\n|---|---:|\n| tied | 58.00 |\n| a\\|b | 57.10 |\n\nA note.\n"
    )


def test_a_table_as_html_names_its_rows_and_columns():
    page = TABLE.html("Runs & <more>")
    found = parsed(page)
    assert "Runs & <more>" in found.text
    assert [dict(attrs).get("scope") for tag, attrs in found.tags if tag == "th"] == [
        "col", "col", "row", "row",
    ]  # fmt: skip
    assert (
        re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]+>", " ", page))).strip().endswith("A note.")
    )


def test_an_empty_table_keeps_its_first_column():
    assert Table.of([Column("run"), Column("test")], []).markdown() == "| run |\n|---:|\n"
