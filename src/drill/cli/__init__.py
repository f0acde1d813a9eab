"""The `drill` command; every error is one line."""

import os
import sys
from typing import Any


def main() -> None:
    """Run the command and exit: 0, 1 (a DrillError), 2 (usage), 70 (a bug), 128 + n (signal n)."""
    try:
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
        from drill.cli.display import printable
        from drill.cli.errors import as_drill_error, bug_lines

        known = as_drill_error(error)
        print(f"drill: {printable(str(known))}" if known else bug_lines(error), file=sys.stderr)
        sys.exit(1 if known else 70)


def _run() -> None:
    # Threads that sleep while they wait leave the cores to other programs. OpenMP reads this once,
    # when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from drill.cli.app import app

    app()


def _hint_at_settings(error: Any) -> None:
    """`--epochs 3` or a second change after one --set: typer's error is followed by the way out."""
    unknown = type(error).__name__ in ("NoSuchOption", "UsageError")  # the latter: an argument
    if unknown and any("--set" in option.opts for option in error.ctx.command.params):
        about = "each change has its own --set KEY=VALUE; `drill settings RECIPE` lists them"
        print(f"Settings: {about}.", file=sys.stderr)


def _leave_closed_pipe() -> None:
    """`drill layers | head` has read enough: no message, and the exit status of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
