"""Less is asked of a run than it has trained: nothing that it found is lost."""

from pathlib import Path

import pytest

from drill.language_modeling import run as language_model_run
from drill.training.run.folder import RunFolder
from drill.translation import run as translation_run
from tests.tiny_place import make_place
from tests.tiny_runs import interrupted_after
from tests.tiny_translation_place import set_by_command, write_pairs

ON_A_CPU = ("--device", "cpu", "-q")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = make_place(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps_of(folder: Path | str) -> int:
    return int(RunFolder(folder).last_numbers()["step"])


COMMANDS = {
    "language model": ["tiny.toml", "--set", "training.epochs=1"],
    "translator": ["mt-demo", *set_by_command("training.epochs=1")],
}


@pytest.mark.parametrize("task", COMMANDS)
def test_a_finished_run_of_more_epochs_is_what_the_first_command_gives(drill, place, task, caplog):
    name = f"longer {task}"
    first = ("train", *COMMANDS[task], "--name", name, *ON_A_CPU)
    assert drill(*first)[0] == 0
    code, longer, _ = drill("train", f"runs/{name}", "--set", "training.epochs=2", *ON_A_CPU)
    before = contents(place / "runs" / name)
    caplog.clear()
    assert drill(*first)[:2] == (code, longer) == (0, longer)
    assert "(best of 2 epochs: " in longer
    assert [f"runs/{name}: has already used 2 epochs" in each for each in caplog.messages] == [True]
    assert contents(place / "runs" / name) == before


@pytest.mark.parametrize(
    ("task", "limit"), [("language model", "epochs=1"), ("translator", "max_minutes=1e-6")]
)
def test_a_longer_run_that_was_stopped_is_not_ended(drill, place, monkeypatch, task, limit):
    """Its test would replace what it had found before it went on."""
    name = f"stopped {task} {limit}"
    own = ("train", f"runs/{name}", *ON_A_CPU, "--set")
    assert drill("train", *COMMANDS[task], "--name", name, *ON_A_CPU)[0] == 0
    module = translation_run if task == "translator" else language_model_run
    real = module.build_optimizer
    with monkeypatch.context() as patch:
        once = steps_of(f"runs/{name}")
        patch.setattr(
            module, "build_optimizer", lambda held: interrupted_after(once * 3 // 2, real(held))
        )
        assert drill(*own, "training.epochs=30")[0] == 130
    before = contents(place / "runs" / name)
    code, out, err = drill(*own, f"training.{limit}")
    assert (code, out) == (1, "")
    assert err.startswith(f"drill: runs/{name}: has already used ")
    assert f"set training.{limit.partition('=')[0]} above that" in err
    assert contents(place / "runs" / name) == before
    assert drill(*own, "training.epochs=4")[0] == 0
