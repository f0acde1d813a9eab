"""What a user of translators gets wrong is told in the words of settings and commands."""

import gzip
import lzma

import pytest

from tests.tiny_translation_place import make_place, set_by_command

WORDS = ("translate", "runs/tiny", "--device", "cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize(
    ("pack", "kind", "mend"),
    [(gzip.compress, "gzip", "gunzip"), (lzma.compress, "xz", "unxz")],
)
def test_packed_standard_input_is_named(drill, pack, kind, mend):
    code, out, err = drill(*WORDS, stdin=pack(b"abc\nde\n"))
    assert (code, out) == (1, "")
    assert err == f"drill: standard input: is {kind}, not text; pipe it through {mend}\n"


def test_a_pair_that_is_too_long_is_mended_by_settings(drill):
    changes = set_by_command("training.max_tokens=4")
    code, _, err = drill("train", "mt-demo", *changes, "--name", "short", "--device", "cpu")
    assert code == 1
    assert "raise training.max_tokens, or drop such pairs with a smaller filters.maximum" in err
    assert "Filters(" not in err
