"""Tables, and how they are written in Markdown."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Emphasis, code, links, tags, tables, entities, mathematics; an underscore inside a word is none.
_MARKDOWN = re.compile(r"[\\`*\[\]|&~$]|<(?! )|^>|(?<![^\W_])_|_(?![^\W_])")


def markdown_text(text: object) -> str:
    """One line of Markdown that reads as ``text``; file names may have lone surrogates."""
    line = " ".join(str(text).encode("utf-8", "replace").decode("utf-8").split())
    return _MARKDOWN.sub(lambda match: "\\" + match[0], line)


def markdown_table(lines: Sequence[Sequence[str]], align: str = "lr") -> list[str]:
    """The lines of a table whose cells are Markdown; the first line has the headings.

    ``align`` is l or r for each column; its last letter holds for all columns further right.
    """
    headings, *rest = lines
    sides = align.ljust(len(headings), align[-1:] or "r")
    return [
        f"| {' | '.join(headings)} |".replace("|  |", "| |"),
        f"|{''.join('---:|' if side == 'r' else '---|' for side in sides)}",
        *(f"| {' | '.join(line)} |{' |' * (len(headings) - len(line))}" for line in rest),
    ]


TEXTS = {"run", "row", "recipe", "layer", "seeds", "device", "commit", "recorded", "note"}
TEXTS |= {"training count", "evaluation", "settings"}
TEXTS |= {"label", "nearest in E", "nearest in g_out(E)"}
"""Headings of columns of text; the others are aligned to the right."""

Cell = tuple[str, str]  # (heading, text); all rows of a table have the same headings


@dataclass(frozen=True)
class Table:
    """Rows of strings under headings; the first cell of a row is its name."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # sentences below
    caption: str = ""

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[Cell]], notes: Iterable[str] = (), caption: str = ""
    ) -> "Table":
        """A table without its empty columns."""
        first = rows[0] if rows else ()
        used = [n for n in range(len(first)) if n == 0 or any(row[n][1] for row in rows)]
        return cls(
            [first[n][0] for n in used],
            [[row[n][1] for n in used] for row in rows],
            list(notes),
            caption,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def kinds(self) -> list[str]:
        """``text`` or ``number`` for each column."""
        return ["text" if heading in TEXTS else "number" for heading in self.headings]

    def markdown(self) -> str:
        align = "".join("l" if kind == "text" else "r" for kind in self.kinds)
        texts = [[markdown_text(cell) for cell in line] for line in (self.headings, *self.rows)]
        lines = markdown_table(texts, align)
        if self.notes:
            lines += ["", " ".join(map(markdown_text, self.notes))]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Listing:
    """Items below each other."""

    items: Sequence[str]
    caption: str = ""

    def __len__(self) -> int:
        return len(self.items)

    def markdown(self) -> str:
        return "".join(f"- {markdown_text(item)}\n" for item in self.items)
