"""A cache on disk by content: encoded texts and subwords are built once.

An entry is a folder named by a hash of what it was built from, so another text or another setting
is another entry and nothing goes stale. Checksums are verified before use, and a damaged entry is
built again. Writers need no lock: each renames a complete folder into place, and equal keys hold
equal values.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from drill.files import sha256, warn_uncached

CHECKSUMS = "sha256.json"
UNCACHED = ("encoded texts and subwords", "every start makes them again")

T = TypeVar("T")
logger = logging.getLogger("drill")


def cache_key(kind: str, *parts: str) -> str:
    """A hash of texts; ``kind`` names the layout on disk, so another layout takes another name."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(hashlib.sha256(part.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def cached(
    folder: Path | None,
    key: str,
    build: Callable[[], T],
    load: Callable[[Path], T],
    save: Callable[[T, Path], object],
) -> T:
    """What ``build`` returns, from the cache in ``folder`` where it is there.

    ``load`` reads a value from the folder of its entry, ``save`` writes it into an empty folder. A
    cache that cannot be written costs a warning in the log and the time of building again.
    """
    if folder is None:
        return build()
    entry = folder / key
    value = _load(entry, load)
    if value is not None:
        return value
    built = build()
    try:
        _store(entry, partial(save, built))
    except OSError as error:
        warn_uncached(*UNCACHED, folder, error.strerror)
        return built
    value = _load(entry, load)
    return built if value is None else value


def _load(entry: Path, load: Callable[[Path], T]) -> T | None:
    try:
        checksums = json.loads((entry / CHECKSUMS).read_bytes())
        for name, checksum in checksums.items():
            if sha256(entry / name) != checksum:
                raise ValueError(f"{name} has another checksum")
        return load(entry)
    except OSError:
        return None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        logger.warning("%s: is damaged (%s); it is built again", entry, error)
        return None


def _store(entry: Path, save: Callable[[Path], object]) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".") as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        save(new)
        checksums = {path.name: sha256(path) for path in new.iterdir()}
        (new / CHECKSUMS).write_text(json.dumps(checksums))
        with suppress(FileNotFoundError):  # a damaged entry
            os.rename(entry, Path(temporary, "old"))
        try:
            os.rename(new, entry)
        except OSError:
            if not entry.exists():  # else another process has just written it
                raise


def load_array(path: Path) -> NDArray[Any]:
    """A read-only memory map of a ``.npy`` file; an empty array cannot be mapped and is read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        return np.load(path, allow_pickle=False)
