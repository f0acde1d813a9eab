"""Which words bands hold, and which runs are compared with which."""

from functools import partial
from types import SimpleNamespace

import pytest
from torch import nn

from drill import TiedSoftmax
from drill.data import Ids, Vocabulary
from drill.errors import SettingsError
from drill.language_modeling.evaluation.calibration import calibration
from drill.language_modeling.evaluation.perplexity import token_losses
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.report.analysis.comparison import RunComparison

LINES = ["the lamp is lit", "the <unk> boat", "a lamp"] * 30
TOKENS, ENDS, UNKNOWN = 12 * 30, 3 * 30, 30


def run(corpus: str, vocabulary: Vocabulary, lines: list[str]) -> SimpleNamespace:
    """As much of a run as is compared."""
    embedding = nn.Embedding(len(vocabulary), 4)
    ids = vocabulary.encode(lines)
    model = LanguageModel(AwdLstm(embedding, 4, 1), TiedSoftmax(embedding))
    return SimpleNamespace(
        settings=SimpleNamespace(data={"corpus": corpus}, training={"precision": "float32"}),
        vocabulary=vocabulary,
        ids=Ids(ids, ids, ids),
        model=model,
        token_losses=partial(token_losses, model),
        calibration=partial(calibration, model),
    )


def compared(vocabulary: Vocabulary, lines: list[str] = LINES, corpus: str = "own", **options):
    """The one text of the models tied and drill."""
    found = RunComparison(**options)
    for name in ("tied", "drill"):
        found.add(name, run(corpus, vocabulary, lines))
    (text,) = found.texts
    return text


@pytest.mark.parametrize(("corpus", "left_out"), [("ptb", ["<eos>"]), ("own", ["<eos>", "<unk>"])])
def test_unk_is_a_word_of_a_closed_corpus_alone(corpus, left_out):
    vocabulary = Vocabulary.over_splits(LINES)
    text = compared(vocabulary, corpus=corpus)
    assert list(text.left_out) == left_out
    tokens = sum(band.tokens for band in text.losses["tied"])
    inside = TOKENS - ENDS - (UNKNOWN if "<unk>" in left_out else 0)
    assert inside - 20 <= tokens < inside  # no stream predicts its first token
    assert sum(change.tokens for change in text.changes["drill"]) == tokens
    assert text.calibration["drill"].tokens == TOKENS - 20
    assert sum(band.types for band in text.norms["tied"]) == len(vocabulary) - len(left_out)


def test_texts_of_equally_many_words_are_not_one_text():
    found = RunComparison()
    vocabulary = Vocabulary.from_training(LINES)
    swapped = {"lamp": "boat", "boat": "lamp"}
    other = [" ".join(swapped.get(word, word) for word in line.split()) for line in LINES]
    found.add("one", run("own", vocabulary, LINES))
    found.add("other", run("own", Vocabulary.from_training(other), other))
    one, other = found.texts
    assert (one.models, other.models) == (["one"], ["other"])
    assert [b.tokens for b in one.losses["one"]] == [b.tokens for b in other.losses["other"]]


def test_nearest_labels_are_those_of_given_words():
    vocabulary = Vocabulary.from_training(LINES)
    text = compared(vocabulary, words=["lamp", "a"])
    assert [each.label for each in text.nearest["tied"]] == ["lamp", "a"]
    with pytest.raises(SettingsError, match="zebra"):
        compared(vocabulary, words=["zebra"])


@pytest.mark.parametrize("lines", [LINES[:1], ["lit"]])
def test_a_short_text_is_read_at_a_smaller_batch_size(lines):
    assert list(compared(Vocabulary.from_training(LINES), lines).changes) == ["drill"]


def test_losses_changes_and_norms_have_the_bands_that_words_can_be_in():
    vocabulary = Vocabulary.from_training([*LINES, "rare"], min_count=20)
    text = compared(vocabulary, edges=(1, 10, 50))
    named = [[b.label for b in each["drill"]] for each in (text.losses, text.changes, text.norms)]
    assert named == [["never", "30 to 49", "50 and more"]] * 2 + [["30 to 49", "50 and more"]]
