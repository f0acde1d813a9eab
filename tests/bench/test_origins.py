"""Every corpus of the table of translators says what it is, and what made its rows."""

import sys
from pathlib import Path

import pytest

from drill.report import Row, read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bleu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import bleu

    yield bleu
    sys.modules.pop("bleu")


def ledger() -> list[Row]:
    return [row for row in read(ROOT / "results/runs.jsonl") if "bleu" in row.extra]


def test_a_corpus_that_may_be_taken_for_another_is_told_of_below_its_table(bleu):
    lines = [*bleu.table(ledger())]
    (note,) = (line for line in lines if line.startswith("europarl: "))
    assert "813,000 pairs of Europarl and news, not the 4.5M pairs of WMT14" in note
    last_row = max(i for i, line in enumerate(lines) if line.startswith("| numbers | "))
    assert last_row < lines.index(note) < last_row + 4


def test_device_and_commit_stand_beside_the_corpus_whose_rows_they_made(bleu):
    groups = bleu.comparisons(ledger())
    notes = dict(note.split(": ", 1) for note in bleu.origins(groups))
    assert notes.keys() == groups.keys()
    for corpus, layers in groups.items():
        rows = [row for runs in layers.values() for row in runs]
        for row in rows:
            assert f"{row.device}, torch {row.torch}, commit " in notes[corpus]
            assert row.commit in notes[corpus]
        others = {row.commit for row in ledger()} - {row.commit for row in rows}
        assert not any(commit in notes[corpus] for commit in others)
