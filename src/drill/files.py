"""Files: strict reading of text, atomic writes, safe appends, checksums, cache folder."""

import codecs
import errno
import gzip
import hashlib
import json
import logging
import lzma
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from drill.errors import DataError, DrillError, RunFolderError, nearest

logger = logging.getLogger("drill")

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\0"  # what packed files begin with
A_RUN = "name one that `drill train` made, such as runs/NAME"
UNPACKING_FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError)

OnProgress = Callable[[int, int], None]
"""Called with how much of a text is done and how much there is, in pairs, lines or tokens."""


class WriteError(DrillError, OSError):
    """A file that could not be written; ``reason`` says why."""

    hint = "check the path, its permissions and the free disk space, then repeat the command"

    def __init__(self, path: Path, cause: OSError) -> None:
        self.reason = cause.strerror or str(cause)
        OSError.__init__(self, cause.errno, self.reason, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.reason}); {self.hint}"


def decode_text(raw: bytes, name: str, line: int = 1, *, nul: bool = False) -> str:
    """UTF-8 without a byte order mark, ``\\r\\n`` as ``\\n``.

    Args:
        name: of the file, for errors.
        line: the number of the first line.
        nul: allow NUL.
    """
    if line == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    wrong = -1 if nul else raw.find(b"\0")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        line += raw.count(b"\n", 0, wrong)
        raise DataError(
            f"line {line} is not UTF-8 text (byte {raw[wrong]:#04x})",
            key=name,
            hint="convert the file to UTF-8, for example with iconv",
        )
    return text.replace("\r\n", "\n")


def nearest_run(path: Path, otherwise: str = A_RUN, known: Iterable[str] = ()) -> str:
    """``nearest`` for a path that is no run, among runs next to it and in runs/ there.

    Args:
        known: names that may have been meant as well.
    """
    names = {each: each for each in known}
    with suppress(OSError):  # a name may be too long
        for pattern in ("runs/*/recipe.toml", "*/recipe.toml"):
            names |= {run.parent.name: str(run.parent) for run in path.parent.glob(pattern)}
    return nearest(path.name, names, otherwise=otherwise)


def check_run(folder: Path, otherwise: str = A_RUN) -> None:
    """Raise RunFolderError for a folder without a run."""
    if not (folder / "recipe.toml").exists():
        hint = nearest_run(folder, otherwise)
        raise RunFolderError(f"{folder}: is not a run folder (no recipe.toml){hint}")


def read_bytes(path: Path, kind: str = "text") -> bytes:
    """The bytes of a file; DataError, which asks for a ``kind`` file, if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        fault = error.strerror or type(error).__name__
        raise DataError(f"{path}: cannot be read ({fault}); name a {kind} file") from None


def read_json(path: Path, kind: str) -> Any:
    """The content of a JSON file; DataError, which calls it a ``kind`` file, if there is none."""
    raw = read_bytes(path, kind)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is not JSON; take a {kind} file that drill wrote") from None


@contextmanager
def opened_text(path: Path) -> Iterator[Any]:
    """A text to read bytes from, unpacked as it is read; ``UNPACKING_FAULTS`` may come then."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name a text file") from None
    with stream:
        start = stream.peek(len(XZ))  # it may be a pipe, which cannot go back
        if start.startswith(GZIP):
            with gzip.open(stream) as inner:
                yield inner
        elif start.startswith(XZ):
            with lzma.open(stream) as inner:
                yield inner
        else:
            yield stream


def read_text(path: Path) -> str:
    """``decode_text`` of a file, packed or not."""
    with opened_text(path) as stream:
        try:
            raw = stream.read()
        except UNPACKING_FAULTS as error:
            raise DataError(f"{path}: cannot be read ({error}); get the file again") from None
    return decode_text(raw, str(path))


def lines_of(text: str) -> list[str]:
    """Lines of a text; an empty one after the last line end does not count.

    Only ``\\n`` ends a line: ``str.splitlines`` would also break at rarer characters.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def atomic_write(path: Path, content: bytes) -> None:
    """Write a temporary file in the same folder, then rename it to ``path``.

    A reader sees the old file or the new one, never a part; of several writers the last one wins.
    A symbolic link is replaced, not written through. A folder, a pipe or a device is an error.
    Missing folders are created.
    """
    try:
        if path.exists() and not (path.is_symlink() or path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "not a regular file")  # os.replace would take its place
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_file = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with partial_file.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial_file, path)
        finally:
            partial_file.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(path, error) from error


def remove_parts(path: Path) -> None:
    """Remove what a killed ``atomic_write`` of ``path`` left; its name may be a pattern.

    Nobody may be writing it now.
    """
    for part in path.parent.glob(f".{path.name}.{16 * '[0-9a-f]'}.tmp"):
        part.unlink(missing_ok=True)


def append_line(path: Path, line: bytes) -> None:
    """Append to a file, all or nothing; the line is on disk when this returns."""
    try:
        with path.open("ab", buffering=0) as stream:
            size, left = os.fstat(stream.fileno()).st_size, memoryview(line)
            try:
                while left:
                    left = left[stream.write(left) :]
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(size)
                raise
    except OSError as error:
        raise WriteError(path, error) from error


def sha256(path: Path) -> str:
    """The checksum of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def user_folder(variable: str, default: str) -> Path:
    """``drill`` in the folder that the environment variable names, else in ``default`` at home."""
    root = os.environ.get(variable)
    try:
        return (Path(root) if root else Path.home() / default) / "drill"
    except RuntimeError:  # raised by pathlib for a user without a home
        raise DataError(f"{variable}: this user has no home; set it to a folder") from None


def cache_folder() -> Path:
    """The default folder of caches.

    Returns:
        ``XDG_CACHE_HOME/drill``, by default ``~/.cache/drill``.
    """
    return user_folder("XDG_CACHE_HOME", ".cache")


@cache
def warn_uncached(things: str, cost: str, folder: Path, reason: str | None) -> None:
    """Log once that ``things`` cannot be cached in ``folder`` and what it costs."""
    logger.warning(
        f"{folder}: {things} cannot be cached there ({reason}), so {cost}; make it writable, or "
        "set XDG_CACHE_HOME to another folder"
    )
