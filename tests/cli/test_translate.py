"""`drill train` and `drill translate` of translators, as somebody types them."""

import gzip
import io
import json
import lzma
import sys
import types

import pytest

from drill import cli
from drill.translation import inference
from drill.translation.inference import Translation, translate
from drill.translation.run import load_translator
from drill.translation.search.decoding import Search
from tests.helpers.translators import set_by_command
from tests.helpers.workspaces import pairs_workspace

TINY = ("translate", "runs/tiny", "--device", "cpu")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return pairs_workspace(tmp_path_factory.mktemp("workspace"))


def test_train_prints_bleu_and_resumes(run_cli):
    changes = set_by_command()
    code, out, err = run_cli("train", "mt-demo", *changes, "--name", "tiny", "--device", "cpu")
    assert code == 0
    assert "runs/tiny: valid perplexity " in out
    assert "  test BLEU " in out
    assert "already trained: mt-demo" in err


def test_translate_keeps_the_number_and_the_order_of_lines(cli_output):
    lines = ["abc", "", "ed", " ", "世界", "a\0b", "a\r"]
    out = cli_output(*TINY, stdin="\n".join(lines))
    found = out.split("\n")
    assert len(found) == len(lines) + 1
    assert (found[1], found[3], found[-1]) == ("", "", "")
    run = load_translator("runs/tiny", device="cpu")
    clean = [line.rstrip("\r") for line in lines]
    expected = translate(run.model, run.subwords, clean, Search(beam_size=2))
    assert found[:-1] == [each[0].text for each in expected]


def test_translate_reads_packed_files_and_leaves_a_byte_order_mark_out(
    cli_error, run_cli, tmp_path
):
    raw = b"\xef\xbb\xbfabc\nde\n"
    plain = run_cli(*TINY, stdin="abc\nde\n")
    assert run_cli(*TINY, stdin=raw) == plain
    for name, packed in (("in.gz", gzip.compress(raw, mtime=0)), ("in.xz", lzma.compress(raw))):
        (tmp_path / name).write_bytes(packed)
        assert run_cli(*TINY, str(tmp_path / name)) == plain
        (tmp_path / name).write_bytes(packed[:-9])
        cli_error(*TINY, str(tmp_path / name), key=f"{name}: cannot be read")


def test_translate_writes_utf8_whatever_the_terminal_says(in_workspace, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    monkeypatch.setattr(sys, "argv", ["drill", *TINY])
    found = [[[Translation("Ä", 0.0, 0.0)]]]
    monkeypatch.setattr(inference, "translate_blocks", lambda *_: found)
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert written.getvalue().decode("utf-8") == "Ä\n"


def test_what_has_come_is_translated_before_more_is_awaited(in_workspace, monkeypatch, capfd):
    seen: list[str] = []

    class Slow:
        """A pipe into which somebody types; a line may come in two pieces."""

        pieces = iter([b"abc\nd", b"e\n", b"e"])

        def read1(self, most: int) -> bytes:
            seen.append(capfd.readouterr().out)
            return next(self.pieces, b"")

    monkeypatch.setattr(sys, "argv", ["drill", *TINY])
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=Slow()))
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    seen.append(capfd.readouterr().out)
    assert [out.count("\n") for out in seen] == [0, 1, 1, 0, 1]


def test_n_best_lists_scores_by_line(run_cli):
    words = (*TINY, "--n-best", "2")
    _, out, _ = run_cli(*words, stdin="abc\n\nde\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[2] == ["2", "0.0000", ""]
    _, out, _ = run_cli(*words, "--json", stdin="abc\n\nde\n")
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["line"] for each in found] == [1, 2, 3]
    assert [len(each["translations"]) for each in found] == [2, 1, 2]
    texts = [each["text"] for row in found for each in row["translations"]]
    assert texts == [row[2] for row in rows]


def test_greedy_and_samples(run_cli):
    _, greedy, _ = run_cli(*TINY, "--greedy", stdin="abc\n")
    assert greedy == run_cli(*TINY, "--beam", "1", stdin="abc\n")[1]
    sampled = ("--sample", "--seed", "3", "--n-best", "2", "--top-k", "9")
    assert run_cli(*TINY, *sampled, stdin="abc\n") == run_cli(*TINY, *sampled, stdin="abc\n")


@pytest.mark.parametrize(
    ("words", "stdin", "key"),
    [
        (["--greedy", "--sample"], "a", "--greedy: "),
        (["--greedy", "--length-penalty", "5"], "a", "--greedy: "),
        (["--beam", "2", "--n-best", "4"], "a", "--n-best 4: "),
        (["--sample", "--beam", "3"], "a", "--sample: "),
        (["--beam", "263"], "a", "beam_size: "),
        (["--seed", "3"], "a", "--seed: "),
        (["--temperature", "0.5"], "a", "--temperature: "),
        (["--length-penalty", "nan"], "a", "length_penalty"),
        (["nowhere.txt"], "a", "nowhere.txt: "),
        ([], b"abc\n\xff\n", "standard input: line 2 "),
    ],
)
def test_errors_are_one_line(cli_error, words, stdin, key):
    cli_error(*TINY, *words, stdin=stdin, key=key)
