"""Of which runs and ledgers a page was made, so that nobody loses one of others by chance."""

import html
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from drill.errors import ReportError
from drill.report.tables.markup import escape

NAME = "drill-sources"
MARK = re.compile(f'<meta name="{NAME}" content="([^"]*)">')


def sources_mark(paths: Iterable[Path | str]) -> str:
    """The element of the page's head that names them, as they were given."""
    return f'<meta name="{NAME}" content="{escape(json.dumps(_normal(paths)))}">'


def refuse_to_lose(page: Path, paths: Iterable[Path | str]) -> None:
    """A page is replaced where the new one, of ``paths``, shows all that it shows."""
    if not page.exists():
        return
    held = _sources(page)
    lost = [] if held is None else [path for path in held if path not in _normal(paths)]
    if held is not None and not lost:
        return
    shown = "does not say of which runs it is"
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        shown = f"shows {lost[0]}{more}, which this report would not"
    raise ReportError(
        f"{page}: is there already and {shown}; name another page with -o, or replace it with "
        "--force"
    )


def _sources(page: Path) -> list[str] | None:
    """None where it does not tell: an older page, or another file."""
    mark = MARK.search(page.read_text("utf-8", errors="replace"))
    try:
        held = None if mark is None else json.loads(html.unescape(mark[1]))
    except (ValueError, RecursionError):
        return None
    return held if isinstance(held, list) else None


def _normal(paths: Iterable[Path | str]) -> list[str]:
    return sorted({os.path.normpath(path) for path in paths})
