"""The downloader against a server that misbehaves in every way it can."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drill.data import DataError, download

BODY = bytes(range(256)) * 1200  # several chunks
MD5 = hashlib.md5(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        behaviour = self.path.strip("/")
        body = server.body
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if behaviour == "missing":
            self.send_error(404)
            return
        if behaviour == "silent":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if behaviour == "norange" or not asked:
            self.send_response(200)
            start = 0
        elif start >= len(body):
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        else:
            self.send_response(206)
            first = start + 1 if behaviour == "shifted" else start
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        if behaviour != "lengthless":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        stop = len(body)
        if behaviour == "truncating":
            stop = min(stop, start + len(body) // 2)  # half of it per request
        elif behaviour == "stuck":
            stop = min(stop, 1000)
        self.wfile.write(body[start:stop])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.body, httpd.requests = BODY, []
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def target(tmp_path):
    """Where the file goes; a neighbour must survive everything."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "neighbour.txt").write_text("mine")
    yield folder / "train.txt"
    assert (folder / "neighbour.txt").read_text() == "mine"


def part_of(target):
    return target.with_name("train.txt.part")


def ranges(server):
    return [asked for _, asked in server.requests]


def test_a_file_arrives_with_progress(server, target):
    seen = []
    download([f"{server.url}/plain"], target, MD5, lambda *step: seen.append(step))
    assert target.read_bytes() == BODY
    assert not part_of(target).exists()
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)
    assert len(seen) > 3


def test_a_transfer_resumes_where_it_was_interrupted(server, target):
    def interrupt(have, total):
        if have > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download([f"{server.url}/plain"], target, MD5, interrupt)
    kept = part_of(target).stat().st_size
    assert 0 < kept < len(BODY)
    assert not target.exists()
    download([f"{server.url}/plain"], target, MD5)
    assert target.read_bytes() == BODY
    assert ranges(server) == [None, f"bytes={kept}-"]


def test_a_truncated_transfer_is_taken_up_again(server, target):
    download([f"{server.url}/truncating"], target, MD5)
    assert target.read_bytes() == BODY
    assert ranges(server) == [None, f"bytes={len(BODY) // 2}-"]


def test_a_transfer_that_never_ends_keeps_its_part(server, target):
    with pytest.raises(DataError, match=r"ended at 1,000 of 307,200 bytes"):
        download([f"{server.url}/stuck"], target, MD5)
    assert part_of(target).read_bytes() == BODY[:1000]
    assert not target.exists()


def test_a_server_without_ranges_sends_all_again(server, target):
    part_of(target).write_bytes(b"x" * 5000)
    download([f"{server.url}/norange"], target, MD5)
    assert target.read_bytes() == BODY
    assert len(server.requests) == 1


def test_a_server_without_lengths_is_fine(server, target):
    seen = []
    download([f"{server.url}/lengthless"], target, MD5, lambda *step: seen.append(step))
    assert target.read_bytes() == BODY
    assert seen[-1] == (len(BODY), None)


def test_a_wrong_checksum_names_both_and_leaves_nothing(server, target):
    server.body = b"another text"
    with pytest.raises(DataError) as caught:
        download([f"{server.url}/plain"], target, MD5)
    assert MD5 in str(caught.value)
    assert hashlib.md5(server.body).hexdigest() in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in target.parent.iterdir()] == ["neighbour.txt"]
    assert len(server.requests) == 1


def test_a_wrong_checksum_spares_the_file_in_place(server, target):
    target.write_bytes(b"an older file")
    server.body = b"another text"
    with pytest.raises(DataError):
        download([f"{server.url}/plain"], target, MD5)
    assert target.read_bytes() == b"an older file"


@pytest.mark.parametrize("have", [5000, len(BODY), len(BODY) + 9])
def test_a_spoilt_part_is_fetched_anew(server, target, have):
    part_of(target).write_bytes(b"x" * have)
    download([f"{server.url}/plain"], target, MD5)
    assert target.read_bytes() == BODY
    assert ranges(server) == [f"bytes={have}-", None]


def test_a_complete_part_needs_no_more_bytes(server, target):
    part_of(target).write_bytes(BODY)
    download([f"{server.url}/plain"], target, MD5)
    assert target.read_bytes() == BODY
    assert not part_of(target).exists()


def test_a_file_already_there_is_not_fetched(server, target):
    target.write_bytes(BODY)
    download([f"{server.url}/plain"], target, MD5)
    assert server.requests == []


def test_mirrors_are_tried_in_turn(server, target):
    urls = [f"{server.url}/{name}" for name in ("missing", "silent", "plain")]
    download(["http://127.0.0.1:9/closed", "ftp://host/file", *urls], target, MD5)
    assert target.read_bytes() == BODY


def test_when_every_mirror_fails_each_fault_is_told(server, target):
    part_of(target).write_bytes(BODY[:10])
    urls = [f"{server.url}/{name}" for name in ("missing", "silent", "shifted")]
    with pytest.raises(DataError) as caught:
        download(urls, target, MD5, timeout=5)
    message = str(caught.value)
    for words in ("answers 404", "gave no answer", "another range", "put the file at"):
        assert words in message
    assert "\n" not in message
    assert part_of(target).read_bytes() == BODY[:10]


def test_processes_that_fetch_at_once_do_not_spoil_each_other(server, target):
    def fetch():
        download([f"{server.url}/truncating"], target, MD5)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == BODY
    assert len(server.requests) == 2  # one fetched, the others found the file


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        download([f"{server.url}/plain"], tmp_path / "file" / "train.txt", MD5)
