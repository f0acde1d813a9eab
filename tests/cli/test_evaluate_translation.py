"""`drill evaluate`, `report`, `ledger add` and `export` of translators; which of them compare."""

import json
import re
import shutil
from dataclasses import asdict
from unittest.mock import Mock

import pytest

from drill.data.parallel.pairs import target_counts
from drill.report.analysis.comparison import accuracy_bands
from drill.report.analysis.word_accuracy import subword_bands, word_bands
from drill.report.results.ledger import read_ledger
from drill.report.results.runs import read_run
from drill.tasks import train
from drill.training.run.folder import RunFolder
from drill.translation.run import load_translator
from tests.helpers.translators import small_settings
from tests.helpers.workspaces import pairs_workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """The run tiny, and its copies one and other, which are compared."""
    folder = pairs_workspace(tmp_path_factory.mktemp("workspace"))
    for name in ("one", "other"):
        shutil.copytree(folder / "runs/tiny", folder / "runs" / name)
    return folder


def test_evaluate_gives_bleu_and_keeps_it(cli_output, in_workspace):
    out = cli_output("evaluate", "runs/tiny", "--device", "cpu", "--json", "-q")
    valid, test = map(json.loads, out.splitlines())
    assert (valid["split"], test["split"]) == ("valid", "test")
    tested = RunFolder("runs/tiny").test_row()
    assert test["bleu"] == pytest.approx(tested["test_bleu"])
    assert test["perplexity"] == pytest.approx(tested["test_perplexity"], rel=1e-5)
    saved = (in_workspace / "runs/tiny/evaluations.jsonl").read_text().splitlines()
    assert json.loads(saved[-1]) == test
    out = cli_output("evaluate", "runs/tiny", "--split", "test", "--beam", "1", "--device", "cpu")
    assert out.startswith("test: BLEU")


def test_evaluate_words_prints_and_saves_accuracy_by_frequency(cli_output, in_workspace):
    words = ("evaluate", "runs/tiny", "--split", "valid", "--device", "cpu", "--bands", "-q")
    out = cli_output(*words)
    tables = re.findall(r"^training count +types +wanted +(\w+) F1", out, re.MULTILINE)
    assert tables == ["words", "subwords"]
    row = json.loads(cli_output(*words, "--json"))
    run = load_translator("runs/tiny", device="cpu")
    saved = (in_workspace / "runs/tiny/valid.de.hyp").read_text().splitlines()
    (trained, pairs), (valid, _) = run.split("train"), run.split("valid")
    assert len(trained) == 60
    by_hand = word_bands(saved, valid.target, trained.target, "de")
    assert row["word_bands"] == [asdict(band) for band in by_hand]
    counts = target_counts(pairs, len(run.subwords))
    by_hand = subword_bands(saved, valid.target, run.subwords, counts)
    assert row["subword_bands"] == [asdict(band) for band in by_hand]
    wanted = sum(len(run.subwords.encode(line)) for line in valid.target)
    assert sum(band["wanted"] for band in row["subword_bands"]) == wanted


def test_a_split_is_scored_without_the_training_text(cli_output, cli_error, in_workspace, tmp_path):
    pairs, run = tmp_path / "pairs", str(tmp_path / "run")
    shutil.copytree("pairs", pairs)
    changes = (f"data.corpus={pairs}", "training.max_steps=2")
    train(small_settings(*changes), run, device="cpu")
    for language in ("en", "de"):
        (pairs / f"train.{language}").unlink()
    words = ("evaluate", run, "--split", "test", "--device", "cpu", "--json", "-q")
    out = cli_output(*words)
    assert json.loads(out)["bleu"] == pytest.approx(read_run(run).extra["bleu"])
    cli_error(*words, "--bands", key="train.en is missing")  # which counts words there


def test_a_bug_inside_an_evaluation_is_one(run_cli, monkeypatch):
    function = "drill.cli.evaluation.translation.evaluate_translator"
    monkeypatch.setattr(function, Mock(side_effect=TypeError("no scores")))
    code, _, err = run_cli("evaluate", "runs/tiny", "--split", "test", "--device", "cpu")
    assert (code, "Traceback (most recent call last)" in err) == (70, True)


