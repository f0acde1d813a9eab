"""What filters drop of the training pairs is reported, on the screen and in the run's folder."""

import json
import re

import pytest

from drill.data import FilterReport
from drill.tasks import train
from drill.training.run.summary import left_out
from tests.helpers.translators import small, write_pairs

FILTERS = {"minimum": 2, "maximum": 256, "ratio": 4.0, "deduplicate": True}


@pytest.fixture
def workspace(tmp_path):
    """The training text of tiny runs: 60 pairs, of which some come twice, and three odd ones."""
    write_pairs(tmp_path / "pairs")
    for language, more in (("en", ["", "abcdeabcdeabcde", "a"]), ("de", ["a", "e", "b"])):
        path = tmp_path / "pairs" / f"train.{language}"
        path.write_text(path.read_text() + "\n".join(more) + "\n")
    return tmp_path


def test_every_reason_is_named_with_its_setting():
    report = FilterReport(3000, empty=1, duplicate=1500, short=2, long=3, ratio=4)
    line = left_out(report, FILTERS)
    assert line.startswith("1,510 of 3,000 ")
    assert re.findall(r"\(filters\.(\w+)\)", line) == [
        "minimum", "deduplicate", "minimum", "maximum", "ratio"
    ]  # fmt: skip
    assert left_out(FilterReport(3000), FILTERS) is None


def test_dropped_pairs_are_reported(in_workspace, tmp_path):
    said: list[str] = []
    train(small("training.max_steps=1"), tmp_path / "run", device="cpu", on_start=said.append)
    dropped = json.loads((tmp_path / "run/environment.json").read_text())["filtered"]
    assert (dropped["pairs"], dropped["empty"], dropped["ratio"]) == (63, 1, 1)
    assert said[-1].splitlines()[1:] == [left_out(FilterReport(**dropped), small().filters)]
