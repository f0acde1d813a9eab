"""`drill evaluate --text`: a language model on a text that is no split of its corpus."""

import gzip
import hashlib
import json
import lzma
import shutil

import numpy as np
import pytest

from tests.tiny_place import make_place, typed

TEXT = b"lamp is lit\nboat boat storm sea\nis lit\n" * 20  # 9 words, 3 ends; the storm is new


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture
def drill(place, monkeypatch, capfd):
    (place / "test").write_bytes(TEXT)  # called as a split is
    return typed(place, monkeypatch, capfd)


def evaluated(drill, *words):
    code, out, err = drill("evaluate", "runs/tiny", "--device", "cpu", "--json", *words)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def test_a_text_that_is_the_test_split_costs_what_that_costs(drill, place):
    """Read by another way, the same words have the same perplexity, whatever the way."""
    for way in ([], ["--cache"], ["--dynamic"]):
        (split,), _ = evaluated(drill, "--split", "test", *way)
        (own,), _ = evaluated(drill, "--text", "text/test.txt", *way)
        assert (own["kind"], own["split"], own["text"]) == (split["kind"], "files", "text/test.txt")
        assert own["loss"] == split["loss"]
        assert (own["tokens"], own["unknown"]) == (split["tokens"], 0)


def test_the_row_tells_the_file_and_what_the_model_does_not_know(drill, place):
    (row,), err = evaluated(drill, "--text", "test")
    assert row["sha256"] == hashlib.sha256(TEXT).hexdigest()
    assert (row["unknown"], row["tokens"]) == (20, 239)
    assert err.startswith(
        "test: 20 of its 180 words (11.1%) are <unk> to the model, which the perplexity takes for "
        "one word\n<unk> is nowhere in the training text"
    )
    kept = json.loads((place / "runs/tiny/evaluations.jsonl").read_text().splitlines()[-1])
    assert kept == row
    _, out, _ = drill("evaluate", "runs/tiny", "--text", "test", "--device", "cpu")
    assert out.startswith("plain test   perplexity ")
    assert "239 tokens (20 of them <unk>) in 1 column" in out


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_text_is_unpacked(drill, place, pack):
    (plain,), _ = evaluated(drill, "--text", "test")
    (place / "packed").write_bytes(pack(TEXT))
    (packed,), _ = evaluated(drill, "--text", "packed")
    assert packed["loss"] == plain["loss"]
    assert packed["sha256"] == hashlib.sha256((place / "packed").read_bytes()).hexdigest()


def test_a_text_needs_no_corpus(drill, place):
    """A run is handed on without what it was trained on."""
    before, _ = evaluated(drill, "--text", "test")
    shutil.move(place / "text", place / "elsewhere")
    try:
        after, _ = evaluated(drill, "--text", "test")
    finally:
        shutil.move(place / "elsewhere", place / "text")
    assert after[0]["loss"] == before[0]["loss"]


def test_losses_of_a_text_are_written(drill, place):
    (row,), _ = evaluated(drill, "--text", "test", "--losses", "own.npy")
    losses = np.load(place / "own.npy")
    assert len(losses) == row["tokens"]
    assert losses.mean() == pytest.approx(row["loss"], rel=1e-5)


def test_a_text_is_not_taken_for_the_test_of_the_run(drill, place):
    shutil.copytree(place / "runs/tiny", place / "runs/reported")
    words = ("runs/reported", "--cache", "--device", "cpu")
    assert drill("evaluate", *words)[0] == 0
    _, before, _ = drill("report", "runs/reported", "--markdown")
    assert drill("evaluate", *words, "--text", "test")[0] == 0
    assert drill("report", "runs/reported", "--markdown")[1] == before
    assert drill("record", "runs/reported")[0] == 0
    row = json.loads((place / "runs/ledger.jsonl").read_text().splitlines()[-1])
    assert {each["split"] for each in row["evaluations"]} == {"valid", "test"}
    assert not any("text" in each for each in row["evaluations"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "nowhere"], "nowhere: cannot be read (No such file or directory)"),
        (["--text", "empty"], "empty: holds no words; give a text with one sentence a line"),
        (["--text", "text"], "text: cannot be read (Is a directory); name a text file"),
        (
            ["--text", "test", "--split", "test"],
            "--split: is of the run's own corpus; leave it or --text out",
        ),
        (
            ["--source", "test", "--reference", "test"],
            "--source: is for translators, which runs/tiny is not; --text reads another text",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_told(drill, place, words, said):
    (place / "empty").write_bytes(b"")
    code, out, err = drill("evaluate", "runs/tiny", "--device", "cpu", *words)
    assert (code, out) == (1, "")
    assert err.startswith(f"drill: {said}")
