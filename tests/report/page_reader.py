"""Reads a page: its elements, and the data of its figures."""

import csv
import io
import re
from html.parser import HTMLParser
from urllib.parse import unquote

VOID = {"meta"}


class Page(HTMLParser):
    """Elements in order; fails on a tag that is not closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[tuple[str, str]] = []  # (innermost element, text)
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "".join(text for tag, text in self.said if tag not in ("style", "script"))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def figures(text: str, kind: str = "lines") -> list[list[list[str]]]:
    """The rows of every figure of a page, from its link to a CSV file."""
    found = re.findall(rf'<figure class="{kind}".*?charset=utf-8,(.*?)">', text, re.DOTALL)
    return [list(csv.reader(io.StringIO(unquote(each)))) for each in found]
