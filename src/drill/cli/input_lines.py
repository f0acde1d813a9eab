"""Lines of a file or of standard input, as they come."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drill.data import DataError
from drill.data.parallel.parallel_text import opened_text
from drill.files import BYTE_ORDER_MARK, GZIP, UNPACKING_FAULTS, XZ

CHUNK = 1 << 16
"""Bytes that are read at most before what has come is handed on; some hundred lines."""


def is_standard_input(file: Path | None) -> bool:
    return file is None or str(file) == "-"


def name_of(file: Path | None) -> str:
    return "standard input" if is_standard_input(file) else str(file)


def blocks_of_lines(file: Path | None, *, nul: bool = False) -> Iterator[list[str]]:
    """Whole lines without their ends; of a terminal one by one, of a pipe what is in it.

    A packed file is unpacked, packed standard input refused, a byte order mark left out. A line
    that is no text ends them, after those before it; one that holds NUL is none unless ``nul``.
    """
    if file is None or is_standard_input(file):
        yield from _blocks(sys.stdin.buffer, name_of(file), nul, plain=True)
    else:
        with opened_text(file) as stream:
            yield from _blocks(stream, name_of(file), nul)


def _blocks(stream: Any, name: str, nul: bool, plain: bool = False) -> Iterator[list[str]]:
    rest, number = b"", 0
    while chunk := _read(stream, name):
        if plain and number == 0:
            _check_uncompressed(rest + chunk, name)
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield from _decoded(whole, name, number, nul)
            number += len(whole)
    if rest:
        yield from _decoded([rest], name, number, nul)


def _check_uncompressed(start: bytes, name: str) -> None:
    for mark, kind, mend in ((GZIP, "gzip", "gunzip"), (XZ, "xz", "unxz")):
        if start.startswith(mark):
            raise DataError(f"{name}: is {kind}, not text; pipe it through {mend}")


def _read(stream: Any, name: str) -> bytes:
    try:
        chunk: bytes = stream.read1(CHUNK)
    except UNPACKING_FAULTS as error:
        raise DataError(
            f"{name}: cannot be read ({error}); the file is damaged or cut off, get it again"
        ) from None
    return chunk


def _decoded(lines: list[bytes], name: str, before: int, nul: bool) -> Iterator[list[str]]:
    """The lines as one block; ``before`` so many came before."""
    if before == 0:
        lines = [lines[0].removeprefix(BYTE_ORDER_MARK), *lines[1:]]
    found: list[str] = []
    for number, line in enumerate(lines, start=before + 1):
        fault = _fault(line, nul)
        if fault is not None:
            if found:
                yield found  # what is good is not lost by what follows it
            raise DataError(f"{name}: line {number} {fault}")
        found.append(line.removesuffix(b"\r").decode("utf-8"))
    yield found


def _fault(line: bytes, nul: bool) -> str | None:
    if b"\0" in line and not nul:
        return "holds NUL, so this is no plain text; give a UTF-8 text file"
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8; convert it first"
    return None
