"""The downloader against a server that misbehaves."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drill.data import DataError
from drill.data.download import download

BODY = bytes(range(256)) * 1200  # several chunks
MD5 = hashlib.md5(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """What the path names is how it behaves."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.strip("/")
        self.server.requests.append(name)
        if name == "missing":
            return self.send_error(404)
        body = BODY[::-1] if name == "other" else BODY
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return self.wfile.write(body[:1000] if name == "cut" else body)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.requests = []
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def target(tmp_path):
    """Where the file goes; it exists already, next to another file that must survive."""
    (tmp_path / "neighbour.txt").write_text("mine")
    (tmp_path / "train.txt").write_text("an older file")
    yield tmp_path / "train.txt"
    assert (tmp_path / "neighbour.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2  # no partial file


def test_a_file_arrives_and_the_log_says_from_where(server, target, caplog):
    download([f"{server.url}/plain"], target, MD5)
    assert target.read_bytes() == BODY
    assert caplog.messages == [f"downloading {target} from {server.url}/plain"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("missing", "404"),
        ("cut", "IncompleteRead"),
        ("other", f"md5 is {hashlib.md5(BODY[::-1]).hexdigest()}, not {MD5}"),
    ],
)
def test_a_failure_is_reported_and_spares_the_file_in_place(server, target, name, fault):
    with pytest.raises(DataError, match=fault) as caught:
        download([f"{server.url}/{name}"], target, MD5)
    assert "\n" not in str(caught.value)
    assert str(target) in str(caught.value)
    assert target.read_text() == "an older file"


def test_mirrors_are_tried_in_turn(server, target):
    urls = [f"{server.url}/{name}" for name in ("missing", "other", "plain", "never")]
    download(["http://127.0.0.1:9/", "ftp://h/f", "file:///x", *urls], target, MD5)
    assert target.read_bytes() == BODY
    assert server.requests == ["missing", "other", "plain"]
