"""What `--help` says of every command is true of that command, and written one way."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from drill.cli.app import app

COMMANDS = get_command(app).commands
COMMANDS["ledger add"] = COMMANDS.pop("ledger").commands["add"]


def help_of(name: str) -> str:
    result = CliRunner().invoke(app, [*name.split(), "--help"])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_a_help_names_are_the_commands_own(name):
    """Examples in it name other commands' options, such as --set of `settings`."""
    own = {option for each in COMMANDS[name].params for option in each.opts} | {"--help"}
    assert set(re.findall(r"--[a-z][a-z-]*", help_of(name))) - {"--no-echo"} <= own
