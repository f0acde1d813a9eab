"""The downloader: whole files alone, from the first mirror that has them."""

import hashlib
import http.client
import urllib.request
from unittest.mock import Mock

import pytest

from drill.data import DataError
from drill.data.download import download

BODY = bytes(range(256)) * 1200
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.fixture
def mirror(tmp_path):
    """URLs of a file that is right, of another one and of none."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / "plain").write_bytes(BODY)
    (folder / "other").write_bytes(BODY[::-1])
    return {name: (folder / name).as_uri() for name in ("plain", "other", "missing")}


@pytest.fixture
def target(tmp_path):
    """Where the file goes; it exists already."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train.txt"
    path.write_text("an older file")
    yield path
    assert list(path.parent.iterdir()) == [path]  # no partial file


def test_a_file_comes_from_the_first_mirror_that_has_it_and_the_log_says_so(mirror, target, caplog):
    urls = ["http://127.0.0.1:9/", "ftp://h/f", mirror["other"], mirror["plain"], "never:asked"]
    download(urls, target, MD5)
    assert target.read_bytes() == BODY
    assert caplog.messages == [f"downloading {target} from {url}" for url in urls[:-1]]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("missing", "No such file"),
        ("other", f"md5 is {hashlib.md5(BODY[::-1]).hexdigest()}, not {MD5}"),
        ("cut", "IncompleteRead"),
    ],
)
def test_a_failure_is_reported_and_spares_the_file_in_place(
    mirror, target, monkeypatch, name, fault
):
    if name == "cut":
        cut = Mock(side_effect=http.client.IncompleteRead(BODY[:1000]))
        monkeypatch.setattr(urllib.request, "urlopen", cut)
    with pytest.raises(DataError, match=fault) as caught:
        download([mirror.get(name, "http://h/f")], target, MD5)
    assert "\n" not in str(caught.value)
    assert str(target) in str(caught.value)
    assert target.read_text() == "an older file"
