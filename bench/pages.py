"""Tables made from a file of rows, printed or put between their marks on a page."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

R = TypeVar("R")


def main(
    about: str | None,
    name: str,
    table: Callable[[Sequence[R]], Iterable[str]],
    read: Callable[[Path], Sequence[R]],
    of: str = "rows of `drill record`",
    printed: Callable[[Sequence[R]], Iterable[str]] | None = None,
) -> None:
    """The command line of such a table, which stands between ``marks(name)`` on a page.

    ``printed`` is the table without a page, where that one is longer.
    """
    options = argparse.ArgumentParser(description=about)
    options.add_argument("file", type=Path, help=of)
    options.add_argument("--into", type=Path, help="renew the table of this page instead")
    args = options.parse_args()
    rows = read(args.file)
    if args.into is None:
        print("\n".join((printed or table)(rows)))
        return
    renew(args.into, marks(name), table(rows))


def renew(page: Path, between: tuple[str, str], lines: Iterable[str]) -> None:
    """Put ``lines`` into the place of those that stand between two marks of a page."""
    begin, end = between
    text = page.read_text()
    if text.count(begin) != 1 or end not in text.split(begin)[1]:
        raise SystemExit(
            f"{page}: has no table between {begin} and {end}; bench/README.md names its page"
        )
    before, marked = text.split(begin)
    after = marked.split(end)[1]
    page.write_text("\n".join([f"{before}{begin}", *lines, f"{end}{after}"]))


def marks(name: str) -> tuple[str, str]:
    return f"<!-- from bench/{name}.py -->", f"<!-- end of {name} -->"
