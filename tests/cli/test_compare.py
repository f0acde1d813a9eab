"""`drill compare`."""

import json

import numpy as np
import pytest

from drill.language_modeling.run import load_language_model
from drill.report import read_run
from drill.tasks import train
from drill.training.settings import recipe
from tests.helpers.workspaces import inside, pairs_workspace, run_cli_in, text_workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Language models tiny, more (of one vocabulary) and other."""
    folder = text_workspace(tmp_path_factory.mktemp("workspace"))
    (folder / "other.txt").write_text("quite other words\n" * 300)
    with inside(folder):
        changes = {"more": "training.seed=5", "other": "data.corpus=other.txt"}
        for name, change in changes.items():
            settings = recipe("tiny.toml", ["training.epochs=1", change])
            train(settings, f"runs/{name}", device="cpu", quiet=True)
    return folder


def compared(run_cli, *words):
    code, out, err = run_cli("compare", *words, "--json", "--device", "cpu")
    assert code == 0, err
    return json.loads(out)


def test_losses_are_those_of_the_runs_and_words_add_up(run_cli, workspace):
    found = compared(run_cli, "runs/tiny", "runs/more", "--top", "100")
    runs = [load_language_model(f"runs/{name}", device="cpu") for name in ("tiny", "more")]
    for side, run in zip("ab", runs, strict=True):
        assert found[side] == pytest.approx(run.perplexity("test").loss, rel=0.05)
    assert found["difference"] == pytest.approx(found["b"] - found["a"])
    assert found["low"] < found["difference"] < found["high"]
    changes = [row["change"] for row in (*found["gained"], *found["lost"])]
    assert np.sum(changes) == pytest.approx(found["difference"] * found["tokens"])
    assert [row["change"] for row in found["gained"]] == sorted(
        row["change"] for row in found["gained"]
    )


def test_a_text_is_read_from_a_file(run_cli, cli_error, workspace):
    (workspace / "mine.txt").write_text("lamp is lit\nboat is an unknown word\nsea\n")
    found = compared(run_cli, "runs/tiny", "runs/tiny", "--text", "mine.txt")
    assert found["tokens"] == 11
    assert (found["difference"], found["low"], found["high"]) == (0.0, 0.0, 0.0)
    assert found["gained"] == found["lost"] == []
    for text, said in {"lamp\nis\0lit\n": "line 2 is not UTF-8", "": "no words"}.items():
        (workspace / "mine.txt").write_text(text)
        cli_error("compare", "runs/tiny", "runs/tiny", "--text", "mine.txt", key=said)


def test_the_table_names_both_runs(cli_output):
    out = cli_output("compare", "runs/tiny", "runs/more", "--device", "cpu")
    assert all(word in out for word in ("tiny", "more", "perplexity", "95% interval"))
    assert "difference = more minus tiny" in out


def test_runs_that_do_not_compare_are_an_error(cli_error):
    cli_error("compare", "runs/tiny", "runs/other", key="vocabulary")
    cli_error("compare", "runs/tiny", "runs/none", key="runs/none")
    cli_error("compare", "runs/tiny", "runs/more", "--reference", "mine.txt", key="--reference")


def test_translators_are_compared_by_bleu(tmp_path, monkeypatch, capfd):
    folder = pairs_workspace(tmp_path)
    run_cli = run_cli_in(folder, monkeypatch, capfd)
    found = compared(run_cli, "runs/tiny", "runs/tiny")
    assert (found["kind"], found["difference"], found["gained"]) == ("bleu", 0.0, [])
    files = ("--text", "pairs/test.en", "--reference", "pairs/test.de")
    assert compared(run_cli, "runs/tiny", "runs/tiny", *files)["a"] == found["a"]
    code, _, err = run_cli("compare", "runs/tiny", "runs/tiny", *files[:2])
    assert (code, "--reference" in err) == (1, True)


def test_analyse_prints_bands_and_ranks(cli_output, workspace):
    out = cli_output("analyse", "runs/tiny", "runs/more", "--device", "cpu")
    assert all(word in out for word in ("by types", "calibration error", "g_out(E)", "streams"))
    width = load_language_model("runs/tiny", device="cpu").model.layer.hidden_size
    ranks = [line for line in out.splitlines() if line.endswith(f"| {width + 2} |")]
    assert len(ranks) == 2
    out = cli_output("analyse", "runs/tiny", "runs/more", "--json", "--device", "cpu")
    found = json.loads(out)
    assert all(each["relative"] <= width + 2 for each in found["ranks"].values())
    (text,) = found["texts"]
    assert [*text["losses"]] == [*found["ranks"]] == ["tiny", "more"]
    assert sum(band["tokens"] for band in text["losses"]["tiny"]) > 0
    assert '"nan"' not in out
    assert any(band["by_types"] for band in text["changes"]["more"])
    assert 0 < text["ece"]["tiny"] < 1
    assert text["norms"]["tiny"][0]["types"] > 0
    assert text["nearest"]["tiny"][0]["output"]
    cli_output("analyse", "runs/more", "--no-rank", "--device", "cpu")
    (kept,) = read_run("runs/more").evaluations
    assert (kept["kind"], kept["split"]) == ("analyse", "test")
    assert kept["bands"] == text["losses"]["more"]
    ranks = {key: kept[f"rank_{key}"] for key in ("absolute", "relative", "bound")}
    assert ranks.items() <= found["ranks"]["more"].items()
    cells = cli_output("report", "runs/more", "--markdown").split("## Rank")[1].split("|")
    assert f" {ranks['relative']} " in cells
