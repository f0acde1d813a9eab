"""Subwords: any text comes back, special ids never come from text, files are whole or refused."""

import json
import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drill.data import DataError, Subwords
from drill.data.subwords import BEGIN, END, PAD, SMALLEST

pytest.importorskip("tokenizers", reason="needs pip install tokenizers")

LINES = [
    "the cat sat on the mat",
    "die Katze saß auf der Matte",
    "the cats sat on 1984 mats, all of them",
    "im Jahr 1984 saßen die Katzen dort",
] * 5
TRAINED = {
    digits: Subwords.train(LINES, size=310, single_digits=digits) for digits in (False, True)
}


@pytest.fixture(scope="module")
def subwords():
    return TRAINED[False]


@given(line=st.text(st.characters(codec="utf-8"), max_size=60))
@example("")
@example("the cat " * 5_000 + "x" * 20_000)
@example(" leading, double  and trailing  ")
@example("Grüße an 世界, мир, عالم 🎉👩‍👩‍👧 e\u0301")
@example("<pad><begin>a <end>")
@example("tab\tbell\x07 nul\0 \r\n\x85\u2028\ufeff")
def test_any_text_comes_back_exactly(subwords, line):
    ids = subwords.encode(line)
    assert subwords.decode(ids) == line
    assert not {PAD, BEGIN, END} & set(ids)
    assert all(0 <= each < len(subwords) for each in ids)


SPACED = st.lists(st.sampled_from(["the", "Katze", "'s", "7", "19", " ", "\t", "\u3000", "é", ","]))


@pytest.mark.parametrize("single_digits", [False, True])
@given(lines=st.lists(SPACED.map(" ".join) | SPACED.map("".join), max_size=6))
def test_remembered_words_change_no_line(single_digits, lines):
    trained = TRAINED[single_digits]
    assert trained.encode_lines(lines) == [trained.encode(line) for line in lines]


def test_words_are_forgotten_when_they_are_many(subwords, monkeypatch):
    monkeypatch.setattr("drill.data.subwords.MOST_KNOWN", 5)
    for line in LINES:
        assert subwords.encode_lines([line, line]) == [subwords.encode(line)] * 2
        assert len(subwords._known) <= 5 + len(line.split())


def test_pieces_are_longer_than_bytes(subwords):
    assert len(subwords) == 310
    assert len(subwords.encode(LINES[0])) < len(LINES[0]) / 2
    assert subwords.piece(END) == "<end>"
    assert subwords.piece(subwords.encode(" the")[0]) == "Ġthe"


def test_special_names_in_the_training_text_stay_text():
    trained = Subwords.train(["<end> <pad><begin>"] * 50, size=400)
    ids = trained.encode("<end><pad><begin>")
    assert not {PAD, BEGIN, END} & set(ids)
    assert trained.decode([BEGIN, *ids, END, PAD, PAD]) == "<end><pad><begin>"


def test_the_same_lines_give_the_same_pieces(subwords):
    again = Subwords.train(iter(LINES), size=310)
    assert again == subwords
    assert again.fingerprint == subwords.fingerprint
    assert Subwords.train(LINES, size=309) != subwords


def test_single_digits_keep_numbers_apart(subwords):
    split = TRAINED[True]
    assert len(split.encode("1984")) == 4
    assert len(subwords.encode(" 1984")) < 4
    assert split.decode(split.encode("on 1984, 007")) == "on 1984, 007"
    assert split.fingerprint != subwords.fingerprint


def test_few_texts_give_fewer_pieces_and_say_so(caplog):
    with caplog.at_level(logging.WARNING, "drill"):
        trained = Subwords.train(["abc"], size=1_000)
    assert len(trained) == SMALLEST
    assert "1 lines gave 259 subwords, not 1,000" in caplog.text


def test_save_and_load_are_inverse(subwords, tmp_path):
    path = tmp_path / "run" / "subwords.json"
    subwords.save(path)
    again = Subwords.load(path)
    assert again == subwords == Subwords(subwords.description())
    assert path.read_text(encoding="utf-8") == subwords.description()
    assert again.encode("<end> Katze") == subwords.encode("<end> Katze")
    assert list(path.parent.iterdir()) == [path]


def change(*path, to):
    def damage(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        change("model", to=None),
        change("model", "vocab", "<pad>", to=7),
        change("model", "merges", to=[["zz", "qq"]]),
        change("decoder", to=None),
        lambda content: content["model"]["vocab"].pop("<end>"),
        lambda content: content.clear(),
    ],
)
def test_a_damaged_file_is_named(subwords, tmp_path, damage):
    path = tmp_path / "subwords.json"
    subwords.save(path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        Subwords.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "fault"),
    [
        (lambda _: Subwords.train(LINES, size=100), DataError, "size .* 100"),
        (lambda _: Subwords.train(LINES, min_count=0), DataError, "min_count"),
        (lambda _: Subwords.train([]), DataError, "no line"),
        (lambda _: Subwords.train("abc"), TypeError, "takes lines"),
        (lambda each: each.encode_lines(["a", "b\ud800"]), DataError, "UTF-8"),
        (lambda each: each.encode_lines(["a", "b c\ud800"]), DataError, "UTF-8"),
        (lambda each: each.decode([5, 310]), DataError, "id .* 310"),
        (lambda each: each.decode([-1]), DataError, "id .* -1"),
        (lambda each: each.piece(310), DataError, "id .* 310"),
    ],
)
def test_wrong_arguments_are_named(subwords, call, error, fault):
    with pytest.raises(error, match=fault):
        call(subwords)


def test_ids_that_are_no_whole_character_do_not_crash(subwords):
    first_byte = subwords.encode("世")[0]
    assert subwords.decode([first_byte]) == "\ufffd"
