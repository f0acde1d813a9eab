"""A run folder as it was before a command that trained nothing in it."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from drill.files import atomic_write


class Rollback:
    """What lies in a folder now, to be put back where a run never begins.

    told     small files that say what will be trained; they are written before the first step
    trained  files that training alone writes: once one of them changes, all stays as it is
    """

    def __init__(self, told: Iterable[Path], trained: Iterable[Path]) -> None:
        self.told = {path: path.read_bytes() if path.is_file() else None for path in told}
        self.trained = {path: _version(path) for path in trained}
        self.missing = {path.parent for path in self.trained if not path.parent.exists()}

    def restore(self) -> bool:
        """Whether nothing was trained, so that all is as before.

        But for what cannot be put back, on a disk that is full: it hides no other fault.
        """
        if any(_version(path) != version for path, version in self.trained.items()):
            return False
        for path, content in self.told.items():
            with contextlib.suppress(OSError):
                if content is None:
                    path.unlink(missing_ok=True)
                elif not path.is_file() or path.read_bytes() != content:
                    atomic_write(path, content)
        for folder in self.missing:
            with contextlib.suppress(OSError):
                folder.rmdir()  # made for a checkpoint that then found no room
        return True


def _version(path: Path) -> tuple[int, int, int] | None:
    """Another one after every write; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
