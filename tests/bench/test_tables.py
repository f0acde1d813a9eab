"""Tables are made from rows of benchmarks."""

import tables

SIZE = {"size": "ptb", "tokens": 1400, "labels": 10_000, "width": 400, "dtype": "float32"}


def test_every_page_is_what_the_rows_say():
    found = tables.pages()
    assert len(found) == 4
    stale = [path.name for path, text in found.items() if path.read_text() != text]
    assert stale == [], "run `python bench/tables.py`"


# -- aims -----------------------------------------------------------------------------------------


def steps(time: str, **ms: float) -> list[dict[str, object]]:
    """Rows of one run: replayed as given, launched twice that."""
    about = {"benchmark": "step", "size": "ptb", "dtype": "autocast", "commit": "abc"}
    names = {"tied": "drill tied", "deep": "drill deep-residual 4"}
    return [
        {**about, "time": time, "name": f"{names[key]}{how}", "ms_median": factor * value}
        for key, value in ms.items()
        for how, factor in ((", replayed", 1), ("", 2))
    ]


def reached(rows: list[dict[str, object]], name: str) -> tuple[str, str]:
    line = tables.aims(rows)[name]
    return tables.shown(line.ours), tables.verdict(line)


def test_the_newest_row_counts():
    row = {"benchmark": "epoch", "name": "ptb-drill-4", "precision": "bfloat16", "commit": "new"}
    rows = [
        {**row, "time": "2026-01-02", "seconds_median": 2.5},
        {**row, "time": "2026-01-01", "seconds_median": 1.0},
        {**row, "time": "2026-01-03", "seconds_median": 0.5, "precision": "tf32"},
        {**row, "time": "2026-01-04", "dynamic_seconds": 30.0},
    ]
    assert reached(rows, "epoch") == ("2.50 s, steps replayed", "missed by 25.0%")
    assert reached(rows, "dynamic") == ("30.00 s, gradients replayed", "met")


def test_a_failure_is_not_covered_by_an_older_success():
    row = {"benchmark": "lstm", "name": "persistent", "size": "ptb", "dtype": "autocast"}
    row |= {"commit": "new", "time": "1", "ms_median": 3.0, "ms_graph_median": 1.5}
    stretch = "met; stretch missed by 7.1%"
    assert reached([row], "lstms") == ("1.50 ms replayed, 3.00 launched", stretch)
    best = {**row, "time": "2", "ms_graph_median": 1.4}
    assert reached([best, row], "lstms")[1] == "met, stretch too"
    failed = {**SIZE, **row, "time": "3", "error": "out of memory", "dtype": "autocast"}
    assert reached([row, best, failed], "lstms") == ("not measured", "")
    cudnn = {**row, "name": "cudnn", "commit": "old"}
    line = [*tables.aims_table([row, cudnn])][2]
    assert line.startswith("| three LSTMs")
    assert "cuDNN tf32 not measured; cuDNN bfloat16 1.50 ms replayed" in line
    assert line.endswith("| new; cuDNN bfloat16 old |")


def test_steps_are_divided_within_a_run():
    old, new = steps("1", tied=1.0, deep=1.5), steps("2", tied=2.0, deep=2.1)
    text = "1.050 replayed (2.10 over 2.00 ms), 1.05 launched"
    assert reached([*new, *old], "ratio") == (text, "met")
    assert reached([*old, *new, *steps("3", deep=9.0)], "ratio")[0] == "not measured"
