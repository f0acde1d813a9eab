"""Every benchmark runs at tiny sizes and writes its rows; no time is asserted."""

import json
from functools import partial
from pathlib import Path

import pytest
from tables import QUESTIONS

from drill.layers import LAYERS
from tests.helpers.processes import ROOT, python

pytestmark = pytest.mark.slow  # all benchmarks, half a minute

BENCHMARKS = [name for name in QUESTIONS if name != "epoch"]  # which needs the corpora
NEED_CUDA = ("triton", "drill triton", "liger-kernel", "cut-cross-entropy")
MAY_FAIL = ("liger-kernel", "cut-cross-entropy", "F.linear_cross_entropy")  # not ours

# All scripts as main programs of one process: each would import torch again.
RUN = """
import runpy, sys
file, names, *options = sys.argv[1:]
sys.path.insert(0, "bench")
for name in names.split():
    sys.argv = [name, *options, "--json", f"{file}.{name}"]
    print(name, file=sys.stderr)
    runpy.run_path(f"bench/{name}.py", run_name="__main__")
"""

call = partial(python, timeout=1800, TRITON_INTERPRET="0")  # kernels are compiled, or not there


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def run(request, tmp_path_factory):
    """What was printed, rows by benchmark, and beginnings of names that may fail."""
    file = tmp_path_factory.mktemp("bench") / "rows"
    printed = call("-c", RUN, file, " ".join(BENCHMARKS), "--quick", "--device", request.param)
    rows = {name: read(Path(f"{file}.{name}")) for name in BENCHMARKS}
    return printed, rows, MAY_FAIL + (NEED_CUDA if request.param == "cpu" else ())


EXPECTED = {
    "layers": {"tied", "full", "deep-residual 1", "deep-residual 4", "mixture 15 x tied"},
    "loss": {"GEMM floor", "drill reference", "drill chunked", "drill triton", "drill auto"},
    "memory": {"reference", "chunked", "triton"},
    "inference": {"nn.Linear", "deep-residual 4, folded", "deep-residual 4, as trained"},
    "lstm": {"cudnn"},
    "step": {"plain nn.LSTM + F.cross_entropy", "drill tied", "drill deep-residual 2"},
    "translation": {"MarianMT", "drill tied", "drill deep-residual 2"},
    "gpt": {"transformers, compiled loop", "transformers Trainer", "drill tied", "drill full"},
}


@pytest.mark.parametrize("benchmark", ["step", "translation"])
def test_options_of_the_label_encoder_have_rows(benchmark, tmp_path):
    given, rows = "norm=rms,init_range=0.3", tmp_path / "rows"
    task = ["--task", "training"] if benchmark == "translation" else []
    script = ROOT / "bench" / f"{benchmark}.py"
    call(script, "--quick", "--device", "cpu", "--json", rows, "--options", given, *task)
    assert [row["name"] for row in read(rows) if given in row["name"] and "error" not in row]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_rows(run, benchmark):
    printed, rows, may_fail = run
    assert {row["name"] for row in rows[benchmark]} >= EXPECTED[benchmark]
    for row in rows[benchmark]:
        assert row["benchmark"] == benchmark
        assert row["name"] in printed
        assert row["device"]
        if "error" in row:
            assert row["name"].startswith(may_fail), row
            assert row["error"] in printed
        else:
            assert 0 < row["ms_min"] <= row["ms_median"] <= row["ms_p90"]
            assert row["peak_extra_bytes"] >= row["working_bytes"] >= 0


def test_every_layer_is_measured(run):
    names = [row["name"] for row in run[1]["layers"] if "error" not in row]
    assert [kind for kind in LAYERS if not any(name.startswith(kind) for name in names)] == []


def test_gradients_are_right(run):
    rows = run[1]["loss"]
    ours = [row for row in rows if row["name"].startswith("drill") and "error" not in row]
    assert ours
    for row in ours:
        bound = 1e-5 if row["dtype"] == "float32" else 2e-2
        assert row["hidden_error"] < bound
        assert row["weight_error"] < bound


def test_lstms_are_near_float64(run):
    rows = [row for row in run[1]["lstm"] if "error" not in row]
    assert rows
    for row in rows:
        bound = {"float32": 1e-5, "tf32": 5e-3}.get(row["dtype"], 2e-2)
        assert 0 < row["output_error"] < bound
        assert 0 < row["gradient_error"] < bound


def test_memory_does_not_grow_with_the_tokens(run):
    chunked = [row for row in run[1]["memory"] if row["name"] == "chunked"]
    working = {row["tokens"]: row["working_bytes"] for row in chunked}
    fewest, some, most = sorted(working)
    assert most == 4 * some == 16 * fewest
    assert working[most] < 1.5 * working[some]


def test_both_tasks_of_a_translator_have_a_rate(run):
    rows = [row for row in run[1]["translation"] if "error" not in row]
    keys = {"training": "target_tokens_per_second", "search": "sentences_per_second"}
    assert {row["task"] for row in rows} == {*keys}
    assert all(row[keys[row["task"]]] > 0 for row in rows)
