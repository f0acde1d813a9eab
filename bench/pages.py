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
    lines = "\n".join(table(rows))
    begin, end = marks(name)
    before, marked = args.into.read_text().split(begin)
    after = marked.split(end)[1]
    args.into.write_text(f"{before}{begin}\n{lines}\n{end}{after}")


def marks(name: str) -> tuple[str, str]:
    return f"<!-- from bench/{name}.py -->", f"<!-- end of {name} -->"
