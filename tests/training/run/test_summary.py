"""Remarks about a run before it starts: pairs that filters drop."""

import json

import pytest

from drill.tasks import train
from tests.helpers.translators import small_settings, write_pairs


@pytest.fixture
def workspace(tmp_path):
    """The training text of tiny runs: 60 pairs, of which some come twice, and three odd ones."""
    write_pairs(tmp_path / "pairs")
    for language, more in (("en", ["", "abcdeabcdeabcde", "a"]), ("de", ["a", "e", "b"])):
        path = tmp_path / "pairs" / f"train.{language}"
        path.write_text(path.read_text() + "\n".join(more) + "\n")
    return tmp_path


def test_dropped_pairs_are_reported(in_workspace, tmp_path):
    said: list[str] = []
    settings = small_settings("training.max_steps=1")
    train(settings, tmp_path / "run", device="cpu", on_start=said.append)
    dropped = json.loads((tmp_path / "run/environment.json").read_text())["filtered"]
    assert (dropped["pairs"], dropped["empty"], dropped["ratio"]) == (63, 1, 1)
    kept = dropped.pop("pairs") - sum(dropped.values())
    more = ", ".join(f"{count} {name}" for name, count in dropped.items() if count)
    assert said[-1].splitlines()[1:] == [f"filters: {kept} of 63 pairs kept; dropped: {more}"]
