"""The server: who may ask, which requests are errors, and that odd text is harmless."""

import json
import re
import socket
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from drill.language_modeling.run import load_language_model
from drill.report.play.answers import LanguageModelPlayer
from drill.tasks import train
from drill.training.settings import recipe
from tests.helpers import wordnet

TestClient = pytest.importorskip("starlette.testclient").TestClient

from drill.report.play import answers, server  # noqa: E402 - needs starlette
from drill.report.play.server import Server  # noqa: E402

URL = "http://127.0.0.1:8765"
PAGE = Path(server.__file__).parent


@pytest.fixture(scope="module")
def client(models, workspace):
    return TestClient(Server(models, [workspace / "runs"]).app(), base_url=URL)


@pytest.fixture(scope="module")
def subword_client(subword_models, subword_workspace):
    return TestClient(Server(subword_models, [subword_workspace / "runs"]).app(), base_url=URL)


@pytest.fixture(scope="module")
def translator_client(translators, translator_workspace):
    return TestClient(Server(translators, [translator_workspace / "runs"]).app(), base_url=URL)


HOSTS = ["evil.example", "127.0.0.1.evil.example:8765", "localhost.evil.example", ""]
ORIGINS = ["http://evil.example", "https://127.0.0.1:8765", "http://127.0.0.1:9999", "null"]


@pytest.mark.parametrize(
    "headers", [*({"host": each} for each in HOSTS), *({"origin": each} for each in ORIGINS)]
)
@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_other_hosts_and_origins_are_rejected(client, path, headers):
    answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "runs" not in answer.json()


@pytest.mark.parametrize("headers", [{}, {"origin": URL}, {"host": "localhost:1"}])
def test_the_page_may_ask(client, headers):
    answer = client.get("/api/runs", headers=headers)
    assert answer.status_code == 200
    assert [each["name"] for each in answer.json()["runs"]] == ["tied", "tiny"]


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/page.css", "/plots.css", "/plots.js", "/api/runs", "/missing"]
)
def test_every_answer_has_a_strict_policy(client, path):
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_needs_nothing_from_elsewhere():
    html, script, style = (
        (PAGE / name).read_text() for name in ("page.html", "page.js", "page.css")
    )
    script += server.FILES["/plots.js"].read_text()
    addresses = re.findall(r"(?:https?:)?//[\w.]+\.\w+", html + script + style)
    assert set(addresses) <= {"http://www.w3.org"}  # the namespace of SVG
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
    used = set(re.findall(r'\$\("([\w-]+)"\)', script))
    assert used <= set(re.findall(r'id="([\w-]+)"', html))


BIG = "x" * (server.MAX_TEXT + 1)


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("next", {"text": BIG}, "text"),
        ("next", {"text": 5}, "text"),
        *(("next", {"text": "a", "runs": runs}, "runs") for runs in ([2], [-1], [], "0", [0.0])),
        ("next", {"text": "a", "beam": 2}, "beam"),
        ("score", {"text": ""}, "text"),
        ("word", {"word": ""}, "word"),
        ("translate", {"text": "a"}, "translator"),
        ("sample", {"text": "a", "tokens": 10**6}, "tokens"),
        ("sample", {"text": "a", "temperature": -1}, "temperature"),
        ("sample", {"text": "a", "top_p": 2.0}, "top_p"),
        ("sample", {"text": "a", "seed": "x"}, "seed"),
        ("sample", {"text": "<eos>"}, "<eos>"),
    ],
)
def test_a_wrong_request_names_what_is_wrong(client, path, body, key):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 400
    assert key in answer.json()["error"]


