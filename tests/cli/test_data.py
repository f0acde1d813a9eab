"""`drill data`: what is here, and folders of pairs as `drill train` reads them."""

import gzip
import lzma

import pytest

from tests.helpers.workspaces import run_cli_in

PAIRS = {"train": 30, "valid": 4, "test": 3}


@pytest.fixture
def data(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DRILL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    command = run_cli_in(tmp_path, monkeypatch, capfd)
    return lambda *words: command("data", *words)


def write(folder, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in PAIRS.items():
        for name in names:
            raw = b"two words\n" * count
            packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(name[-3:], bytes)(raw)
            (folder / f"{split}.{name}").write_bytes(packed)


@pytest.mark.parametrize("names", [("en.gz", "de.xz"), ("en", "de"), ("en.xz", "de")])
def test_packed_pairs_are_counted(data, tmp_path, names):
    write(tmp_path / "own", *names)
    code, out, err = data("own", "--source", "en", "--target", "de")
    assert (code, err) == (0, "")
    assert out == (
        "own: en to de, pairs train 30  valid 4  test 3; training words source 60  target 60\n"
    )


def test_pairs_are_english_to_german_unless_languages_are_given(data, tmp_path):
    write(tmp_path / "own", "en", "de", "fr.gz")
    assert "own: fr to en, pairs train 30" in data("own", "--source", "fr", "--target", "en")[1]
    assert "own: fr to de, pairs train 30" in data("own", "--source", "fr")[1]
    code, _, err = data("ptb", "--source", "fr", "--target", "en")
    assert (code, "'ptb' is neither a parallel corpus" in err) == (1, True)


def test_the_list_says_what_is_here(data, tmp_path):
    def states() -> dict[str, str]:
        rows = [line.split("  ") for line in data()[1].splitlines()[:-1]]
        return {cells[0]: next(cell for cell in cells[1:] if cell).strip() for cells in rows}

    before = states()
    assert (before["ptb"], before["multi30k"]) == ("downloadable", "missing")
    write(tmp_path / "data" / "ptb", "txt")
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de.gz"):
            path = tmp_path / "data" / "multi30k" / f"{name}.{language}"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    after = states()
    assert {name for name in after if after[name] != before[name]} == {"ptb", "multi30k"}
    assert (after["ptb"], after["multi30k"]) == ("found", "found")
    assert "DRILL_DATA" in data()[1].splitlines()[-1]
