"""One file from the web: mirrors tried in turn, transfers resumed, the checksum proven."""

import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from drill.errors import DataError
from drill.files import digest

CHUNK = 1 << 16
ATTEMPTS = 3  # per mirror, each going on where the one before broke off

Progress = Callable[[int, int | None], None]
"""Called with the bytes at hand and the bytes in all, None where the server does not say."""


class Broken(Exception):
    """A transfer ended early; what came so far is kept."""


def download(
    urls: Sequence[str],
    target: Path,
    md5: str,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> None:
    """Fetch ``target`` from the first mirror that gives a file with this checksum.

    Bytes go to ``<target>.part``, which is renamed when they are all there and their md5 is right.
    A transfer that breaks off leaves that file, and the next call asks for the rest only; a file
    with a wrong checksum is removed. Nothing else is ever removed or overwritten.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(target.parent):
            if target.is_file() and digest(target, "md5") == md5:
                return  # another process was faster
            faults = []
            for url in urls:
                fault = _from_mirror(url, part, md5, progress, timeout)
                if fault is None:
                    os.replace(part, target)
                    return
                faults.append(f"{url}: {fault}")
    except OSError as error:
        fault = error.strerror or type(error).__name__
        raise DataError(
            f"{target}: cannot be written ({fault}); set DRILL_DATA to a folder of yours"
        ) from None
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(faults) or 'no address is known'}); "
        f"try again, or put the file at {target} yourself"
    )


def _from_mirror(
    url: str, part: Path, md5: str, progress: Progress | None, timeout: float
) -> str | None:
    """Fill ``part`` from one address; the fault in words, or None when the checksum is right."""
    fault = ""
    for _ in range(ATTEMPTS):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _transfer(url, part, progress, timeout)
        except Broken as error:
            fault = str(error)
            continue
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server answers {error.code}"
        except (urllib.error.URLError, http.client.HTTPException, ValueError) as error:
            return f"no connection ({error})".replace("\n", " ")
        found = digest(part, "md5")
        if found == md5:
            return None
        part.unlink()
        fault = f"md5 {found} came, {md5} was expected"
        if not resumed:
            break  # a fresh copy was wrong: so would be the next one
    return fault


def _transfer(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append to ``part`` what it lacks, or write it anew where the server knows no ranges."""
    if not url.startswith(("https://", "http://")):
        raise ValueError("only http and https addresses are fetched")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        return  # nothing is left to fetch; the checksum decides
    except urllib.error.URLError:
        raise
    except OSError as error:  # after the request was sent
        raise Broken(f"the server gave no answer ({type(error).__name__})") from None
    with answer:
        if have and not _continues(answer, have):
            have = 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        with part.open("ab" if have else "wb") as stream:
            if progress:
                progress(have, total)
            for chunk in _chunks(answer):
                stream.write(chunk)
                have += len(chunk)
                if progress:
                    progress(have, total)
    if total is not None and have < total:
        raise Broken(f"the transfer ended at {have:,} of {total:,} bytes")


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = answer.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"the transfer broke off ({type(error).__name__})") from None
        if not chunk:
            return
        yield chunk


def _continues(answer: http.client.HTTPResponse, have: int) -> bool:
    """Whether the body starts at byte ``have``; a server may ignore the range asked for."""
    if answer.status != http.client.PARTIAL_CONTENT:
        return False
    if not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        raise Broken("the server sent another range than asked for")
    return True


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold other processes off: two that append to one ``.part`` would spoil it."""
    if sys.platform == "win32":
        yield  # no locks on folders there
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
