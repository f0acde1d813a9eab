"""Searches over settings: tuned cell by cell, resumable, never stale."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from drill.data import DataError
from drill.language_modeling.evaluation import dynamic_evaluation
from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.evaluation.gradient_statistics import gradient_statistics
from drill.language_modeling.evaluation.grid_search import Cell, GridSearch, run_grid
from drill.language_modeling.evaluation.perplexity import Perplexity
from tests.language_modeling.models import bits, measured, text

POINTS = [{"a": a, "b": b} for a in (0.1, 0.2) for b in (1.0, 3.0)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "search.json"


def scored(point) -> Perplexity:
    return Perplexity(nll=10 * abs(point["a"] - 0.2) + point["b"] + 1, tokens=10, batch_size=1)


def run(path, points=POINTS, key="one", evaluate=scored):
    calls = []

    def counted(progress, **point):
        calls.append(point)
        return evaluate(point)

    found = run_grid(points, counted, key=key, tokens=10, file=path, progress=None)
    return found, calls


def test_cells_that_are_done_are_not_done_again(tmp_path, path):
    whole, _ = run(tmp_path / "other.json")

    def broken(point):
        if point == POINTS[2]:
            raise KeyboardInterrupt
        return scored(point)

    with pytest.raises(KeyboardInterrupt):
        run(path, evaluate=broken)
    found, calls = run(path)
    assert calls == POINTS[2:]
    assert found == whole
    assert run(path) == (whole, [])


def test_two_searches_at_once_keep_each_others_cells(path):

    def meanwhile(point):
        if point == POINTS[0]:
            run(path, POINTS[1:], key="two")
        return scored(point)

    run(path, POINTS[:1], key="one", evaluate=meanwhile)
    assert run(path, POINTS[1:], key="two")[1] == []
    assert run(path, POINTS[:1], key="one")[1] == []


def test_cell_that_diverges_is_never_the_best_and_is_remembered(path):
    def diverging(point):
        if point["a"] == 0.2:
            raise FloatingPointError("NaN")
        return Perplexity(math.inf, 10, 1) if point["b"] == 3.0 else scored(point)

    found, _ = run(path, evaluate=diverging)
    assert [cell.result is None for cell in found.cells] == [False, True, True, True]
    assert found.best.settings == POINTS[0]
    assert run(path, evaluate=diverging) == (found, [])
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity: plain JSON


def test_search_in_which_all_diverge_has_no_best():
    with pytest.raises(FloatingPointError, match="all 4 cells diverged"):
        _ = GridSearch([Cell(point, None) for point in POINTS]).best


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"searches": 3}', "\x00"])
def test_damaged_file_is_named(path, content):
    path.write_text(content)
    with pytest.raises(DataError, match=r"search\.json: "):
        run(path)


def tune(model, statistics, path=None, **options):
    given_ = {"lrs": (0.0, 0.01), "decays": (0.01, 0.5), "limit": 40, **options}
    return dynamic_search(model, np.tile(text(9), 30), statistics, file=path, **given_)


def test_search_finds_that_adaptation_helps():
    model, statistics = measured()
    before = bits(model)
    found = tune(model, statistics)
    assert len(found.cells) == 4
    assert found.best.settings == {"lr": 0.01, "decay": 0.01}
    assert bits(model) == before
    truth = dynamic_perplexity(
        model, np.tile(text(9), 30), statistics, limit=40, **found.best.settings
    )
    assert found.best.result == truth


def test_search_resumes_and_knows_what_its_cells_belong_to(path, monkeypatch, calls_of):
    model, statistics = measured()
    evaluated = calls_of(dynamic_evaluation, "dynamic_perplexity")

    def passes(statistics=statistics, **options):
        evaluated.clear()
        tune(model, statistics, path, **options)
        return len(evaluated)

    assert (passes(), passes()) == (4, 0)
    for other in ({"limit": 60}, {"eps": 1e-3}, {"segment_length": 7}):
        assert passes(**other) == 4
    assert passes(lrs=(0.0, 0.01, 0.02)) == 2
    assert passes(dataclasses.replace(statistics, precision="tf32 in products")) == 4
    with monkeypatch.context() as patch:
        patch.setattr(dynamic_evaluation, "current_precision", lambda _: "tf32 in products")
        assert passes() == 4
    assert passes(gradient_statistics(model, text(90), batch_size=4)) == 4
    with torch.no_grad():
        model.layer.bias[0] += 1e-9
    assert passes(gradient_statistics(model, text(100), batch_size=4)) == 4


def test_usual_grid_grows_with_the_segments():
    model, statistics = measured()
    usual = dynamic_search(model, text(12), statistics, limit=None)
    assert len(usual.cells) == 30
    assert usual.cells[0].settings == {"lr": 3e-5, "decay": 1e-3}
    longer = dynamic_search(model, text(12), statistics, segment_length=10)
    assert longer.cells[-1].settings == {"lr": 2 * 10e-5, "decay": 2 * 1e-2}


def test_invalid_grid_raises(tmp_path):
    model, statistics = measured()
    with pytest.raises(ValueError, match="lr must be"):
        tune(model, statistics, lrs=(0.01, math.nan))
    with pytest.raises(ValueError, match="no settings to try"):
        tune(model, statistics, decays=())
