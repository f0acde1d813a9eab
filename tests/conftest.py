import importlib.util
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# After the variable: kernels read it when they are imported.
from drill import files
from tests.helpers.language_models import write_texts
from tests.helpers.translators import write_pairs
from tests.helpers.workspaces import run_cli_in, text_workspace

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# On a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=40)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items):
    """Leave out what this machine cannot run."""
    missing = {}
    if not torch.cuda.is_available():
        missing["gpu"] = "needs a CUDA device"
    if importlib.util.find_spec("playwright") is None:
        missing["browser"] = "needs pip install playwright"
    if CHROMIUM is None:
        missing["browser"] = "needs chromium: apt-get install chromium"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = tools.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Opens a page; nothing may fail in it, and no request may leave this machine."""
    faults, hosts, pages = [], set(), []

    def open_url(url, width=390, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        page.goto(url)
        pages.append(page)
        return page

    yield open_url
    widths = [page.evaluate("document.documentElement.scrollWidth - innerWidth") for page in pages]
    for page in pages:
        page.context.close()
    assert faults == []
    assert hosts <= {"127.0.0.1", None}
    assert max(widths, default=0) <= 0  # nothing to scroll sideways


@pytest.fixture(autouse=True)
def restore_onednn():
    """Torch disables oneDNN at the first product that it lacks: no later test is to notice."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = before


@pytest.fixture
def fixed_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def default_ctrl_c():
    """A process in the background may have been started with Ctrl-C ignored; SIGTERM comes back."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    """Own text files, which no test may change."""
    return write_texts(tmp_path_factory.mktemp("workspace") / "texts")


@pytest.fixture
def empty_cache(tmp_path_factory, monkeypatch):
    """An empty cache, and a known commit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("DRILL_COMMIT", "0123abc")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A folder with a text, pairs, a recipe and a trained language model, one per file of tests."""
    folder = text_workspace(tmp_path_factory.mktemp("workspace"))
    write_pairs(folder / "pairs")
    return folder


@pytest.fixture
def in_workspace(workspace, monkeypatch):
    """The test runs in ``workspace``, which some files of tests make themselves."""
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("XDG_CACHE_HOME", str(workspace / "cache"))
    return workspace


@pytest.fixture
def run_cli(workspace, monkeypatch, capfd):
    """Runs `drill` in ``workspace``: exit code, stdout, stderr."""
    return run_cli_in(workspace, monkeypatch, capfd)


@pytest.fixture
def cli_output(run_cli):
    """Runs `drill`, which must end with 0; returns what it prints."""

    def check(*words: str, **options: object) -> str:
        code, out, err = run_cli(*words, **options)
        assert code == 0, err
        return out

    return check


@pytest.fixture
def cli_error(run_cli):
    """Runs `drill`, which must end with 1 and one line that names ``key``; returns that line."""

    def check(*words: str, key: str, **options: object) -> str:
        code, _, err = run_cli(*words, **options)
        assert code == 1
        assert "Traceback" not in err
        last = err.splitlines()[-1]
        assert last.startswith("drill: ")
        assert key in last
        return last

    return check


@pytest.fixture
def nan_in_fresh_memory():
    """Memory nobody wrote reads as NaN, so that a gradient left unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


class Call(NamedTuple):
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


@pytest.fixture
def calls_of(monkeypatch):
    """Notes the calls of a function or method, which still does what it does."""

    def watch(owner: object, name: str) -> list[Call]:
        calls, real = [], getattr(owner, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            calls.append(Call(arguments, options, real(*arguments, **options)))
            return calls[-1].result

        monkeypatch.setattr(owner, name, noted)
        return calls

    return watch


@pytest.fixture
def forget_warnings():
    """A cache that cannot be written is warned about again."""
    files.warn_uncached.cache_clear()
