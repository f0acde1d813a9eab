"""A damaged file that training needs later is named when a run is resumed, not epochs later."""

import json

import pytest

from drill.errors import CheckpointError, DrillError
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import interrupted_after, small_run


@pytest.fixture
def stopped(tmp_path) -> RunFolder:
    """A run that was interrupted in its second epoch."""
    small_run(tmp_path, "tied", interrupted_after(14, "adamw"), epochs=2, validate_first=True)
    assert RunFolder(tmp_path).best.exists()
    return RunFolder(tmp_path)


@pytest.mark.parametrize("line", ['{"kind": "test"}', '{"kind": "test", "epoch": 1}'])
def test_a_stray_line_of_metrics(stopped, line):
    small_run(stopped.path, "tied", "adamw", epochs=2)
    stopped.metrics.write_bytes(stopped.metrics.read_bytes() + line.encode() + b"\n")
    with pytest.raises(DrillError, match=r"metrics\.jsonl"):
        small_run(stopped.path, "tied", "adamw", epochs=2)


@pytest.mark.parametrize("content", ["", "[]", '{"resumed": 7}', '{"resumed": [7]}'])
def test_a_damaged_environment(stopped, content):
    stopped.environment.write_text(content)
    with pytest.raises(CheckpointError, match=r"environment\.json"):
        stopped.working_folder()
    stopped.environment.write_text(json.dumps({"resumed": [{"working_folder": "here"}]}))
    assert stopped.working_folder() == "here"
