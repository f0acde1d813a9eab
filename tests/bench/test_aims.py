"""The table of aims: the newest row of each kind, ratios of one run, and what was not measured."""

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
STEP = {"benchmark": "step", "size": "ptb", "dtype": "autocast", "commit": "abc"}


@pytest.fixture
def aims(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import aims

    return aims


def steps(time: str, **ms: float) -> list[dict[str, object]]:
    """Rows of one run: replayed as given, launched twice that."""
    names = {"tied": "drill tied", "deep": "drill deep-residual 4"}
    return [
        STEP | {"time": time, "name": f"{names[key]}{how}", "ms_median": times * value}
        for key, value in ms.items()
        for how, times in ((", replayed", 1), ("", 2))
    ]


def cells(aims, rows, what: str) -> list[str]:
    line = next(line for line in aims.table(rows) if line.startswith(f"| {what}"))
    return line.split(" | ")[1:]


def test_nothing_is_said_of_what_has_no_row(aims):
    for line in list(aims.table([]))[2 : 2 + len(aims.LINES)]:
        *_, ours, verdict, _ = line.split(" | ")
        assert ours == "not measured"
        assert verdict == ""


def test_the_newest_row_counts_wherever_it_stands(aims):
    row = {"benchmark": "epoch", "name": "ptb-drill-4", "precision": "bfloat16", "commit": "new"}
    rows = [
        row | {"time": "2026-01-02", "seconds_median": 2.5},
        row | {"time": "2026-01-01", "seconds_median": 1.0, "commit": "old"},
        row | {"time": "2026-01-03", "seconds_median": 0.5, "precision": "tf32"},
        row | {"time": "2026-01-04", "dynamic_seconds": 30.0},  # trained for an epoch alone
    ]
    epoch = cells(aims, rows, "epoch of Penn Treebank")
    assert epoch[0] == "released code 12.6 s"
    assert epoch[3:] == ["2.50 s, steps replayed", "missed by 25.0%", "new |"]
    assert cells(aims, rows, "dynamic")[3:5] == ["30.00 s, gradients replayed", "met"]


def test_a_failure_is_not_covered_by_an_older_success(aims):
    row = {"benchmark": "lstm", "name": "persistent", "size": "ptb", "dtype": "autocast"}
    good = row | {"time": "2026-01-01", "ms_median": 3.0, "ms_graph_median": 1.5}
    what = "three LSTMs"
    assert cells(aims, [good], what)[3:5] == [
        "1.50 ms replayed, 3.00 launched",
        "met; stretch missed by 7.1%",
    ]
    best = good | {"time": "2026-01-02", "ms_graph_median": 1.4}
    assert cells(aims, [best, good], what)[4] == "met, stretch too"
    failed = row | {"time": "2026-01-03", "error": "out of memory"}
    assert cells(aims, [good, best, failed], what)[3:5] == ["not measured", ""]


def test_peers_of_other_commits_are_named(aims):
    row = {"benchmark": "lstm", "dtype": "autocast", "ms_median": 3.0, "ms_graph_median": 1.5}
    ours = row | {"name": "persistent", "size": "ptb", "commit": "new", "time": "2026-01-02"}
    same = row | {"name": "cudnn", "size": "ptb", "commit": "new", "time": "2026-01-02"}
    rows = [ours, same, same | {"dtype": "tf32", "commit": "old"}]
    assert cells(aims, rows, "three LSTMs")[-1] == "new; cuDNN tf32 old |"
    assert cells(aims, [ours, same], "three LSTMs")[-1] == "new |"


def test_steps_are_divided_within_a_run(aims):
    old = steps("2026-01-01", tied=1.0, deep=1.5)
    what = "step of `ptb-drill-4`"
    new = steps("2026-01-02", tied=2.0, deep=2.1)
    assert cells(aims, [*new, *old], what)[3:5] == [
        "1.050 replayed (2.10 over 2.00 ms), 1.05 launched",
        "met",
    ]
    alone = steps("2026-01-03", deep=9.0)
    assert cells(aims, [*old, *new, *alone], what)[3] == "not measured"


def test_a_peer_that_was_not_timed_says_so(aims):
    row = {"benchmark": "lstm", "name": "cudnn", "size": "wt2", "dtype": "autocast"}
    row |= {"time": "2026-01-01", "ms_median": 15.0, "ms_graph_median": 12.5}
    assert cells(aims, [row], "the same, batch 80")[0] == (
        "cuDNN tf32 not measured; cuDNN bfloat16 12.50 ms replayed, 15.00 launched"
    )


def test_a_speed_is_over_the_peer_of_the_same_run_and_aims_upwards(aims):
    wanted = {"benchmark": "translation", "task": "training", "size": "nmt", "dtype": "autocast"}

    def rows(time: str, ours: float, theirs: float, launched: float) -> list[dict[str, object]]:
        ms = {"drill tied, CUDA graph": ours, "MarianMT, CUDA graph": theirs}
        ms |= {"drill tied": launched, "MarianMT": 30.0}
        return [
            wanted | {"name": name, "ms_median": each, "time": time} for name, each in ms.items()
        ]

    told = cells(aims, rows("2026-01-01", 10.0, 16.0, 40.0), "training of the paper's")
    assert told[2:5] == [
        "at least 1.5",
        "1.60 times with both in CUDA graphs, 0.75 times with both launched",
        "met",
    ]
    slower = [*rows("2026-01-01", 10.0, 16.0, 40.0), *rows("2026-01-02", 10.0, 12.0, 40.0)]
    assert cells(aims, slower, "training of the paper's")[4] == "missed by 20.0%"
    alone = [*slower, wanted | {"name": "drill tied", "ms_median": 1.0, "time": "2026-01-03"}]
    assert cells(aims, alone, "training of the paper's")[3] == "not measured"
