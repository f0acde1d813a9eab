"""`drill evaluate --tokenize`: chosen for BLEU, kept in the row, refused before a search."""

import json

import pytest

from tests.tiny_translation_place import make_place

WORDS = ("evaluate", "runs/tiny", "--split", "test", "--device", "cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize(("words", "cut_by"), [([], "13a"), (["--tokenize", "char"], "char")])
def test_the_signature_says_what_cut_the_words(drill, words, cut_by):
    code, out, _ = drill(*WORDS, *words, "--json")
    assert code == 0
    assert f"|tok:{cut_by}|" in json.loads(out)["signature"]


def test_an_unknown_one_is_refused(drill):
    code, out, err = drill(*WORDS, "--tokenize", "words")
    assert (code, out) == (1, "")
    assert "tokenize is one of 13a, intl, zh" in err
