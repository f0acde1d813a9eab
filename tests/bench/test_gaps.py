"""Losses are compared at the same update, seed by seed."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from drill.report import Row, read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gaps(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import gaps

    return gaps


def of(layer: str, seed: int, validations: dict[int, float], train: float | None = None) -> Row:
    """A row of the ledger with such losses, and of training with ``train`` more."""
    row = next(row for row in read(ROOT / "results/runs.jsonl") if row.recipe == "multi30k-tied")
    found = [[step, math.exp(loss)] for step, loss in validations.items()]
    if train is not None:
        found = [[step, valid, valid * math.exp(train)] for step, valid in found]
    return replace(row, layer=layer, seed=seed, settings_digest=layer, validations=found)


def test_gaps_are_of_the_same_seed_at_updates_that_all_have(gaps):
    rows = [
        of("tied", 1, {10: 4.0, 20: 3.0, 25: 2.5}, 0.5),
        of("tied", 2, {10: 5.0, 20: 4.0}),
        of("dual", 1, {10: 4.5, 20: 3.25}, 0.25),
        of("dual", 2, {10: 5.25, 15: 4.5, 20: 3.875}),
        of("dual", 3, {10: 9.0, 20: 9.0}),
    ]
    assert list(gaps.table(rows)) == [
        "| multi30k, update | dual, validation | dual, training |",
        "|---:|---:|---:|",
        "| 10 | +0.375 (+0.500, +0.250) | +0.250 (+0.250) |",
        "| 20 | +0.062 (+0.250, -0.125) | +0.000 (+0.000) |",
        "",
    ]


def test_rows_that_do_not_tell_are_named(gaps):
    tied = of("tied", 1, {10: 4.0})
    for rows in ([tied], [tied, replace(of("dual", 1, {}), validations=[])]):
        with pytest.raises(SystemExit, match="no corpus has tied and another layer"):
            list(gaps.table(rows))


def test_what_is_told_of_europarl_is_in_the_ledger(gaps):
    lines = list(gaps.table(read(ROOT / "results/runs.jsonl")))
    first = "| 2,500 | +0.097 (+0.106, +0.088) | +0.027 (+0.035, +0.018) | "
    assert f"{first}+0.082 (+0.132, +0.033) | +0.020 (+0.029, +0.012) |" in lines
