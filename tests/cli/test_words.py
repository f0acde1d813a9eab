"""`drill words`."""

import json

from tests.helpers import wordnet


def test_words_are_added_scored_and_saved(run_cli, cli_output, cli_error, workspace, monkeypatch):
    monkeypatch.setenv("DRILL_WORDNET", str(wordnet.write(workspace / "wordnet")))
    words = ("train", "tiny.toml", "--set", "labels.source=characters+gloss")
    held_out = ("--set", "data.held_out=1", "--set", "data.held_out_max_count=1000")
    held_out += ("--set", "data.held_out_seed=3")  # neither boat nor sea
    assert run_cli(*words, *held_out, "--name", "new", "--device", "cpu")[0] == 0
    gloss = "a vessel of water"
    out = cli_output("words", "runs/new", "--add", "lampboat", gloss, "--out", "runs/added")
    assert out.startswith("lampboat: nearest ")
    assert "--out" in run_cli("words", "runs/new", "--add", "lampboat", gloss)[2]  # not saved
    (workspace / "lines.txt").write_text("the lampboat\n")
    added = ("words", "runs/new", "--add", "lampboat", gloss, "--score", "lines.txt", "--json")
    rows = [
        json.loads(run_cli(*command)[1])
        for command in (added, ("score", "runs/added", "lines.txt", "--json"))
    ]
    assert rows[0] == rows[1]
    assert "lampboat" not in rows[0]["unknown"]
    out = cli_output("words", "runs/new", "--json")
    assert [json.loads(line)["split"] for line in out.splitlines()] == ["valid", "test"]
    saved = (workspace / "runs/new/evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in saved] == ["words", "words"]
    assert "equal share of <unk>" in run_cli("words", "runs/new", "--split", "test")[1]
    cli_error("words", "runs/new", "--add", "lamp", "one", "two", key="--add")
    cli_error("words", "runs/new", "--add", "lamp", "--add", "lamp", "one", "two", key="--add")
    cli_error("words", "runs/new", "--out", "runs/other", key="--out")
    cli_error(
        "words", "runs/new", "--add", "lampboat", gloss, "--out", "runs/added", key="runs/added"
    )


def test_a_run_without_a_label_source_says_so(run_cli, cli_error):
    assert "labels.source" in cli_error("words", "runs/tiny", "--add", "lampboat", key="new word")
    assert "data.held_out" in cli_error("words", "runs/tiny", key="runs/tiny")
