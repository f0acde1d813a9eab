"""Cached ids: found by content, proven before use, rebuilt when damaged."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drill.data import ParallelText, Subwords, Vocabulary, cache_folder, encode_pairs, encoded

TEXT = "the cat sat\nthe dog sat down\n"
VOCABULARY = Vocabulary.over_splits(TEXT.splitlines())
IDS = VOCABULARY.encode(TEXT.splitlines()).tolist()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def counted(monkeypatch):
    """How often a text was really encoded."""
    calls = []
    encode = Vocabulary.encode

    def counting(self, lines):
        calls.append(1)
        return encode(self, lines)

    monkeypatch.setattr(Vocabulary, "encode", counting)
    return calls


def test_a_second_call_reads_the_map(tmp_path, counted):
    for _ in range(2):
        ids = encoded(TEXT, VOCABULARY, tmp_path)
        assert ids.tolist() == IDS
        assert isinstance(ids, np.memmap)
        assert ids.dtype == np.uint16
        assert not ids.flags.writeable
    assert len(counted) == 1
    assert len(files(tmp_path)) == 2


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert encoded(TEXT, VOCABULARY).tolist() == IDS
    assert files(tmp_path) == []


def test_many_words_take_wider_ids(tmp_path):
    words = [f"w{i}" for i in range(2**16)]
    vocabulary = Vocabulary.over_splits([" ".join(words)])
    ids = encoded("w65535\nw0\n", vocabulary, tmp_path)
    assert ids.dtype == np.int32
    assert ids.tolist() == [65535, 65536, 0, 65536]


def test_another_text_is_another_entry(tmp_path, counted):
    encoded(TEXT, VOCABULARY, tmp_path)
    changed = encoded(TEXT.replace("cat", "dog"), VOCABULARY, tmp_path)
    assert changed.tolist() == [VOCABULARY.ids["dog"] if i == 1 else i for i in IDS]
    assert len(counted) == 2


def test_another_vocabulary_is_another_entry(tmp_path, counted):
    encoded(TEXT, VOCABULARY, tmp_path)
    smaller = Vocabulary.from_training(TEXT.splitlines(), minimum_count=2)
    assert max(encoded(TEXT, smaller, tmp_path)) < len(smaller)
    assert len(counted) == 2


def test_counts_alone_do_not_make_another_entry(tmp_path, counted):
    encoded(TEXT, VOCABULARY, tmp_path)
    encoded(TEXT, Vocabulary(VOCABULARY.words, [0] * len(VOCABULARY)), tmp_path)
    assert len(counted) == 1


def truncate(values, note):
    values.write_bytes(values.read_bytes()[:-3])


def flip(values, note):
    raw = bytearray(values.read_bytes())
    raw[-1] ^= 1
    values.write_bytes(raw)


def empty(values, note):
    values.write_bytes(b"")


def lose_values(values, note):
    values.unlink()


def lose_note(values, note):
    note.unlink()


def spoil_note(values, note):
    note.write_text("{")


def strange_note(values, note):
    note.write_text("[]")


def foreign_values(values, note):
    """Well described, but no array: checksum and size are right."""
    import hashlib

    values.write_bytes(b"no array")
    digest = hashlib.sha256(b"no array").hexdigest()
    note.write_text(json.dumps({"bytes": 8, "sha256": digest}))


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip,
        empty,
        lose_values,
        lose_note,
        spoil_note,
        strange_note,
        foreign_values,
    ],
)
def test_a_damaged_entry_is_built_again(tmp_path, counted, damage):
    encoded(TEXT, VOCABULARY, tmp_path)
    (values,), (note,) = tmp_path.glob("*.npy"), tmp_path.glob("*.json")
    damage(values, note)
    assert encoded(TEXT, VOCABULARY, tmp_path).tolist() == IDS
    assert encoded(TEXT, VOCABULARY, tmp_path).tolist() == IDS
    assert len(counted) == 2  # once more, then from disk again


def test_writers_at_the_same_time_agree(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: encoded(TEXT, VOCABULARY, tmp_path).tolist(), range(64)))
    assert runs == [IDS] * 64
    assert len(files(tmp_path)) == 2  # and no file is left over


def test_a_folder_that_cannot_be_written_costs_only_time_and_is_told_once(
    tmp_path, caplog, unwarned
):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    for text in (TEXT, TEXT * 2):  # as of several splits
        assert encoded(text, VOCABULARY, blocked).tolist() == IDS * text.count("down")
    subwords = Subwords.train(TEXT.splitlines(), size=262)
    pairs = ParallelText(["the cat"], ["the dog"])
    assert len(encode_pairs(pairs, subwords, cache=blocked)) == 1
    assert caplog.messages == [
        f"{blocked}: encoded texts and subwords cannot be cached there (File exists), so every "
        "start makes them again; make it writable, or set XDG_CACHE_HOME to another folder"
    ]


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "drill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "drill"


def test_a_user_without_a_home_has_no_cache_and_is_told_once(homeless, caplog):
    assert cache_folder() is cache_folder() is None
    (said,) = caplog.messages
    assert said.startswith(
        "~/.cache: encoded texts and subwords cannot be cached there (this user has no home), so "
    )
