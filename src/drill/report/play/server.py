"""The local server behind the page: JSON over HTTP, for this machine only."""

import inspect
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from drill.errors import DrillError, SettingsError, nearest
from drill.report import page as report_page
from drill.report.play import answers
from drill.report.play.answers import Player
from drill.training.options import DEFAULT_BEAM_SIZE

HOSTS = ("127.0.0.1", "localhost")
MAX_TEXT = 20_000  # characters
MAX_TOKENS = 500  # of a sample

TYPES: dict[str, tuple[type | UnionType, str]] = {  # of the values of a request
    **dict.fromkeys(("text", "word"), (str, "a string")),
    **dict.fromkeys(("run", "beam", "n_best", "tokens", "top_k", "seed"), (int, "an integer")),
    **dict.fromkeys(("temperature", "top_p"), (int | float, "a number")),
    "runs": (list, "a list"),
    "exact": (bool, "true or false"),
}
Runs = Sequence[int]

PAGE = Path(__file__).parent
FILES = {
    "/": PAGE / "page.html",
    "/page.js": PAGE / "page.js",
    "/page.css": PAGE / "page.css",
    "/colors.css": Path(report_page.__file__).with_name("colors.css"),
    "/plots.css": Path(report_page.__file__).with_name("plots.css"),
    "/plots.js": Path(report_page.__file__).with_name("plots.js"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


async def local_only(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Rejects requests of other sites: Host must be this machine, Origin the page.

    A site whose name resolves to 127.0.0.1 sends its own name as Host; a form or script of another
    site sends its own Origin.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    response: Response
    if host.partition(":")[0] not in HOSTS:
        error = f"the host {host!r} is not this machine; open http://{HOSTS[0]}"
        response = JSONResponse({"error": error}, 403)
    elif origin not in (None, f"http://{host}"):
        response = JSONResponse({"error": "the request comes from another site"}, 403)
    else:
        response = await call_next(request)
    response.headers.update(HEADERS)
    return response


class Server:
    """Answers for ``players`` of one task, and training curves of the runs in ``folders``.

    One request at a time uses the models.
    """

    def __init__(self, players: Sequence[Player], folders: Sequence[Path]) -> None:
        self.players, self.folders = players, folders
        self.lock = threading.Lock()
        self.stopping: Callable[[], bool] = lambda: False  # ends samples, which may be long

    def runs(self) -> Any:
        return {
            "runs": [
                {"name": p.name, "layer": p.run.settings.layer["name"], "adds_words": p.adds_words}
                for p in self.players
            ],
            "task": self.players[0].task if self.players else None,
            "unit": "subword" if self.players and self.players[0].subwords else "word",
        }

    def curves(self) -> Any:
        return answers.curves(self.folders, [player.run.folder.path for player in self.players])

    def next(self, runs: Runs = (0,), text: str = "") -> Any:
        return answers.next_words(self._chosen(runs, "language model"), text)

    def score(self, runs: Runs = (0,), text: str = "") -> Any:
        return answers.score_text(self._chosen(runs, "language model"), text)

    def word(self, runs: Runs = (0,), word: str = "", exact: bool = False) -> Any:
        return answers.look_up(self._chosen(runs), word, exact)

    def add(self, runs: Runs = (0,), word: str = "", text: str = "") -> Any:
        return answers.add_word(self._chosen(runs, "language model"), word, text)

    def translate(
        self, runs: Runs = (0,), text: str = "", beam: int = DEFAULT_BEAM_SIZE, n_best: int = 3
    ) -> Any:
        return answers.translate_text(self._chosen(runs, "translator"), text, beam, n_best)

    def sample(
        self,
        run: int = 0,
        text: str = "",
        tokens: int = 60,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """JSON strings, a line each; an object with the error where it ends early."""
        (player,) = self._chosen([run], "language model")
        if not 1 <= tokens <= MAX_TOKENS:
            raise SettingsError(f"must be 1 to {MAX_TOKENS}", key="tokens")
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        try:
            pieces = player.sample(text, max_new_tokens=tokens, **options)
        except ValueError as error:  # the text and the options are checked before the first piece
            raise SettingsError(str(error)) from None

        def lines() -> Iterator[str]:
            try:
                while not self.stopping():
                    with self.lock:
                        piece = next(pieces, None)
                    if piece is None:
                        return
                    yield json.dumps(piece) + "\n"
            except (DrillError, ArithmeticError) as error:
                yield json.dumps({"error": str(error)}) + "\n"

        return lines()

    def _chosen(self, numbers: Runs, task: str | None = None) -> list[Any]:
        known = range(len(self.players))
        if not numbers or any(type(n) is not int or n not in known for n in numbers):
            raise SettingsError(f"must be a list of numbers below {len(known)}", key="runs")
        chosen = [self.players[number] for number in dict.fromkeys(numbers)]
        if task is not None and chosen[0].task != task:
            raise SettingsError(f"must be a {task}, which {chosen[0].name} is not", key="runs")
        return chosen

    # -- HTTP ---------------------------------------------------------------------------------

    def app(self) -> ASGIApp:
        routes = [
            *(Route(path, partial(_file, file), methods=["GET"]) for path, file in FILES.items()),
            *(  # without the lock: they do not use the models
                Route(f"/api/{work.__name__}", _endpoint(work, nullcontext()), methods=["GET"])
                for work in (self.runs, self.curves)
            ),
            *(
                Route(f"/api/{work.__name__}", _endpoint(work, self.lock), methods=["POST"])
                for work in (self.next, self.score, self.word, self.add, self.translate)
            ),
            Route("/api/sample", _endpoint(self.sample, nullcontext()), methods=["POST"]),
        ]
        middleware = [Middleware(BaseHTTPMiddleware, dispatch=local_only)]
        return Starlette(routes=routes, middleware=middleware)


def _endpoint(method: Callable[..., Any], lock: AbstractContextManager[Any]) -> Any:
    async def endpoint(request: Request) -> Response:
        def answer() -> Any:
            with lock:
                return method(**arguments)

        try:
            arguments = await _body(request, method) if request.method == "POST" else {}
            result = await run_in_threadpool(answer)
        except (DrillError, ArithmeticError, OSError) as error:  # NaN is a FloatingPointError
            return JSONResponse({"error": str(error)}, 400)
        if isinstance(result, Iterator):
            return StreamingResponse(result, media_type="application/x-ndjson")
        return JSONResponse(result)

    return endpoint


async def _body(request: Request, method: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments for ``method`` of a request; null is the default."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise SettingsError("must be application/json", key="Content-Type")
    try:
        arguments = json.loads(await request.body())
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise SettingsError("must be a JSON object", key="request")
    arguments = {key: value for key, value in arguments.items() if value is not None}
    known = list(inspect.signature(method).parameters)
    for key, value in arguments.items():
        if key not in known:
            raise SettingsError(f"is unknown{nearest(key, known)}", key=key)
        kind, wanted = TYPES[key]
        if not isinstance(value, kind):
            raise SettingsError(f"must be {wanted}", key=key)
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise SettingsError(
                    f"{len(value):,} characters; give at most {MAX_TEXT:,}", key=key
                )
            # JSON may hold half a surrogate pair, which no file and no answer can.
            arguments[key] = value.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
    return arguments


async def _file(file: Path, _: Request) -> Response:
    return FileResponse(file)
