"""The `drill` command: one file per group of subcommands, errors as one sentence."""

import os
import sys

from drill import __version__


def main() -> None:
    """Ctrl-C ends it without a word, also in the seconds that its imports take."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        try:
            _answer()
        finally:  # what is still held back may find the pipe closed too
            sys.stdout.flush()
    except BrokenPipeError:
        _leave_closed_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes it a failure of ours
            _leave_closed_pipe()
        raise
    except Exception as error:
        from drill.cli.errors import sentence

        words = sentence(error)
        if words is None:
            raise
        print(f"drill: {words}", file=sys.stderr)
        sys.exit(1)


def _answer() -> None:
    if sys.argv[1:] == ["--version"]:  # who asks that need not wait for torch
        print(f"drill {__version__}")
        return
    # Threads that sleep while they wait do not take the cores from other programs. OpenMP reads
    # this once, when the next line loads torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from drill.cli.app import app

    app()


def _leave_closed_pipe() -> None:
    """`drill layers | head` has read enough: no word, and the status of whom SIGPIPE ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
