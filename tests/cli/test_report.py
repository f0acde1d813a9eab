"""`drill report` and `drill ledger add`."""

import shutil
from pathlib import Path

import pytest


def test_report_writes_a_page_or_prints_markdown(cli_output, workspace):
    assert cli_output("report", "runs/tiny", "-o", "r.html", "--bands") == "wrote r.html\n"
    page = (workspace / "r.html").read_text()
    assert page.count("Without &lt;eos&gt; and &lt;unk&gt;") == 1
    assert "Rare and frequent words" in page
    assert "| tiny | deep-residual 2 |" in cli_output("report", "runs/tiny", "--markdown")


def test_only_pages_of_drill_are_replaced(run_cli, cli_error, workspace):
    shutil.copytree(workspace / "runs/tiny", workspace / "runs/second")
    assert run_cli("report", "runs/tiny")[:2] == (0, "wrote report.html\n")
    assert run_cli("report", "runs/tiny", "runs/second")[:2] == (0, "wrote report.html\n")
    (workspace / "report.html").write_text("<p>mine</p>")
    for words in ([], ["-o", "report.html"]):
        cli_error("report", "runs/tiny", *words, key="report.html: ")
    assert (workspace / "report.html").read_text() == "<p>mine</p>"
    (workspace / "report.html").unlink()
    for words in (["runs/nope"], ["--ledger", "nope"]):
        cli_error("report", *words, key=f" {words[-1]}: ")
    cli_error("report", "tiny.toml", key="drill study PLAN --report")


def test_the_ledger_is_next_to_the_run_by_default(run_cli, cli_error, workspace, monkeypatch):
    results = workspace / "results/runs.jsonl"  # a clone of drill has one
    results.parent.mkdir()
    results.write_text("")
    code, out, _ = run_cli("ledger", "add", "runs/tiny")
    assert (code, out.startswith("added tiny to runs/ledger.jsonl: valid perplexity ")) == (0, True)
    assert ", test perplexity " in out
    assert results.read_text() == ""
    assert (workspace / "runs/ledger.jsonl").read_text().startswith('{"kind": "result"')
    code, _, err = run_cli("report", "runs/tiny", "runs/ledger.jsonl", "--markdown")
    assert (code, len(err.splitlines())) == (0, 1)
    assert err.startswith("left out: runs/ledger.jsonl: ")
    monkeypatch.chdir(workspace / "runs/tiny")
    cli_error("ledger", "add", ".", key="../ledger.jsonl")


@pytest.mark.parametrize("file", ["recipe.toml", "metrics.jsonl"])
def test_a_damaged_run_is_left_out_and_named(run_cli, cli_error, workspace, file):
    damaged = Path(shutil.copytree(workspace / "runs/tiny", workspace / "runs" / f"no-{file}"))
    (damaged / file).write_text("[not\n")
    for words in (("--markdown",), ("-o", "some.html", "--bands")):
        code, out, err = run_cli("report", "runs/tiny", f"runs/no-{file}", *words)
        assert (code, bool(out)) == (0, True)
        assert err.startswith(f"left out: runs/no-{file}/{file}: ")
    cli_error("report", f"runs/no-{file}", key=f"runs/no-{file}/{file}: ")
