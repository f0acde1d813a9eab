"""Folders with a text or pairs and a trained run, and the command as somebody types it there."""

import io
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from drill import cli
from drill.cli.app import app
from drill.tasks import train
from tests.helpers import translators

RECIPE = """
[data]
corpus = "text"

[encoder]
embedding_dim = 8
hidden_size = 12
layers = 2

[layer]
name = "deep-residual"
depth = 2

[optimizer]
lr = 5.0

[training]
epochs = 2
bptt = 10
batch_size = 8
"""


def text_workspace(folder: Path) -> Path:
    """``folder`` with text/, tiny.toml and runs/tiny."""
    return copy_of("language model", _train_language_model, folder)


def _train_language_model(folder: Path) -> None:
    die = random.Random(0)
    (folder / "text").mkdir()
    for split, lines in {"train": 300, "valid": 40, "test": 40}.items():
        words = [
            " ".join(die.choice(["lamp", "boat", "sea", "is", "lit"]) for _ in range(5))
            for _ in range(lines)
        ]
        (folder / "text" / f"{split}.txt").write_text("\n".join(words) + "\n")
    (folder / "tiny.toml").write_text(RECIPE)
    result = CliRunner().invoke(app, ["train", "tiny.toml", "--device", "cpu"])
    assert result.exit_code == 0, result.output


def pairs_workspace(folder: Path) -> Path:
    """``folder`` with pairs/ and runs/tiny."""
    return copy_of("translator", _train_translator, folder)


def _train_translator(folder: Path) -> None:
    translators.write_pairs(folder / "pairs")
    assert train(translators.small_settings(), "runs/tiny", device="cpu").finished


@contextmanager
def inside(folder: Path) -> Iterator[Path]:
    """The current folder, with its own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


MADE: dict[str, TemporaryDirectory[str]] = {}


def copy_of(kind: str, make: Callable[[Path], None], folder: Path) -> Path:
    """``folder`` with what ``make`` writes into the current folder, which it does once."""
    if kind not in MADE:
        MADE[kind] = TemporaryDirectory()
        with inside(Path(MADE[kind].name)) as place:
            make(place)
    shutil.copytree(MADE[kind].name, folder, dirs_exist_ok=True)
    environment = folder / "runs/tiny/environment.json"
    environment.write_text(environment.read_text().replace(MADE[kind].name, str(folder)))
    return folder


def run_cli_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Changes to ``folder``; returns a function that runs `drill`: exit code, stdout, stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")

    def run(*words: str, stdin: str | bytes | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["drill", *words])
        if stdin is not None:
            raw = stdin if isinstance(stdin, bytes) else stdin.encode()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run