@pytest.mark.parametrize("error", [TypeError("no label"), ValueError("a size of 3")])
def test_a_bug_is_no_wrong_request(models, monkeypatch, error):
    monkeypatch.setattr(answers, "next_words", Mock(side_effect=error))
    asked = TestClient(Server(models, []).app(), base_url=URL, raise_server_exceptions=False)
    assert asked.post("/api/next", json={"text": "a"}).status_code == 500


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"[" * 60_000, b"\xff", b"1" * 5000])
def test_a_body_that_is_no_json_object_is_rejected(client, body):
    answer = client.post("/api/next", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_a_form_of_another_site_is_rejected(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = client.post("/api/next", content=b'{"text": ""}', headers={"content-type": kind})
        assert answer.status_code == 400


ODD = ["<script>alert(1)</script>", "\x00\x07\x1b[2J\x7f", "\ud800 half", "\u202eabc\ufeff"]
ODD += ["\U0001f389 é"]


@pytest.mark.parametrize("text", ODD)
def test_odd_text_is_harmless(client, subword_client, translator_client, text):
    body = json.dumps({"text": text})
    headers = {"content-type": "application/json"}
    for asked, path in product((client, subword_client), ("next", "score", "sample")):
        answer = asked.post(f"/api/{path}", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert "html" not in answer.headers["content-type"]
    answer = translator_client.post("/api/translate", content=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_a_sample_streams_the_text_of_generate(client, models):
    options = {"temperature": 0.7, "top_k": 4, "top_p": 0.9, "seed": 3}
    body = {"run": 1, "text": "the boat", "tokens": 12, **options}
    with client.stream("POST", "/api/sample", json=body) as answer:
        pieces = [json.loads(line) for line in answer.iter_lines()]
    assert len(pieces) == 12
    expected = models[1].run.generate("the boat", max_new_tokens=12, **options)
    assert "the boat" + "".join(pieces) == expected


def test_curves_are_shown_while_a_model_is_busy(models, workspace):
    busy = Server(models, [workspace / "runs"])
    client = TestClient(busy.app(), base_url=URL)
    with busy.lock:
        assert len(client.get("/api/curves").json()["runs"]) == 2


def test_a_translator_is_asked_for_translations_only(translator_client):
    answer = translator_client.post("/api/translate", json={"text": "a b", "runs": [0, 1]})
    assert [len(run) for run in answer.json()["runs"]] == [1, 1]
    assert translator_client.post("/api/next", json={"text": ""}).status_code == 400
    answer = translator_client.post("/api/translate", json={"text": "a", "beam": 99})
    assert answer.json()["error"].startswith("beam: ")


def test_a_word_is_added_where_the_label_source_allows_it(models, workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("DRILL_WORDNET", str(wordnet.write(tmp_path / "wordnet")))
    settings = recipe("tied.toml", ["training.epochs=1", "labels.source=gloss"])
    train(settings, tmp_path / "run", device="cpu", quiet=True)
    described = LanguageModelPlayer("gloss", load_language_model(tmp_path / "run", device="cpu"))
    app = Server([models[0], described], []).app()
    client = TestClient(app, base_url=URL)
    assert [each["adds_words"] for each in client.get("/api/runs").json()["runs"]] == [False, True]
    body = {"runs": [0, 1], "word": "canoe", "text": "a vessel on water"}
    tied, added = client.post("/api/add", json=body).json()
    assert (tied["count"], added["count"], len(added["embedding"])) == (None, 0, 7)
    assert client.post("/api/next", json={"runs": [1], "text": "canoe"}).json()["unknown"] == [[]]
    assert "already" in client.post("/api/add", json=body).json()["error"]
    assert client.post("/api/add", json={**body, "runs": [0]}).status_code == 400
    body = {"runs": [1], "word": "kayak", "text": "qwrt"}
    assert "kayak" in client.post("/api/add", json=body).json()["error"]


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """Does not serve: collects the applications and addresses that were to be."""
    uvicorn = pytest.importorskip("uvicorn")
    found = []

    def run(self, sockets):
        socket.create_connection(sockets[0].getsockname()).close()  # it listens already
        found.append((self.config.app, sockets[0].getsockname()))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    return found


def test_the_command_serves_this_machine_only(cli_output, served):
    out = cli_output("play", "runs/tied", "runs/tiny", "--port", "0")
    ((app, (host, port)),) = served
    assert host == "127.0.0.1"
    assert out.startswith(f"http://127.0.0.1:{port} ")
    assert len(TestClient(app, base_url=URL).get("/api/runs").json()["runs"]) == 2


def test_a_folder_of_runs_shows_curves_alone(cli_output, served):
    cli_output("play", "runs", "--port", "0")
    client = TestClient(served[0][0], base_url=URL)
    assert client.get("/api/runs").json()["task"] is None
    assert len(client.get("/api/curves").json()["runs"]) == 2


def test_runs_that_do_not_fit_and_a_taken_port_are_errors(cli_error, served, translator_workspace):
    cli_error("play", "text", "--port", "0", key="text")
    translator = str(translator_workspace / "runs/tiny")
    cli_error("play", "runs/tiny", translator, "--port", "0", key="translator")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cli_error("play", "runs", "--port", str(taken.getsockname()[1]), key="--port")


def test_runs_with_two_tokenizers_are_an_error(cli_output, cli_error, served, subword_workspace):
    runs = [str(subword_workspace / "runs" / name) for name in ("subwords", "other", "tiny")]
    cli_output("play", runs[0], "--port", "0")
    client = TestClient(served[0][0], base_url=URL)
    assert client.get("/api/runs").json()["unit"] == "subword"
    assert client.post("/api/word", json={"word": "boat", "exact": 1}).status_code == 400
    for other in runs[1:]:
        cli_error("play", runs[0], other, "--port", "0", key="tokenizer")
