"""Download one small file from the first mirror that has it."""

import hashlib
import http.client
import logging
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from drill.errors import DataError
from drill.files import atomic_write

SILENCE = 30.0  # seconds that a server may be silent

logger = logging.getLogger("drill")


def download(urls: Sequence[str], target: Path, md5: str) -> None:
    """Write ``target`` from the first of its mirrors that gives a file with this checksum.

    The file stays in memory until its checksum is known, so ``target`` is complete or untouched.
    Every attempt is a line of the log, at a level that is shown by default.
    """
    failures = []
    for url in urls:
        logger.warning("downloading %s from %s", target, url)
        try:
            with urllib.request.urlopen(url, timeout=SILENCE) as answer:
                content = answer.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{url}: {error or type(error).__name__}".replace("\n", " "))
            continue
        checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if checksum == md5:
            return atomic_write(target, content)
        failures.append(f"{url}: md5 is {checksum}, not {md5}")
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(failures)}); try again, or put the "
        f"file at {target} yourself"
    )
