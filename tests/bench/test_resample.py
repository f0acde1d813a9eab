"""The bootstrap of translations: sacrebleu's, over files."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.bench.scripts import script

pytest.importorskip("sacrebleu")

PERSON = [f"the {word} is on the table by the door" for word in "abcdefghijklmnopqrst"]


def resampled(folder: Path, **files: list[str]) -> CompletedProcess[str]:
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return script("resample", *files, "--draws", "100", cwd=folder)


def with_mistakes(at: set[int]) -> list[str]:
    wrong = [line.replace("on the table", "table the on") for line in PERSON]
    return [wrong[i] if i in at else PERSON[i] for i in range(len(PERSON))]


def test_a_clear_difference_is_told_from_a_small_one(tmp_path):
    files = {"good": {0, 1, 2}, "alike": {3, 4, 5}, "bad": set(range(15))}
    written = {name: with_mistakes(at) for name, at in files.items()}
    found = resampled(tmp_path, person=PERSON, **written)
    _, _, good, alike, bad, _, signature = found.stdout.splitlines()
    assert good.endswith(" | | |")
    assert float(alike.split("|")[4]) > 0.1
    assert float(bad.split("|")[4]) < 0.05
    assert "bs:100" in signature


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"person": PERSON, "one": PERSON}, "give at least two files"),
        ({"person": PERSON, "one": PERSON, "two": PERSON[:-1]}, "two: has 19 lines and person 20"),
    ],
)
def test_a_mistake_ends_in_one_sentence(tmp_path, files, fault):
    found = resampled(tmp_path, **files)
    assert found.returncode != 0
    assert fault in found.stderr
    assert "Traceback" not in found.stderr
