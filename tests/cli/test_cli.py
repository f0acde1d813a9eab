"""The command as a user meets it: in a terminal, in a pipe, and with wrong numbers."""

import os
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from drill.cli import main
from drill.cli.app import COMMANDS, app
from tests.helpers.processes import python


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (["layers"], "--vocabulary", "1"),
        (["layers"], "--tokens", "many"),
        (["generate", "."], "--temperature", "nan"),
        (["dynamic", "."], "--lr", "-1"),
        (["cache", "."], "--lambda", "7"),
    ],
)
def test_a_wrong_number_ends_in_one_sentence(tmp_path, monkeypatch, words, option, value):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").touch()  # a run, as far as the command line asks
    done = invoke(*words, option, value)
    assert done.exit_code == 2
    (error,) = [line for line in done.output.splitlines() if line.startswith("Error: ")]
    assert option in error
    assert isinstance(done.exception, SystemExit)


BY_NAME = get_command(app).commands
BY_NAME["ledger add"] = BY_NAME.pop("ledger").commands["add"]


@pytest.mark.parametrize("name", BY_NAME)
def test_options_that_a_help_names_are_the_commands_own(name):
    """Examples in it name other commands' options, such as --set of `settings`."""
    own = {option for each in BY_NAME[name].params for option in each.opts} | {"--help"}
    shown = invoke(*name.split(), "--help")
    assert shown.exit_code == 0
    assert set(re.findall(r"--[a-z][a-z-]*", shown.output)) <= own


LOADED = """
import sys
from drill.cli import main
for words, code in {commands}:
    sys.argv = ["drill", *words]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == code, words
    assert "torch" not in sys.modules, words
"""


def test_help_lists_and_misspelt_names_need_no_torch(tmp_path):
    """Loading it takes seconds."""
    names = [command.__name__ for command in COMMANDS]
    lists = [["--help"], *([name, "--help"] for name in names), ["ledger", "add", "--help"]]
    lists += [["--version"], ["recipes"], ["data"], ["data", "text"]]
    (tmp_path / "text").write_text("a b\nc\n" * 10)
    (tmp_path / "empty").mkdir()
    wrong = [["train", "nowhere"], ["train", "empty"], ["train", "demo-tied", "--set", "lr"]]
    wrong += [["settings", "nowhere"], ["study", "nowhere.toml"], ["report", "nowhere"]]
    wrong += [["compare", "nowhere", "empty"], ["ledger", "add", "nowhere"]]
    of_runs = ("finetune", "evaluate", "dynamic", "cache", "generate", "score", "words")
    wrong += [[name, "nowhere"] for name in (*of_runs, "translate")]
    wrong += [["export", "nowhere", "out"]]
    commands = [*((words, 0) for words in lists), *((words, 1) for words in wrong)]
    python("-c", LOADED.format(commands=commands), cwd=tmp_path)


def test_threads_wait_passively_unless_somebody_chose_otherwise(monkeypatch):
    seen = []
    monkeypatch.setattr("drill.cli.app.app", lambda: seen.append(os.environ["OMP_WAIT_POLICY"]))
    monkeypatch.setattr(sys, "argv", ["drill"])
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    main()
    monkeypatch.delenv("OMP_WAIT_POLICY")
    main()
    assert seen == ["active", "passive"]


def test_the_docs_show_what_the_command_prints():
    readme = (Path(__file__).parents[2] / "docs/README.md").read_text()
    shown = readme.split("$ drill layers\n")[1].split("```")[0]
    printed = invoke("layers").output
    assert shown.splitlines() == [line.rstrip() for line in printed.rstrip().splitlines()]
