"""The cache on disk: found by content, verified before use, rebuilt when damaged."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drill.data import Filters, ParallelText, Subwords, Vocabulary, cache_folder, encode_pairs
from drill.data.cache import CHECKSUMS, cache_key, cached, load_array
from drill.data.parallel.pairs import KEEP_ALL
from drill.data.subwords import cached_subwords
from drill.data.text.corpora import encode_text
from drill.errors import DataError
from tests.helpers.files import no_home

pytest.importorskip("tokenizers", reason="needs pip install tokenizers")

VALUE = np.arange(7)


class Source:
    """A value, and how often it was built."""

    def __init__(self, value=VALUE):
        self.value, self.built = value, 0

    def build(self):
        self.built += 1
        return self.value

    def __call__(self, folder, key="key"):
        return cached(
            folder,
            key,
            self.build,
            load=lambda entry: load_array(entry / "value.npy"),
            save=lambda value, entry: np.save(entry / "value.npy", value),
        )


def test_a_second_call_maps_the_file(tmp_path):
    source = Source()
    for _ in range(2):
        found = source(tmp_path / "cache")
        assert found.tolist() == VALUE.tolist()
        assert isinstance(found, np.memmap)
        assert not found.flags.writeable
    source(tmp_path / "cache", "another key")
    assert source.built == 2
    assert len([*(tmp_path / "cache").iterdir()]) == 2  # and nothing temporary


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "flip": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1"),
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_text("[3]"),
    "lose": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", ["value.npy", CHECKSUMS])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(tmp_path, name, damage):
    source = Source()
    source(tmp_path)
    DAMAGES[damage](tmp_path / "key" / name)
    for _ in range(2):
        assert source(tmp_path).tolist() == VALUE.tolist()
    assert source.built == 2  # once more, then from disk again
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_writers_at_the_same_time_agree(tmp_path):
    source = Source()
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: source(tmp_path).tolist(), range(64)))
    assert runs == [VALUE.tolist()] * 64
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_folder_that_cannot_be_written_costs_time_and_one_warning(
    tmp_path, caplog, forget_warnings
):
    (tmp_path / "file").write_text("")
    source = Source()
    for key in ("one", "two"):
        assert source(tmp_path / "file", key) is VALUE
    assert source.built == 2
    (warning,) = caplog.messages
    assert warning.startswith(f"{tmp_path / 'file'}: encoded texts and subwords cannot be cached")


def test_the_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "drill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "drill"
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(DataError, match="XDG_CACHE_HOME: this user has no home; set it"):
        cache_folder()


def test_keys_of_different_parts_differ():
    keys = [("a",), ("a", ""), ("a", "b"), ("b", "a"), ("ab",), ("a", "b\ud800")]
    assert len({cache_key("kind", *parts) for parts in keys} | {cache_key("other", "a")}) == 7


LINES = ["the cat sat", "the dog sat down"]
TEXT = "\n".join(LINES) + "\n"
VOCABULARY = Vocabulary.over_splits(LINES)
PAIRS = ParallelText(["ab", "c"], ["d", "e"])
SUBWORDS = Subwords.train(["a b c d e f"], size=259)


def same(first, second):
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.tolist() == second.tolist()
    if isinstance(first, Subwords):
        return first == second
    return first.filtered == second.filtered and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in ("ids", "offsets")
    )


@pytest.mark.parametrize(
    ("function", "variants"),
    [
        (
            encode_text,
            [
                (TEXT, VOCABULARY),
                (TEXT.replace("cat", "dog"), VOCABULARY),
                (TEXT, Vocabulary.from_training(LINES, min_count=2)),
                ("w65535\nw0\n", Vocabulary.over_splits([f"w{i}" for i in range(2**16)])),
            ],
        ),
        (
            encode_pairs,
            [
                (PAIRS, SUBWORDS),
                (ParallelText(PAIRS.target, PAIRS.source), SUBWORDS),
                (ParallelText(["a", "bc"], ["d", "e"]), SUBWORDS),
                (ParallelText(["", ""], ["", ""]), SUBWORDS),
                (PAIRS, Subwords.train(["abc"], size=259, single_digits=True)),
                (PAIRS, SUBWORDS, Filters()),
                (PAIRS, SUBWORDS, replace(KEEP_ALL, ratio=3.0)),
            ],
        ),
        (
            lambda lines, size, cache=None: cached_subwords(lines, cache, size=size),
            [(LINES, 259), (LINES, 260), (["f", "g"], 260)],
        ),
    ],
    ids=["text", "pairs", "subwords"],
)
def test_each_text_and_setting_is_an_entry_of_its_own(tmp_path, monkeypatch, function, variants):
    plain = [function(*variant) for variant in variants]
    for _ in range(2):
        for expected, variant in zip(plain, variants, strict=True):
            assert same(function(*variant, cache=tmp_path), expected)
        assert len([*tmp_path.iterdir()]) == len(variants)
        for name in ("drill.data.parallel.pairs._encode", "drill.data.cache._store"):
            monkeypatch.setattr(name, None)  # the second time nothing is built
