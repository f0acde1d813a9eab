"""What is in a folder, a disk without room, and a user without a home."""

import errno
import os
from pathlib import Path


def contents(folder: Path) -> dict[Path, bytes | None]:
    """All that is below a folder; None for a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def disk_full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_home() -> None:
    raise RuntimeError("Could not determine home directory.")
