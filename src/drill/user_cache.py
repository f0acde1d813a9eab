"""The user's cache: where things are kept that can be made again, and a word where they are not."""

import logging
import os
from functools import cache
from pathlib import Path

logger = logging.getLogger("drill")


def cache_root() -> Path | None:
    """``XDG_CACHE_HOME/drill``, by default ``~/.cache/drill``; None for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "drill"
    except RuntimeError:  # what pathlib says of a user without one
        return None


def tell_unkept(
    things: str, cost: str, folder: Path | None = None, error: OSError | None = None
) -> None:
    """That ``things`` are not kept in ``folder``, or in no home, and what that costs.

    To the logger ``drill``, once and not for every one of the things.
    """
    if folder is None or error is None:
        _warn_once(things, cost, "~/.cache", "this user has no home")
    else:
        _warn_once(things, cost, str(folder), error.strerror or str(error))


@cache
def _warn_once(things: str, cost: str, folder: str, reason: str) -> None:
    logger.warning(
        "%s: %s cannot be kept there (%s), so %s; make it writable, or set XDG_CACHE_HOME to "
        "another folder",
        folder,
        things,
        reason,
        cost,
    )
