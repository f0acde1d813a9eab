"""Dictionary entries, and features of words."""

import pytest

from drill.data import EOS, DataError, Vocabulary, WordFeatures, WordNet
from drill.data.text.word_features import ngrams
from tests.helpers import wordnet


@pytest.mark.parametrize(
    ("word", "gloss"),
    [
        ("lamp", "an artificial source of visible illumination"),
        ("Boats", "a small vessel for travel on water; +s; ride in a vessel on water"),
        ("lit", "make lighter; give light; +verb"),
        ("is", None),
        ("lamplight", None),
    ],
)
def test_glosses_of_words_and_inflected_forms(word, gloss, tmp_path):
    assert WordNet(wordnet.write(tmp_path / "wordnet")).describe(word) == gloss


def test_a_missing_dictionary_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DRILL_WORDNET", str(tmp_path))
    with pytest.raises(DataError, match="wordnet-base") as error:
        WordNet()
    assert error.value.key == str(tmp_path)


WORDS = ["cat", "cats", "dog", "a", EOS, "unseen"]
COUNTS = [5, 4, 3, 2, 1, 0]
GLOSSES = {"cat": "a tame animal", "cats": "a tame animal; +s", "dog": "an animal that barks"}


def named(source, free_row=False):
    """The features of every word of ``WORDS``, by kind."""
    features = WordFeatures(Vocabulary(WORDS, COUNTS, GLOSSES), source, free_row)
    names = {place: text for (_, text), place in features.ids.items()}
    found = features.of(WORDS, GLOSSES)
    return {w: [{names[i] for i in bag} for bag in b] for w, b in zip(WORDS, found, strict=True)}


def test_characters():
    assert ngrams("cat") == ["<ca", "cat", "at>", "<cat", "cat>"]
    found = named("characters")
    assert found["cat"] == found["cats"] == [{"<ca", "cat", "<cat"}]  # those of several words
    assert found["dog"] == [{"dog"}]  # shares none, so it has itself
    assert found["a"] == [{"<a>"}]
    assert found["unseen"] == [set()]


def test_glosses_and_free_rows():
    assert named("gloss")["cats"] == [{"a", "tame", "animal"}]
    assert named("gloss")["a"] == [{"a"}]
    assert named("gloss", free_row=True)["dog"] == [{"animal"}, {"dog"}]
    assert named("characters+gloss")["dog"] == [set(), {"animal"}]
    assert named("characters", free_row=True)["unseen"] == [set(), set()]
