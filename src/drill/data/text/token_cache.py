"""Encoded texts on disk, found again by what they hold and never by where they came from.

Two files per text in one folder: ``<key>.npy`` (N,) and ``<key>.json`` with its size and checksum.
The key is a hash of the text and of the vocabulary, so another text or another vocabulary is
another file. A file that does not match its checksum is built again. Writers need no lock: each
renames whole files into place, and equal keys mean equal bytes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drill.data.text.vocabulary import Vocabulary
from drill.files import atomic_write, cache_root, digest, lines_of, warn_uncached

LAYOUT = b"drill ids 1"  # part of every key: another layout on disk takes another number


UNKEPT = ("encoded texts and subwords", "every start makes them again")


def cache_folder() -> Path | None:
    """``cache_root``; a user without a home, who has none, is told so in the log ``drill``."""
    root = cache_root()
    if root is None:
        warn_uncached(*UNKEPT)
    return root


def cache_key(text: str, vocabulary: Vocabulary) -> str:
    held = hashlib.sha256(LAYOUT)
    held.update(hashlib.sha256(text.encode("utf-8")).digest())
    held.update(bytes.fromhex(vocabulary.fingerprint))
    return held.hexdigest()


def encoded(text: str, vocabulary: Vocabulary, folder: Path | None = None) -> NDArray[Any]:
    """Ids (N,) of a text: uint16, or int32 above 65,536 words.

    With a ``folder`` the ids are kept there and come back as a read-only memory map. A folder that
    cannot be written costs the time of encoding again and a warning in the log ``drill``.
    """
    if folder is None:
        return _encode(text, vocabulary)
    key = cache_key(text, vocabulary)
    values, note = folder / f"{key}.npy", folder / f"{key}.json"
    kept = _kept(values, note)
    if kept is not None:
        return kept
    ids = _encode(text, vocabulary)
    if len(ids) == 0:
        return ids  # nothing to map
    try:
        atomic_write(values, lambda stream: np.save(stream, ids, allow_pickle=False))
        held = {"bytes": values.stat().st_size, "sha256": digest(values, "sha256")}
        atomic_write(note, lambda stream: _write_json(stream, held))
    except OSError as error:
        warn_uncached(*UNKEPT, folder, error)
        return ids
    return _mapped(values, ids)


def _encode(text: str, vocabulary: Vocabulary) -> NDArray[Any]:
    ids = vocabulary.encode(lines_of(text))
    return ids.astype(np.uint16) if len(vocabulary) <= 2**16 else ids


def _kept(values: Path, note: Path) -> NDArray[Any] | None:
    """The ids on disk, or None where they are missing or not what was written."""
    try:
        held = json.loads(note.read_bytes())
        if values.stat().st_size != held["bytes"] or digest(values, "sha256") != held["sha256"]:
            return None
        return np.load(values, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError):
        return None


def _mapped(values: Path, ids: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.load(values, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return ids


def _write_json(stream: Any, held: dict[str, Any]) -> None:
    stream.write(json.dumps(held).encode("utf-8"))
