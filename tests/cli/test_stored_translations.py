"""Translations in the folders of runs: how they were made, and which of them compare."""

import json
import shutil

import pytest

from drill.errors import RunFolderError
from drill.training.run.folder import RunFolder
from drill.translation.evaluate import DecodingInfo, read_decoding_info, save_hypotheses
from tests.helpers.workspaces import pairs_workspace

MADE = DecodingInfo(beam_size=4, length_penalty=0.6, weights="best")


def test_decoding_info_is_saved_next_to_translations(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_decoding_info(folder, "test", "de") is None  # as in older runs
    save_hypotheses(folder, "test", "de", ["eins", ""], MADE)
    assert folder.hypotheses("test", "de").read_text() == "eins\n\n"
    assert read_decoding_info(folder, "test", "de") == MADE
    assert read_decoding_info(folder, "valid", "de") is None


def test_decoding_info_of_other_translations_is_ignored(tmp_path):
    """Somebody killed between the two files, or who copies one of them, leaves such a pair."""
    folder = RunFolder(tmp_path)
    save_hypotheses(folder, "test", "de", ["eins"], MADE)
    folder.hypotheses("test", "de").write_text("zwei\n")
    assert read_decoding_info(folder, "test", "de") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checksum": 1, "beam": "many"}'])
def test_damaged_decoding_info_is_an_error(tmp_path, content):
    folder = RunFolder(tmp_path)
    save_hypotheses(folder, "test", "de", ["eins"], MADE)
    folder.hypotheses_made("test", "de").write_text(content)
    with pytest.raises(RunFolderError, match=r"test\.de\.hyp\.json"):
        read_decoding_info(folder, "test", "de")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = pairs_workspace(tmp_path_factory.mktemp("workspace"))
    shutil.copytree(folder / "runs/tiny", folder / "runs/other")
    return folder


def test_the_final_test_saves_its_decoding_info(workspace):
    made = read_decoding_info(RunFolder(workspace / "runs/tiny"), "test", "de")
    row = RunFolder(workspace / "runs/tiny").test_row()
    assert made == DecodingInfo(row["beam"], row["length_penalty"], row["weights"])


def test_runs_of_different_searches_are_not_compared(cli_error, run_cli, workspace, tmp_path):
    bands = ("report", "runs/tiny", "runs/other", "--bands", "--device", "cpu", "--out")
    evaluate = ("evaluate", "runs/other", "--split", "test", "--device", "cpu", "-q")
    page = str(tmp_path / "page.html")
    assert run_cli(*bands, page)[0] == 0
    assert run_cli(*evaluate, "--beam", "1")[0] == 0
    assert "`drill evaluate runs/other --split test --beam 2 --length-penalty 0.6`" in cli_error(
        *bands, page, key="--bands: "
    )
    assert run_cli(*bands[:2], *bands[3:], page)[0] == 0  # alone, it is compared with none
    assert run_cli(*evaluate, "--beam", "2", "--length-penalty", "0.6")[0] == 0
    assert run_cli(*bands, page)[0] == 0


def test_translations_that_may_not_compare_are_noted(run_cli, workspace, tmp_path):
    bands = ("report", "runs/tiny", "runs/other", "--bands", "--device", "cpu")
    words = ("evaluate", "runs/other", "--split", "test", "--device", "cpu", "-q")
    assert run_cli(*words, "--weights", "last")[0] == 0
    code, _, err = run_cli(*bands, "--out", str(tmp_path / "page.html"))
    tested = RunFolder(workspace / "runs/other").test_row()["weights"]
    assert code == 0, err
    assert f"the last weights, its test with the {tested} ones" in err
    info = workspace / "runs/other/test.de.hyp.json"
    assert json.loads(info.read_text())["weights"] == "last"
    info.unlink()
    code, _, err = run_cli(*bands, "--out", str(tmp_path / "page.html"))
    assert code == 0, err
    assert "runs/other: the search that made its translations is unknown" in err
    assert run_cli(*words)[0] == 0
