"""The `drill` command; every error is one line."""

import itertools
import os
import re
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Run the command and exit: 0, 1 (a DrillError), 2 (usage), 70 (a bug), 130 (Ctrl-C)."""
    try:
        _check_surroundings()
        try:
            _run()
        finally:  # what is still buffered may find the pipe closed too
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _leave_closed_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer exits with 1 then
            _leave_closed_pipe()
        _hint_at_settings(ended.__context__)
        raise
    except Exception as error:
        from drill.cli.errors import as_drill_error, bug_line, one_line

        known = as_drill_error(error)
        print(f"drill: {one_line(known) if known else bug_line(error)}", file=sys.stderr)
        sys.exit(1 if known else 70)


def _run() -> None:
    # Threads that sleep while they wait leave the cores to other programs. OpenMP reads this once,
    # when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from drill.cli.app import app

    _check_changes()
    app()


def _check_changes() -> None:
    """`--set A.X=1 B.Y=2`: the second change would be read as a recipe or run."""
    from drill.errors import SettingsError

    for option, _, extra in zip(sys.argv, sys.argv[1:], sys.argv[2:], strict=False):
        if option == "--set" and re.match(r"\w+\.[\w.]+=", extra):
            raise SettingsError("every change needs its own --set", hint=f"write --set {extra}")


def _hint_at_settings(error: Any) -> None:
    """`--epochs 3`, in a command that has --set: typer's error is followed by the way out."""
    unknown = type(error).__name__ == "NoSuchOption"
    if unknown and any("--set" in each.opts for each in error.ctx.command.params):
        name = error.option_name.strip("-").replace("-", "_")
        for key in _settings_called(name):
            print(f"It is a setting: --set {key}=VALUE", file=sys.stderr)


def _settings_called(name: str) -> list[str]:
    """Settings of that name: of the recipe or run in the command line, or of any."""
    from drill.cli.listings import descriptions, settings_of
    from drill.errors import DrillError
    from drill.recipes.reader import recipe_names

    known = [f"{table}.{name}" for table, keys in descriptions().items() if name in keys]
    recipes = (*recipe_names(), *filter(os.path.isdir, sys.argv[2:]))
    for word in sys.argv[2:] if known else []:
        if word in recipes or word.endswith(".toml"):
            changes = [b for a, b in itertools.pairwise(sys.argv) if a == "--set"]
            changes += [each[6:] for each in sys.argv if each.startswith("--set=")]
            with suppress(DrillError):  # an error of its own, once this one is fixed
                rows = settings_of(word, changes)
                return [row.key for row in rows if row.key.rpartition(".")[2] == name]
    return known


def _check_surroundings() -> None:
    """Closed standard input and error (`<&-`, `2>&-`) become /dev/null."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.exit("drill: standard output is closed; redirect it, for example with >/dev/null")
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("drill: the current folder no longer exists; change to another one")


def _leave_closed_pipe() -> None:
    """`drill layers | head` has read enough: no message, and the exit status of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
