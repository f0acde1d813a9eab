"""Every benchmark runs and writes its rows; no time is asserted."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from drill.layers import LAYERS

ROOT = Path(__file__).parents[2]
NEED_CUDA = ("triton", "drill triton", "liger-kernel", "cut-cross-entropy")
MAY_FAIL = ("liger-kernel", "cut-cross-entropy", "F.linear_cross_entropy")  # not ours


@pytest.fixture(
    scope="module", params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.slow])]
)
def run(request, tmp_path_factory):
    """stdout and the JSON rows by benchmark."""
    path = tmp_path_factory.mktemp("bench") / "rows.jsonl"
    # One thread: the sizes are tiny, and on a busy machine threads wait for each other.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)  # benchmarks time kernels, not their interpreter
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "bench/run_all.py", "--quick"),
            *("--device", request.param, "--json", path),
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows[row["benchmark"]].append(row)
    excused = MAY_FAIL + (NEED_CUDA if request.param == "cpu" else ())
    return done.stdout, rows, excused


EXPECTED = {
    "layers": {"tied", "full", "deep-residual 1", "deep-residual 4", "mixture 15 x tied"},
    "loss": {"GEMM floor", "drill reference", "drill chunked", "drill triton", "drill auto"},
    "memory": {"reference", "chunked", "triton"},
    "inference": {"nn.Linear", "deep-residual 4, folded", "deep-residual 4, as trained"},
    "lstm": {"cudnn"},
    "step": {"plain nn.LSTM + F.cross_entropy", "drill tied", "drill deep-residual 2"},
    "translation": {"MarianMT", "drill tied", "drill deep-residual 2"},
}


@pytest.mark.parametrize("benchmark", EXPECTED)
def test_rows(run, benchmark):
    stdout, rows, excused = run
    assert {row["name"] for row in rows[benchmark]} >= EXPECTED[benchmark]
    for row in rows[benchmark]:
        assert row["name"] in stdout
        if "error" in row:
            assert row["name"].startswith(excused), row
            assert row["error"].splitlines()[0] in stdout
        else:
            assert 0 < row["ms_min"] <= row["ms_median"]
            assert row["peak_extra_bytes"] >= row["working_bytes"] >= 0
            assert row["device"]
            assert row["torch"]


def test_every_layer_is_measured(run):
    _, rows, _ = run
    names = [row["name"] for row in rows["layers"] if "error" not in row]
    assert [kind for kind in LAYERS if not any(name.startswith(kind) for name in names)] == []


def test_gradients_are_right(run):
    _, rows, _ = run
    ours = [row for row in rows["loss"] if row["name"].startswith("drill") and "error" not in row]
    assert ours
    for row in ours:
        bound = 1e-5 if row["dtype"] == "float32" else 2e-2
        assert row["hidden_error"] < bound
        assert row["weight_error"] < bound


def test_lstms_are_near_float64(run):
    _, rows, _ = run
    ours = [row for row in rows["lstm"] if "error" not in row]
    assert ours
    for row in ours:
        bound = {"float32": 1e-5, "tf32": 5e-3}.get(row["dtype"], 2e-2)
        assert 0 < row["output_error"] < bound
        assert 0 < row["gradient_error"] < bound


def test_memory_does_not_grow_with_the_tokens(run):
    _, rows, _ = run
    working = {
        row["tokens"]: row["working_bytes"] for row in rows["memory"] if row["name"] == "chunked"
    }
    fewest, some, most = sorted(working)
    assert most == 4 * some == 16 * fewest
    assert working[most] < 1.5 * working[some]


def test_a_translator_may_be_trained_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "bench/translation.py", "--quick", "--task", "training"),
            *("--device", "cpu", "--json", path),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["name"] for row in rows} == EXPECTED["translation"]
    assert {row["task"] for row in rows} == {"training"}
