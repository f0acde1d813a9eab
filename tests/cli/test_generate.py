"""`drill generate` and `drill score`."""

import json
import sys

import pytest

UNTRAINED = "<unk> does not occur in the training text"
READ_AS_UNK = "not in the vocabulary, read as <unk>: "


def test_generate_prints_the_prompt_and_notes_unknown_words(run_cli):
    words = ("generate", "runs/tiny", "--prompt", "the boat", "--seed", "3")
    words += ("--max-new-tokens", "12")
    code, out, err = run_cli(*words)
    assert code == 0
    assert err.startswith(f"{READ_AS_UNK}the\n{UNTRAINED}")
    assert out.startswith("the boat ")
    assert set(out.split()[1:]) <= {"lamp", "boat", "sea", "is", "lit"}
    assert run_cli(*words)[1] == out


def test_every_sample_starts_with_the_prompt(run_cli):
    words = ("generate", "runs/tiny", "--prompt", "sea is ", "--samples", "2", "--seed", "3")
    _, out, _ = run_cli(*words, "--max-new-tokens", "4")
    texts = out.removesuffix("\n").split("\n\n")
    assert [text[:6] for text in texts] == ["sea is"] * 2
    assert "\033" not in out
    unprompted = run_cli("generate", "runs/tiny", "--max-new-tokens", "3", "--seed", "1")[1]
    assert not unprompted.startswith(" ")


def test_score_reads_standard_input_and_files(run_cli, cli_error, workspace, monkeypatch):
    text = "lamp is lit\n\nsea sea unheard\n"
    code, out, _ = run_cli("score", "runs/tiny", "--json", stdin=text)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["tokens"] for row in rows] == [4, 1, 4]
    assert rows[2]["unknown"] == ["unheard"]
    assert sum(value for _, value in rows[0]["words"]) == pytest.approx(rows[0]["log_prob"])
    (workspace / "lines.txt").write_text(text)
    code, out, err = run_cli("score", "runs/tiny", "lines.txt")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err.splitlines()[0] == f"{READ_AS_UNK}unheard"
    assert err.splitlines()[1].startswith(UNTRAINED)
    assert float(out.splitlines()[0].split("\t")[0]) == pytest.approx(rows[0]["log_prob"], abs=1e-3)
    assert [line.split("\t")[2] for line in out.splitlines()] == ["0", "0", "1"]
    monkeypatch.setattr(sys, "stdin", None)  # a closed one
    assert run_cli("score", "runs/tiny", "lines.txt")[1] == out
    cli_error("score", "runs/tiny", key="standard input: is closed")
    for raw in (b"lamp\n\xff\xfe\n", b"lamp\nis\0lit\n"):
        (workspace / "bad.txt").write_bytes(raw)
        cli_error("score", "runs/tiny", "bad.txt", key="bad.txt: line 2 ")
    (workspace / "bad.txt").write_text("lamp is\n", encoding="utf-16")
    cli_error("score", "runs/tiny", "bad.txt", key="is not UTF-8")


@pytest.mark.parametrize("words", [["empty.txt"], [], ["--json"]])
def test_a_text_without_a_line_is_an_error(run_cli, workspace, words):
    (workspace / "empty.txt").write_bytes(b"")
    code, out, err = run_cli("score", "runs/tiny", *words, stdin="")
    assert (code, out) == (1, "")
    assert err.startswith("drill: empty.txt: " if "empty.txt" in words else "drill: standard in")
    code, out, _ = run_cli("score", "runs/tiny", stdin="\n")  # an empty line is one
    assert (code, out.split("\t")[1]) == (0, "1")


def test_unknown_words_are_named_once_and_at_most_20(run_cli):
    unknown = [f"word{i}" for i in range(23)]
    text = f"{' '.join(unknown)} lamp\nword0 boat\n"
    _, _, err = run_cli("score", "runs/tiny", stdin=text)
    assert f"{READ_AS_UNK}{' '.join(unknown[:20])} and 3 more" in err
    assert READ_AS_UNK not in run_cli("score", "runs/tiny", "--json", stdin=text)[2]
