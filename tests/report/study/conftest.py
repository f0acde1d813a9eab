import sys
from pathlib import Path

import pytest

from drill.report.study import runner
from tests.helpers.workspaces import RECIPE
from tests.report.study.fake_drill import STAND_IN, StudyWorkspace


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> StudyWorkspace:
    """A folder with a text, a recipe and the stand-in, which is the current one."""
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    for split in ("train", "valid", "test"):
        Path("text", f"{split}.txt").write_text("the lamp is lit\n" * 20)
    Path("tiny.toml").write_text(RECIPE)
    Path("stand_in.py").write_text(STAND_IN)
    Path("figures.json").write_text("{}")
    Path("recipes").mkdir()
    monkeypatch.setattr(runner, "PROGRAM", (sys.executable, "-S", "stand_in.py"))
    monkeypatch.setattr(runner, "POLL", 0.02)
    made = StudyWorkspace()
    made.behave()
    return made
