"""`drill translate`: how long translations may be, and faults in the words of the command."""

import pytest

from tests.tiny_translation_place import make_place

WORDS = ("translate", "runs/tiny", "--device", "cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize("how", [["--length-penalty", "9"], ["--sample", "--seed", "1"]])
def test_translations_are_as_long_as_the_limits_allow(drill, how):
    line = "abcdeabcde"
    free = drill(*WORDS, *how, stdin=line)[1]
    assert len(free) > 3
    assert drill(*WORDS, *how, "--max-ratio", "1", "--max-extra", "50", stdin=line)[1] == free
    # Three subwords are two and the <end>, one is the <end> alone.
    for most, limit in (3, ["--max-ratio", "0"]), (1, ["--max-ratio", "0.01"]):
        code, out, _ = drill(*WORDS, *how, *limit, "--max-extra", str(most), stdin=line)
        assert (code, len(out) < len(free)) == (0, True)
    assert out == "\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-ratio", "nan"], "max_ratio and max_extra are finite numbers of at least 0"),
        (["--max-ratio", "inf"], "max_ratio and max_extra are finite numbers of at least 0"),
        (["--sample", "--temperature", "0"], "use --greedy"),
        (["--max-extra", "-1"], "max_ratio and max_extra are finite numbers of at least 0"),
    ],
)
def test_faults_speak_of_options(drill, words, sentence):
    code, out, err = drill(*WORDS, *words, stdin="abc\n")
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.startswith("drill: ")