def test_evaluate_own_source_and_reference(run_cli, cli_output, in_workspace, tmp_path):
    hypotheses = in_workspace / "runs/tiny/test.de.hyp"
    before = hypotheses.read_bytes()
    own = {"source": tmp_path / "test.en", "reference": tmp_path / "ours.de"}
    shutil.copy("pairs/valid.en", own["source"])
    shutil.copy("pairs/valid.de", own["reference"])
    files = [word for name, path in own.items() for word in (f"--{name}", str(path))]
    words = ("evaluate", "runs/tiny", "--device", "cpu", "--json", "-q", "--bands")
    out = cli_output(*words, *files)
    row, wanted = json.loads(out), json.loads(run_cli(*words, "--split", "valid")[1])
    assert (row["split"], row["source"], row["reference"]) == ("files", *map(str, own.values()))
    for key in ("lines", "bleu", "chrf", "perplexity", "word_bands", "subword_bands"):
        assert row[key] == wanted[key]
    assert hypotheses.read_bytes() == before  # which are of the run's own test


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--source", "pairs/test.en"], "--source and --reference: "),
        (["--reference", "pairs/test.de"], "--source and --reference: "),
        (["--source", "one.en", "--reference", "one.en", "--split", "test"], "--split: "),
        (["--source", "one.en", "--reference", "pairs/valid.de"], "one.en has 1 lines but pairs/"),
        (["--source", "one.en", "--reference", "blank.de"], "blank.de: "),
        (["--source", "blank.de", "--reference", "one.en"], "blank.de: "),
        (["--text", "pairs/test.en"], "--text: "),
        (["--split", "test", "--tokenize", "words"], "tokenize"),
    ],
)
def test_evaluate_needs_source_and_reference(cli_error, in_workspace, words, key):
    (in_workspace / "one.en").write_text("abc\n")
    (in_workspace / "blank.de").write_text(" \n")
    cli_error("evaluate", "runs/tiny", *words, "--device", "cpu", key=key)
    for command in ("dynamic", "cache"):  # of language models
        cli_error(command, "runs/tiny", key="runs/tiny: ")


def test_a_language_without_a_word_tokenizer_has_subwords_only(run_cli, in_workspace):
    pairs = in_workspace / "french"
    shutil.copytree("pairs", pairs)
    for path in pairs.glob("*.de"):
        path.rename(path.with_suffix(".fr"))
    changes = (f"data.corpus={pairs}", "data.target=fr", "training.max_steps=1")
    train(small_settings(*changes), "runs/french", device="cpu")
    run = load_translator("runs/french", device="cpu")
    said, target = [], run.split("test")[0].target
    assert list(accuracy_bands(run, target, target, said.append)) == ["subword"]
    assert len(said) == 1


def test_a_report_shows_the_saved_accuracy_of_translators(run_cli, tmp_path):
    run, page = str(tmp_path / "run"), tmp_path / "page.html"
    shutil.copytree("runs/tiny", run)
    (tmp_path / "run/evaluations.jsonl").unlink(missing_ok=True)
    report = ("report", run, "--out", str(page))
    assert run_cli("evaluate", run, "--bands", "--device", "cpu", "-q")[0] == 0
    assert run_cli(*report, "--bands")[0] == 0
    captions = re.findall(r"<caption>(\w+) that translators get right", page.read_text())
    assert captions == ["Words", "Subwords"]  # of the test alone


def test_an_exported_copy_has_the_search_of_the_run(cli_output, tmp_path):
    copy = tmp_path / "copy"
    out = cli_output("export", "runs/tiny", str(copy), "--max-length", "64")
    assert f"wrote {copy}: a Pegasus" in out
    assert json.loads((copy / "config.json").read_text())["max_position_embeddings"] == 64
    config = json.loads((copy / "generation_config.json").read_text())
    assert (config["num_beams"], config["length_penalty"]) == (2, 0.6)


def test_reports_and_ledgers_take_translators(cli_output, in_workspace, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    out = cli_output("ledger", "add", "runs/tiny", "--ledger", str(ledger))
    row = read_ledger(ledger)[0]
    run = read_run("runs/tiny")
    assert out.startswith(f"added tiny to {ledger}: valid perplexity {run.valid:.2f}, ")
    assert out.endswith(f"test BLEU {run.extra['bleu']:.2f}\n")
    assert row.test == run.test
    tested = RunFolder("runs/tiny").test_row()
    for key in ("tokenised_bleu", "chrf", "exact"):
        assert row.extra[key] == tested[f"test_{key}"]
    assert (row.extra["beam"], row.extra["length_penalty"]) == (2, 0.6)
    assert row.extra["signatures"]["chrf_signature"] == tested["chrf_signature"]
    assert row.extra["bleu"] == pytest.approx(tested["test_bleu"])
    assert "| BLEU |" in cli_output("report", "runs/tiny", "--markdown")


def test_runs_of_different_searches_are_not_compared(run_cli, cli_output, workspace, tmp_path):
    page = tmp_path / "page.html"
    evaluate = ("evaluate", "--split", "test", "--device", "cpu", "--bands", "-q")

    def tables() -> list[str]:
        cli_output("report", "runs/one", "runs/other", "--bands", "--out", str(page))
        return re.findall(
            r"<caption>Subwords that translators get right \((.*?)\)", page.read_text()
        )

    assert run_cli(*evaluate, "runs/one")[0] == 0
    assert run_cli(*evaluate, "runs/other", "--beam", "1")[0] == 0
    assert tables() == [f"pairs, beam {beam}, length penalty 0.6" for beam in (2, 1)]
    assert "other, points" not in page.read_text()
    assert run_cli(*evaluate, "runs/other")[0] == 0
    assert tables() == [f"pairs, beam {beam}, length penalty 0.6" for beam in (2, 1)]
    assert "other, points" in page.read_text()
