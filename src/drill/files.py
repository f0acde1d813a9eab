"""Files: strict reading of text, atomic writes, safe appends, checksums, cache folder."""

import errno
import gzip
import hashlib
import json
import logging
import lzma
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from drill.errors import DataError, DrillError, nearest

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OTHER_MARKS = {  # byte order marks of other encodings
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or what a user may have of it
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\0"  # what packed files begin with
NOT_REGULAR = "not a regular file"
UNPACKING_FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError)


class WriteError(DrillError, OSError):
    """A file that could not be written.

    ``reason`` says what went wrong and ``hint`` what the user can do about it.

    Args:
        size: bytes that were to be written, for a full disk.
        alternative: another hint, such as "choose another folder".
    """

    def __init__(
        self,
        path: Path,
        cause: OSError,
        size: int | None = None,
        alternative: str = "choose another path",
    ) -> None:
        OSError.__init__(self, cause.errno, cause.strerror or str(cause), str(path))
        self.reason = cause.strerror or str(cause)
        if size is not None and cause.errno in FULL:
            mib, kib = size / 2**20, max(1, size >> 10)
            amount = f"{mib:,.1f} MiB" if mib >= 1 else f"{kib:,} KiB"
            self.reason += f"; {amount} are needed"
        fix = "free disk space" if cause.errno in FULL else ""
        if cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            fix = "get write permission"
        self.hint = " or ".join(filter(None, (fix, alternative))) or "check that path"

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
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    wrong = -1 if nul else raw.find(b"\0")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start if wrong < 0 else min(wrong, error.start)
    if wrong >= 0:
        line, byte = line + raw.count(b"\n", 0, wrong), raw[wrong]
        fault = f"is not UTF-8 text (byte {byte:#04x})" if byte else "has a NUL byte"
        fix = "convert the file, for example with iconv -f latin1 -t utf-8"
        marked = next((mark for mark in OTHER_MARKS if raw.startswith(mark)), None)
        if marked is not None:
            fix = f"convert the file with iconv -f {OTHER_MARKS[marked]} -t utf-8"
        elif byte == 0:
            fix = "name a text file; if it is UTF-16, convert it with iconv -f utf-16le or utf-16be"
        raise DataError(f"line {line} {fault}", key=name, hint=fix)
    return text.replace("\r\n", "\n")


def nearest_path(
    path: Path, file: str, folder: str, otherwise: str, known: Iterable[str] = ()
) -> str:
    """``nearest`` for a path that is missing, among those next to it and in a ``folder`` there.

    Args:
        file: "*.toml", or what folders of the kind of ``path`` hold, such as "*/recipe.toml".
        known: names that may have been meant as well.
    """
    names = {each: each for each in known}
    with suppress(OSError):  # a name may be too long
        for pattern in (f"{folder}/{file}", file):
            for found in path.parent.glob(pattern):
                near = found.parent if "/" in file else found
                names[near.name.removesuffix(".toml")] = str(near)
    return nearest(path.name.removesuffix(".toml"), names, otherwise=otherwise)


def read_bytes(path: Path, kind: str = "text") -> bytes:
    """The bytes of a file; DataError, which asks for a ``kind`` file, if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        fault = error.strerror or type(error).__name__
        raise DataError(f"{path}: cannot be read ({fault}); name a {kind} file") from None


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device, which may block, is an OSError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return path.read_bytes()


def read_json(path: Path, kind: str) -> Any:
    """The content of a JSON file; DataError, which calls it a ``kind`` file, if there is none."""
    raw = read_bytes(path, kind)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is not JSON; take a {kind} file that drill wrote") from None


def decompressed(raw: bytes, path: Path) -> bytes:
    """The bytes of a file, unpacked if it starts like one of gzip or xz."""
    try:
        if raw.startswith(GZIP):
            return gzip.decompress(raw)
        if raw.startswith(XZ):
            return lzma.decompress(raw)
    except UNPACKING_FAULTS as error:
        raise DataError(
            f"{path}: cannot be unpacked ({error}); the file is damaged or cut off, get it again"
        ) from None
    return raw


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
    return decode_text(decompressed(read_bytes(path), path), str(path))


def lines_of(text: str) -> list[str]:
    """Lines of a text; an empty one after the last line end does not count.

    Only ``\\n`` ends a line: ``str.splitlines`` would also break at rarer characters.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def atomic_write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a temporary file in the same folder, then rename it to ``path``.

    A reader sees the old file or the new one, never a part; of several writers the last one wins.
    A symbolic link is replaced, not written through. A folder, a pipe or a device is an error.

    Args:
        path: where to write; missing folders are created.
        content: bytes, or a function that writes them to a stream.
    """
    try:
        if path.exists() and not (path.is_symlink() or path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, NOT_REGULAR)  # os.replace would take its place
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_file = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with partial_file.open("xb") as stream:
                stream.write(content) if isinstance(content, bytes) else content(stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial_file, path)
        finally:
            partial_file.unlink(missing_ok=True)
    except OSError as error:
        size = len(content) if isinstance(content, bytes) else None
        raise WriteError(path, error, size) from error


def write_output(path: Path, content: bytes) -> None:
    """Write where the user asked to: into a pipe or a device such as /dev/stdout, or a file.

    Unlike in ``atomic_write`` a link is followed: it is the user's own.
    """
    if not path.exists() or path.is_file() or path.is_dir():
        return atomic_write(Path(os.path.realpath(path)), content)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise WriteError(path, error, len(content)) from error


def remove_parts(path: Path) -> None:
    """Remove what a killed ``atomic_write`` of ``path`` left; its name may be a pattern.

    Nobody may be writing it now.
    """
    for part in path.parent.glob(f".{path.name}.{16 * '[0-9a-f]'}.tmp"):
        part.unlink(missing_ok=True)


def open_append(path: Path) -> int:
    """A file descriptor to read and append; a link, a pipe or a device is an OSError at once."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):  # Windows has none of them
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, NOT_REGULAR, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return handle


def append_line(path: Path, line: bytes) -> None:
    """Append to a regular file, all or nothing; the line is on disk when this returns."""
    with os.fdopen(open_append(path), "ab", buffering=0) as stream:
        size, left = os.fstat(stream.fileno()).st_size, memoryview(line)
        try:
            while left:
                left = left[stream.write(left) :]
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(size)
            raise


def digest(path: Path, algorithm: str) -> str:
    """The checksum of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        fresh = partial(hashlib.new, algorithm, usedforsecurity=False)
        return hashlib.file_digest(stream, fresh).hexdigest()


logger = logging.getLogger("drill")


def cache_root() -> Path | None:
    """``XDG_CACHE_HOME/drill``, by default ``~/.cache/drill``; None for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "drill"
    except RuntimeError:  # raised by pathlib for a user without a home
        return None


def warn_uncached(
    things: str, cost: str, folder: Path | None = None, error: OSError | None = None
) -> None:
    """Log once that ``things`` cannot be cached in ``folder`` (None: no home) and what it costs."""
    reason = "this user has no home" if error is None else error.strerror or str(error)
    _warn_once(things, cost, str(folder or "~/.cache"), reason)


@cache
def _warn_once(things: str, cost: str, folder: str, reason: str) -> None:
    logger.warning(
        f"{folder}: {things} cannot be cached there ({reason}), so {cost}; make it writable, or "
        "set XDG_CACHE_HOME to another folder"
    )
