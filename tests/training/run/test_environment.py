"""environment.json records every start and resume that trained something."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drill.tasks import train
from drill.training.run import environment as environment_module
from drill.training.run.environment import commit
from drill.training.settings import read_settings
from tests.helpers.language_models import rows, small_settings
from tests.helpers.tasks import stop

pytestmark = pytest.mark.usefixtures("empty_cache")


def read(folder: Path) -> dict:
    return json.loads((folder / "environment.json").read_text())


def test_every_resume_is_added(tmp_path, text_folder, monkeypatch):
    folder = tmp_path / "run"
    stop(small_settings(text_folder), folder, 5)
    first = read(folder)
    assert "resumed" not in first
    for name, epochs in (("later", 1), ("latest", 2)):
        monkeypatch.setenv("DRILL_COMMIT", name)
        settings = small_settings(text_folder, f"training.epochs={epochs}")
        assert train(settings, folder, device="cpu").finished
    found = read(folder)
    starts = found.pop("resumed")
    assert found == first
    assert [each["commit"] for each in starts] == ["later", "latest"]
    steps = [each.pop("from_step") for each in starts]
    assert steps[0] == 5 < steps[1]
    assert all(set(each) < set(first) for each in starts)


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_resume_that_saved_nothing_is_replaced_by_the_next(
    tmp_path, text_folder, monkeypatch, epochs
):
    folder = tmp_path / "run"
    train(small_settings(text_folder), folder, device="cpu")
    with monkeypatch.context() as patch:  # it ends with its first checkpoint not yet written
        patch.setattr("drill.training.run.checkpoint.save", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            train(small_settings(text_folder, "training.epochs=3"), folder, device="cpu")
    monkeypatch.setenv("DRILL_COMMIT", "later")
    settings = small_settings(text_folder, f"training.epochs={epochs}")
    assert train(settings, folder, device="cpu").epoch == epochs
    assert [each["commit"] for each in read(folder)["resumed"]] == ["later"]
    assert read_settings(folder / "recipe.toml") == settings
    assert [row["kind"] for row in rows(folder)] == ["epoch"] * epochs + ["test"]


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository with a file of drill's in it that git does not know."""
    monkeypatch.delenv("DRILL_COMMIT")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "project"
    (place / "training" / "run").mkdir(parents=True)
    (place / "training" / "run" / "environment.py").write_text("")
    (place / "own.txt").write_text("")
    git(place, "init", "-q")
    git(place, "add", "own.txt")
    git(place, "commit", "-q", "-m", "mine")
    source = str(place / "training" / "run" / "environment.py")
    monkeypatch.setattr(environment_module, "__file__", source)
    return place


def git(place: Path, *words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True)


def test_the_commit_is_drills_and_not_that_of_a_repository_around_it(repository, monkeypatch):
    assert commit() is None
    git(repository, "add", "training")
    git(repository, "commit", "-q", "-m", "the source")
    assert len(commit()) >= 7
    (repository / "own.txt").write_text("changed")
    assert commit().endswith("+")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert commit() is None
    monkeypatch.setenv("DRILL_COMMIT", "0123abc")
    assert commit() == "0123abc"
