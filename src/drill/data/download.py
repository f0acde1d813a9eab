"""Download one small file from the first mirror that has it."""

import hashlib
import http.client
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from drill.errors import DataError
from drill.files import atomic_write

CHUNK = 1 << 16
SILENCE = 30.0  # seconds that a server may be silent

OnProgress = Callable[[int, int], None]
"""Called with how much is done and how much there is, of bytes, pairs, lines or tokens."""


def download(
    urls: Sequence[str], target: Path, md5: str, size: int, progress: OnProgress | None = None
) -> None:
    """Write ``target`` from the first of its mirrors that gives a file with this checksum.

    The file stays in memory until its checksum is known, so ``target`` is complete or untouched.
    ``size`` is what ``progress`` is told.
    """
    failures = []
    for url in urls:
        try:
            content = _fetch(url, size, progress)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{url}: {error or type(error).__name__}".replace("\n", " "))
            continue
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found == md5:
            return atomic_write(target, content)
        failures.append(f"{url}: md5 is {found}, not {md5}")
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(failures)}); try again, or put the "
        f"file at {target} yourself"
    )


def _fetch(url: str, size: int, progress: OnProgress | None) -> bytes:
    content = bytearray()
    with urllib.request.urlopen(url, timeout=SILENCE) as answer:
        while chunk := answer.read1(CHUNK):
            content += chunk
            if progress:
                progress(len(content), size)
    return bytes(content)
