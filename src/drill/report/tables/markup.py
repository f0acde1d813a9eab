"""Texts and tables as Markdown and as HTML.

Names, notes and samples come from people and files: nothing of them may become markup.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Emphasis, code, links, tags, tables, entities, mathematics; an underscore inside a word is none.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|&~$]|(?<![^\W_])_|_(?![^\W_])")


def visible(text: str) -> str:
    """``text`` with every character that no page can show replaced by U+FFFD.

    Control characters but tab and line end, lone surrogates (file names hold them), and the
    characters that turn the direction of whatever follows.
    """
    return "".join("\ufffd" if _hidden(character) else character for character in text)


def _hidden(character: str) -> bool:
    if character in "\n\t":
        return False
    kind = unicodedata.category(character)
    return kind in ("Cc", "Cs") or unicodedata.bidirectional(character) in _TURNS


_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def escape(text: object) -> str:
    """For HTML and SVG, inside elements and inside quoted attributes."""
    return html.escape(visible(str(text)), quote=True)


def markdown_text(text: object) -> str:
    """One line of Markdown that reads as ``text``."""
    return _MARKDOWN.sub(lambda match: "\\" + match[0], " ".join(visible(str(text)).split()))


@dataclass(frozen=True)
class Column:
    heading: str
    numeric: bool = True  # set to the right, figures under one another


@dataclass(frozen=True)
class Table:
    """Rows of texts under headings; the first cell of a row names it."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # sentences below

    @classmethod
    def of(
        cls, columns: Sequence[Column], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
    ) -> "Table":
        """A table without the columns in which every cell is empty."""
        rows = list(rows)
        kept = [n for n in range(len(columns)) if n == 0 or any(row[n] for row in rows)]
        return cls(
            [columns[n] for n in kept], [[row[n] for n in kept] for row in rows], list(notes)
        )

    def markdown(self) -> str:
        headings = " | ".join(markdown_text(column.heading) for column in self.columns)
        lines = [f"| {headings} |"]
        lines.append("|" + "".join("---:|" if each.numeric else "---|" for each in self.columns))
        for row in self.rows:
            lines.append(f"| {' | '.join(markdown_text(cell) for cell in row)} |")
        if self.notes:
            lines += ["", " ".join(markdown_text(note) for note in self.notes)]
        return "\n".join(lines) + "\n"

    def html(self, caption: str) -> str:
        """A table that scrolls sideways by itself where the page is narrow."""
        scroll = f'class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"'
        parts = [
            f"<div {scroll}><table>",
            f"<caption>{escape(caption)}</caption>",
            "<thead><tr>",
            *(self._cell("th", 'scope="col"', column, column.heading) for column in self.columns),
            "</tr></thead>",
            "<tbody>",
        ]
        for row in self.rows:
            first, *others = zip(self.columns, row, strict=True)
            cells = [self._cell("th", 'scope="row"', *first)]
            cells += [self._cell("td", "", *other) for other in others]
            parts.append(f"<tr>{''.join(cells)}</tr>")
        parts.append("</tbody></table></div>")
        parts += [f'<p class="note">{escape(note)}</p>' for note in self.notes]
        return "\n".join(parts)

    @staticmethod
    def _cell(tag: str, attributes: str, column: Column, text: str) -> str:
        kind = "number" if column.numeric else "text"
        # bdi: a name in a script that runs from right to left leaves the rest of the row alone
        content = escape(text) if column.numeric else f"<bdi>{escape(text)}</bdi>"
        return f'<{tag} class="{kind}"{" " if attributes else ""}{attributes}>{content}</{tag}>'
