"""environment.json tells of the training, and of nothing that trained nothing."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drill.language_modeling import run as language_model_run
from drill.tasks import train_run
from drill.training import device as machine
from drill.training.run.environment import has_ended
from drill.training.run.folder import RunFolder
from drill.training.run.rollback import Rollback
from drill.training.settings import saved
from tests.language_modeling.test_build import own_cache, small, stopped, texts  # noqa: F401 - fixtures
from tests.tiny_runs import with_a_test_at

TEN_MINUTES = "training.max_minutes=10"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(folder: Path) -> dict:
    return json.loads((folder / "environment.json").read_text())


def test_a_finished_run_stays_as_it_is(tmp_path, texts, monkeypatch):  # noqa: F811
    folder = tmp_path / "run"
    first = train_run(small(texts), folder, device="cpu")
    before = contents(folder)
    monkeypatch.setenv("DRILL_COMMIT", "another")
    monkeypatch.setattr(sys, "argv", ["something", "else"])
    again = train_run(small(texts), folder, device="cpu")
    assert contents(folder) == before
    assert again.test.loss == pytest.approx(first.test.loss, rel=1e-12)
    assert (again.test.tokens, again.test.columns) == (first.test.tokens, first.test.columns)
    assert replace(again, test=first.test) == first
    assert train_run(small(texts, "training.epochs=1"), folder, device="cpu") == again
    assert contents(folder) == before


def test_every_later_life_is_added(tmp_path, texts, monkeypatch):  # noqa: F811
    folder = tmp_path / "run"
    stopped(monkeypatch, small(texts), folder, 5)
    first = told(folder)
    assert "resumed" not in first
    for commit, epochs in (("later", 2), ("latest", 3)):
        monkeypatch.setenv("DRILL_COMMIT", commit)
        assert train_run(small(texts, f"training.epochs={epochs}"), folder, device="cpu").finished
    found = told(folder)
    lives = found.pop("resumed")
    assert found == first
    assert [life["commit"] for life in lives] == ["later", "latest"]
    steps = [life.pop("from_step") for life in lives]
    assert steps[0] == 5 < steps[1]
    assert all(set(life) < set(first) for life in lives)


def test_a_run_that_stopped_by_itself_is_not_woken_by_more_epochs(tmp_path, texts):  # noqa: F811
    folder = tmp_path / "run"
    still = ("optimizer.lr=100", "training.patience=0")  # soon an epoch is worse than the best
    settings = small(texts, *still, "training.epochs=9", name="ptb-tied")
    assert train_run(settings, folder, device="cpu").epoch < 9
    before = (folder / "environment.json").read_bytes()
    settings = small(texts, *still, "training.epochs=12", name="ptb-tied")
    assert train_run(settings, folder, device="cpu").epoch < 9
    assert (folder / "environment.json").read_bytes() == before


def test_time_in_tests_ends_no_run(tmp_path, texts):  # noqa: F811
    folder = tmp_path / "run"
    for epochs in (1, 2):
        train_run(small(texts, f"training.epochs={epochs}"), folder, device="cpu")
        with_a_test_at(folder, 1000.0)
    train_run(small(texts, "training.epochs=3"), folder, device="cpu")
    assert RunFolder(folder).last_numbers()["elapsed"] >= 1000.0
    assert not has_ended(RunFolder(folder), small(texts, "training.epochs=4", TEN_MINUTES))
    assert has_ended(RunFolder(folder), small(texts, "training.epochs=3", TEN_MINUTES))


def killed(monkeypatch, settings, folder: Path) -> None:
    """A command that ends when it has told what it is about to train, and can put nothing back."""

    def kill(*arguments: object, **options: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(language_model_run, "train", kill)
        patch.setattr(Rollback, "restore", lambda self: False)
        with pytest.raises(SystemExit):
            train_run(settings, folder, device="cpu")


def test_a_command_that_was_killed_before_it_trained_is_no_end(tmp_path, texts, monkeypatch):  # noqa: F811
    folder = tmp_path / "run"
    train_run(small(texts), folder, device="cpu")
    more = small(texts, "training.epochs=3")
    killed(monkeypatch, more, folder)
    assert saved(folder / "recipe.toml") == more  # but it has trained 2 epochs, and is tested
    monkeypatch.setenv("DRILL_COMMIT", "later")
    assert train_run(more, folder, device="cpu").epoch == 3
    assert [life["commit"] for life in told(folder)["resumed"]] == ["later"]
    assert saved(folder / "recipe.toml") == more
    assert [row["kind"] for row in RunFolder(folder).rows()] == ["epoch"] * 3 + ["test"]


def test_what_a_killed_command_asked_for_is_taken_back(tmp_path, texts, monkeypatch):  # noqa: F811
    folder = tmp_path / "run"
    train_run(small(texts), folder, device="cpu")
    before = contents(folder)
    killed(monkeypatch, small(texts, "training.epochs=3"), folder)
    assert len(told(folder)["resumed"]) == 1
    assert train_run(small(texts), folder, device="cpu").epoch == 2
    assert contents(folder) == before


def test_a_life_that_only_tests_is_none(tmp_path, texts, monkeypatch):  # noqa: F811
    """As of a run that was killed between its last step and its test."""
    folder = tmp_path / "run"
    train_run(small(texts), folder, device="cpu")
    before = told(folder)
    files = RunFolder(folder)
    files.cut_metrics(files.last_numbers()["metrics_size"])
    assert files.test_row() is None
    monkeypatch.setenv("DRILL_COMMIT", "later")
    assert train_run(small(texts), folder, device="cpu").test is not None
    assert files.test_row() is not None
    assert told(folder) == before


def test_a_run_that_left_no_checkpoint_begins_anew(tmp_path, texts, monkeypatch):  # noqa: F811
    folder = tmp_path / "run"
    train_run(small(texts), folder, device="cpu")
    for path in (folder / "last", folder / "best.safetensors"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setenv("DRILL_COMMIT", "anew")
    train_run(small(texts), folder, device="cpu")
    assert told(folder)["commit"] == "anew"
    assert "resumed" not in told(folder)


# -- the commit -----------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository with a file of drill's in it that git does not know."""
    monkeypatch.delenv("DRILL_COMMIT")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "project"
    place.mkdir()
    (place / "machine.py").write_text("")
    (place / "own.txt").write_text("")
    git(place, "init", "-q")
    git(place, "add", "own.txt")
    git(place, "commit", "-q", "-m", "mine")
    monkeypatch.setattr(machine, "__file__", str(place / "machine.py"))
    return place


def git(place: Path, *words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True)


def test_the_commit_is_drills_and_not_that_of_a_repository_around_it(repository):
    assert machine.commit() is None
    git(repository, "add", "machine.py")
    git(repository, "commit", "-q", "-m", "the source")
    assert len(machine.commit()) >= 7
    (repository / "machine.py").write_text("changed")
    assert machine.commit().endswith("+")
