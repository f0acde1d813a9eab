"""Text in, files out: reading a text strictly, and writing a file whole or not at all."""

import errno
import gzip
import hashlib
import logging
import lzma
import os
import secrets
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

from drill.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or what a user may have of it
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\0"  # what packed files begin with
UNPACKING_FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError)


class NotWritten(OSError):
    """A file that could not be written; one sentence with the place, the room and the mend."""

    def __init__(self, path: Path, cause: OSError, size: int | None = None) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause), str(path))
        self.room = (
            f"; {amount(size)} are needed" if size is not None and cause.errno in FULL else ""
        )

    def __str__(self) -> str:
        return (
            f"{self.filename}: cannot be written ({self.strerror}{self.room}); "
            f"{mend_of_writing(self, 'choose another place')}"
        )


def mend_of_writing(cause: OSError, instead: str = "") -> str:
    """What can be done about a place that cannot be written, or ``instead`` of that."""
    mends = [instead] if instead else []
    if cause.errno in FULL:
        mends.insert(0, "make room")
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        mends.insert(0, "get the right to write there")
    return " or ".join(mends) or "see to that"


def amount(size: int) -> str:
    """Bytes as a user counts them."""
    return f"{size / 2**20:,.0f} MiB" if size >= 2 * 2**20 else f"{-(-size // 2**10):,} KiB"


def decode_text(raw: bytes, name: str) -> str:
    """The text of a corpus file: UTF-8, with words and at least two lines.

    Line ends become ``\\n``; a byte order mark goes. ``name`` is what an error calls the text.
    """
    zero = raw.find(b"\0")
    if zero >= 0:
        raise DataError(
            f"{name}: byte {zero} is NUL, so this is no plain text; give a UTF-8 text file"
        )
    mark = len(BYTE_ORDER_MARK) if raw.startswith(BYTE_ORDER_MARK) else 0
    try:
        text = raw[mark:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {mark + error.start} is not UTF-8; convert the file, for example with "
            "iconv -f latin1 -t utf-8"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():
        raise DataError(f"{name}: holds no words; give a text with one sentence a line")
    if len(lines_of(text)) < 2:
        raise DataError(f"{name}: holds a single line; break the text, one sentence a line")
    return text


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fault = error.strerror or type(error).__name__
        raise DataError(f"{path}: cannot be read ({fault}); name a text file") from None


def unpacked(raw: bytes, path: Path) -> bytes:
    """The bytes of a file, of one packed by gzip or xz those inside; the first of them decide."""
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


def read_text(path: Path) -> str:
    """``decode_text`` of a file, packed or not."""
    return decode_text(unpacked(read_bytes(path), path), str(path))


def lines_of(text: str) -> list[str]:
    """Lines of a text; what follows the last line end counts only where it is not empty.

    Only ``\\n`` ends a line: ``str.splitlines`` would also break at rarer characters.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def write_whole(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write ``content``, or let it fill the file, beside ``path``; then rename it into place.

    A reader sees the old file or the new one, never a part; of several writers the last one wins.
    A link stays, and the file that it names is written; what is no file, as a pipe or a device, is
    written as it is and stays too. What goes wrong with the disk is NotWritten.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as stream:
                _fill(stream, content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        place = _named_by(path)
        beside = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
        try:
            with beside.open("xb") as stream:
                _fill(stream, content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        size = len(content) if isinstance(content, bytes) else None
        raise NotWritten(path, error, size) from error


def _named_by(path: Path) -> Path:
    """The file that a link names, or the path itself; of links in a ring one of them."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _fill(stream: BinaryIO, content: bytes | Callable[[BinaryIO], object]) -> None:
    if isinstance(content, bytes):
        stream.write(content)
    else:
        content(stream)


def remove_parts(path: Path) -> None:
    """Remove what a killed ``write_whole`` of ``path`` has left; nobody may be writing it now."""
    place = _named_by(path)
    for part in place.parent.glob(f".{place.name}.*.tmp"):
        part.unlink(missing_ok=True)


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
