"""Download one small file from the first mirror that has it."""

import hashlib
import http.client
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from drill.errors import DataError
from drill.files import WriteError, atomic_write

CHUNK = 1 << 16
MINIMUM_RATE = 10_000  # bytes per second, after the first ``timeout`` seconds

OnProgress = Callable[[int, int], None]
"""Called with how much is done and how much there is, of bytes, pairs, lines or tokens."""


def download(
    urls: Sequence[str],
    target: Path,
    md5: str,
    size: int,
    progress: OnProgress | None = None,
    timeout: float = 30.0,
) -> None:
    """Write ``target`` from the first of its mirrors that gives ``size`` bytes with this checksum.

    The file stays in memory until its checksum is known, so ``target`` is complete or untouched. A
    server may be silent for ``timeout`` seconds.
    """
    failures = []
    for url in urls:
        try:
            content = _fetch(url, size, progress, timeout)
            found = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if found != md5:
                raise ValueError(f"md5 is {found}, not {md5}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{url}: {error or type(error).__name__}".replace("\n", " "))
            continue
        try:
            return atomic_write(target, content)
        except WriteError as error:
            hint = "set DRILL_DATA to a folder of yours"
            raise DataError(f"{target}: cannot be written ({error.reason}); {hint}") from None
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(failures) or 'no URL is known'}); "
        f"try again, or put the file at {target} yourself"
    )


def _fetch(url: str, size: int, progress: OnProgress | None, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout + size / MINIMUM_RATE
    content = bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        while chunk := answer.read1(CHUNK):
            content += chunk
            if len(content) > size:
                raise ValueError(f"more than the {size:,} bytes of this file were sent")
            if time.monotonic() > deadline:
                raise ValueError(f"too slow: {len(content):,} of {size:,} bytes")
            if progress:
                progress(len(content), size)
    if len(content) < size:
        raise ValueError(f"the transfer ended at {len(content):,} of {size:,} bytes")
    return bytes(content)
