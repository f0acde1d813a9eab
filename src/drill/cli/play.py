"""`drill play`: try runs on a local web page."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, echo

from drill.cli import options
from drill.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from drill.report.play.answers import Player

HOST = "127.0.0.1"


def play(
    runs: Annotated[
        list[Path],
        Argument(metavar="RUN", help="Run folders, or folders of runs for their training curves."),
    ],
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free port.")] = 8765,
    weights: options.Weights = None,
    device: options.Device = "cpu",
) -> None:
    """Try trained runs on a web page of this machine.

    Language models: next words or subwords, samples, the loss of each of a text. Translators:
    n-best translations and attention. Either: the labels next to a word, and training curves. Two
    runs are compared; all are of one task, and language models of one tokenizer.
    """
    from drill.data.optional_packages import check_packages

    check_packages("`drill play` needs", "starlette", "uvicorn")
    import uvicorn

    from drill.report.play.server import Server

    trained = [path for path in runs if _is_run(path)]
    folders = {path.resolve().parent if path in trained else path for path in runs}
    server = Server(_players(trained, weights, device), sorted(folders))
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen()  # before the address is printed: a page may be opened at once
        except OSError as error:
            raise SettingsError(
                f"{port}: {error.strerror}", key="--port", hint="take another one, or 0"
            ) from None
        echo(f"http://{HOST}:{listening.getsockname()[1]}  (Ctrl-C ends it)")
        config = uvicorn.Config(
            server.app(), log_level="warning", server_header=False, timeout_graceful_shutdown=1
        )
        running = uvicorn.Server(config)
        server.stopping = lambda: running.should_exit
        try:
            running.run(sockets=[listening])
        except KeyboardInterrupt:
            return


def _is_run(path: Path) -> bool:
    from drill.files import nearest_run
    from drill.report.results.runs import is_run

    if is_run(path):
        return True
    if not path.is_dir() or not any(map(is_run, path.iterdir())):
        raise RunFolderError(f"is no run and holds none{nearest_run(path)}", key=str(path))
    return False


def _players(folders: list[Path], weights: Any, device: str) -> "list[Player]":
    from drill.language_modeling.run import LanguageModelRun
    from drill.report.play.answers import LanguageModelPlayer, TranslatorPlayer
    from drill.report.results.runs import distinct_names
    from drill.tasks import load

    players: list[Player] = []
    for path, name in distinct_names([path.resolve() for path in folders]).items():
        echo(f"loading {name}", err=True)
        run = load(path, weights, device)
        if isinstance(run, LanguageModelRun):
            players.append(LanguageModelPlayer(name, run))
        else:
            players.append(TranslatorPlayer(name, run))
        first, last = players[0], players[-1]
        if last.task != first.task:
            raise SettingsError(f"{name} is a {last.task} and {first.name} a {first.task}")
        if last.task == LanguageModelPlayer.task and last.subwords != first.subwords:
            raise SettingsError(f"{name} has another tokenizer than {first.name}")
    return players
