"""`drill generate` and `drill score`."""

import json
import shutil

import pytest
import torch

from drill.training.run.checkpoint import load, save

UNTRAINED = "<unk> does not occur in the training text"
READ_AS_UNK = "not in the vocabulary, read as <unk>: "


def test_generate_prints_the_prompt_and_notes_unknown_words(drill):
    words = ("generate", "runs/tiny", "--prompt", "the boat", "--seed", "3")
    words += ("--max-new-tokens", "12")
    code, out, err = drill(*words)
    assert code == 0
    assert err.startswith(f"{READ_AS_UNK}the\n{UNTRAINED}")
    assert out.startswith("the boat ")
    assert set(out.split()[1:]) <= {"lamp", "boat", "sea", "is", "lit"}
    assert drill(*words)[1] == out


def test_every_sample_starts_with_the_prompt_or_none(drill):
    words = ("generate", "runs/tiny", "--prompt", "sea is ", "--samples", "2", "--seed", "3")
    _, out, _ = drill(*words, "--max-new-tokens", "4")
    texts = out.removesuffix("\n").split("\n\n")
    assert [text[:6] for text in texts] == ["sea is"] * 2
    assert "\033" not in out
    _, bare, _ = drill(*words, "--max-new-tokens", "4", "--no-echo")
    assert bare == out.replace("sea is", "")
    unprompted = drill("generate", "runs/tiny", "--max-new-tokens", "3", "--seed", "1")[1]
    assert not unprompted.startswith(" ")


def test_score_reads_standard_input_and_files(drill, fails, place):
    text = "lamp is lit\n\nsea sea unheard\n"
    code, out, _ = drill("score", "runs/tiny", "--json", "--words", stdin=text)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["tokens"] for row in rows] == [4, 1, 4]
    assert rows[2]["unknown"] == ["unheard"]
    assert sum(value for _, value in rows[0]["words"]) == pytest.approx(rows[0]["log_prob"])
    (place / "lines.txt").write_text(text)
    code, out, err = drill("score", "runs/tiny", "lines.txt")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err.splitlines()[0] == f"{READ_AS_UNK}unheard"
    assert err.splitlines()[1].startswith(UNTRAINED)
    assert float(out.splitlines()[0].split("\t")[0]) == pytest.approx(rows[0]["log_prob"], abs=1e-3)
    _, named, _ = drill("score", "runs/tiny", "lines.txt", "--header")
    assert named == f"log p\ttokens\tunknown\tperplexity\ttext\n{out}"
    assert [line.split("\t")[2] for line in out.splitlines()] == ["0", "0", "1"]
    for raw in (b"lamp\n\xff\xfe\n", b"lamp\nis\0lit\n"):
        (place / "bad.txt").write_bytes(raw)
        fails("score", "runs/tiny", "bad.txt", key="bad.txt: line 2 ")


def test_words_are_printed_below_their_line_in_its_columns(drill):
    _, out, _ = drill("score", "runs/tiny", "--words", "--header", stdin="lamp is\nlit\n")
    names, *rows = (line.split("\t") for line in out.splitlines())
    rows = [dict(zip(names, row, strict=True)) for row in rows]
    texts = ["lamp is", "lamp", "is", "<eos>", "lit", "lit", "<eos>"]
    assert [row["text"] for row in rows] == texts
    assert [row["tokens"] for row in rows] == ["3", "", "", "", "2", "", ""]
    words = sum(float(row["log p"]) for row in rows[1:4])
    assert words == pytest.approx(float(rows[0]["log p"]), abs=1e-3)


def test_a_line_without_probability_is_printed_and_no_success(drill, fails, place):
    shutil.copytree(place / "runs/tiny", place / "runs/never")
    path = place / "runs/never/best.safetensors"
    tensors, numbers = load(path)
    words = json.loads((place / "runs/never/vocabulary.json").read_text())["words"]
    tensors["layer.bias"][words.index("boat")] = -torch.inf
    save(path, tensors, numbers)
    text = "lamp\nsea boat\nboat\n"
    code, out, err = drill("score", "runs/never", "--json", "--words", stdin=text)
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert (code, [row["perplexity"] for row in rows[1:]]) == (1, ["inf", "inf"])
    assert rows[1]["words"][1] == ["boat", "-inf"]
    assert err.startswith("drill: standard input: line 2: ")
    fails("score", "runs/never", stdin=text, key="line 2")
    assert drill("score", "runs/never", stdin="lamp\n")[0] == 0


@pytest.mark.parametrize("words", [["empty.txt"], [], ["--json"], ["--header"]])
def test_a_text_without_a_line_is_an_error(drill, place, words):
    (place / "empty.txt").write_bytes(b"")
    code, out, err = drill("score", "runs/tiny", *words, stdin="")
    assert (code, out) == (1, "")
    assert err.startswith("drill: empty.txt: " if "empty.txt" in words else "drill: standard in")
    code, out, _ = drill("score", "runs/tiny", stdin="\n")  # an empty line is one
    assert (code, out.split("\t")[1]) == (0, "1")


def test_unknown_words_are_named_once_and_at_most_20(drill):
    unknown = [f"word{i}" for i in range(23)]
    text = f"{' '.join(unknown)} lamp\nword0 boat\n"
    _, _, err = drill("score", "runs/tiny", stdin=text)
    assert f"{READ_AS_UNK}{' '.join(unknown[:20])} and 3 more" in err
    assert READ_AS_UNK not in drill("score", "runs/tiny", "--json", stdin=text)[2]


def test_reading_commands_write_nothing_into_the_run(drill, place):
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (place / "runs/tiny").rglob("*.*")}

    before = files()
    assert drill("generate", "runs/tiny", "--max-new-tokens", "8", "--device", "cpu")[0] == 0
    assert drill("score", "runs/tiny", stdin="the sea\n")[0] == 0
    assert files() == before
