"""What a study prints: means, differences, times, and what is missing."""

import json
from pathlib import Path

import pytest

from drill.report.study.page import study_markdown, write_study_page
from drill.report.study.states import States
from drill.report.study.tables import status_table
from tests.report.page_reader import figures
from tests.report.study.fake_drill import PLAN

FIGURES = {f"a-seed-{n}": (59.0 + n, 57.0 + n) for n in (1, 2, 3)}
FIGURES |= dict.fromkeys(("b-seed-1", "b-seed-2", "b-seed-3"), (59.0, 57.0))

GOLDEN = """\
## small

### train

**Results of train**

| row | n | valid | test | valid - a | p | test - a | p | minutes | minutes to 60 |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
| a | 3 | 61.00 ± 0.58 | 59.00 ± 0.58 |  |  |  |  | 2.0 | 2.0 (1 of 3) |
| b | 3 | 59.00 ± 0.00 | 57.00 ± 0.00 | -2.00 (-4.48 to +0.48) | 0.074 | -2.00 (-4.48 to +0.48) | 0.074 | 2.0 | 2.0 |

n: seeds; ± is the standard error of the mean. Differences to the baseline are paired by seed, with a 95% confidence interval and the p-value of a two-sided paired t-test. Device: a GPU. Commit: abc1234.

**Settings of the plan**

- b: layer.depth=1
"""  # noqa: E501


@pytest.fixture
def workspace(workspace):
    Path("figures.json").write_text(json.dumps(FIGURES))
    return workspace


def reported(workspace, text=PLAN, *goals) -> str:
    """What is reported of a study of this plan."""
    plan = workspace.plan(text)
    workspace.study(plan)
    return study_markdown(States(plan, workspace.ledger, None), goals)


def test_the_table_has_means_and_paired_differences(workspace):
    assert reported(workspace, PLAN.replace("[1, 2]", "[1, 2, 3]"), 60.0) == GOLDEN


def test_bits_per_byte_and_loss_by_frequency(workspace):
    def figures(bits: float, rare: float, low: int) -> tuple:
        bands = [[0, 1, 0, 0, 0.0], [low, 100, 2, 4, 4 * rare], [100, None, 3, 10, 20.0]]
        names = ("low", "high", "types", "tokens", "loss")
        found = [dict(zip(names, band, strict=True)) for band in bands]
        return (60.0, 58.0, {"test_bits_per_byte": bits, "test_bands": found})

    values = {"a": (1.2, 5.0, 3), "b": (1.1, 4.5, 1)}  # 1: an earlier row
    made = {f"{a}-seed-{n}": figures(*v) for a, v in values.items() for n in (1, 2)}
    Path("figures.json").write_text(json.dumps(made))
    text = reported(workspace)
    assert "| 1.1000 ± 0.0000 |" in text
    assert "| -0.1000 (-0.1000 to -0.1000) |" in text
    line = "| b | 2 | 4.500 ± 0.000 | -0.500 (-0.500 to -0.500) | 2.000 ± 0.000 |"
    assert line in text.split("**Loss by training count**")[1]


def test_one_seed_has_no_error(workspace):
    text = reported(workspace, PLAN.replace("[1, 2]", "[1]"))
    assert "| a | 1 | 60.00 | 58.00 |  |  |  |  | 2.0 |" in text
    assert "| b | 1 | 59.00 | 57.00 | -1.00 | - | -1.00 | - | 2.0 |" in text


def test_only_common_seeds_are_compared(workspace):
    text = reported(workspace, PLAN + "seeds = [2, 3]\n")
    assert "| b | 2 | 59.00 ± 0.00 | 57.00 ± 0.00 | -2.00 |" in text


def test_what_is_not_in_the_table_is_named(workspace):
    workspace.behave(a_seed_1__train="wait", b_seed_1__train="fail")
    plan = workspace.plan()
    workspace.study(plan, minutes=1.5 / 60)
    workspace.behave(b_seed_1__train="fail", a_seed_1__train="fail")
    workspace.study(workspace.plan(PLAN.replace("[1, 2]", "[1]")))
    text = study_markdown(States(plan, workspace.ledger, None))
    assert text.split("### Not in the tables\n")[1] == (
        "\n- a-seed-1 train: failed; ValueError: bad luck\n"
        "- b-seed-1 train: failed; ValueError: bad luck\n"
        "- missing: 2 of 4 jobs; --status lists them\n"
    )
    assert status_table(States(plan, workspace.ledger, workspace.runs)) == (
        "row  seed  train    minutes left\n"
        "a    1     failed\n"
        "a    2     missing  ?\n"
        "b    1     failed\n"
        "b    2     missing  ?\n"
        "0 of 4 jobs done, 2 failed; 2 to run, about ? min"
    )


def test_the_status_has_the_time_of_several_at_once(workspace):
    plan = workspace.plan('set = ["training.max_minutes=3"]' + PLAN)
    status = status_table(States(plan, workspace.ledger, workspace.runs), parallel=2)
    assert status.endswith("0 of 4 jobs done; 4 to run, about 12.0 min, 6.0 with 2 at a time")


def test_partial_runs_and_repeated_ones_are_named(workspace):
    workspace.behave(a_seed_1__train="wait")
    plan = workspace.plan()
    workspace.study(plan, minutes=1.5 / 60)
    text = study_markdown(States(plan, workspace.ledger, None))
    assert "- a-seed-1 train: partial; epochs 1, lowest valid 70.00\n" in text
    assert "Not in the tables" not in reported(workspace)


def test_held_out_words_have_a_table(workspace):
    text = reported(workspace, 'stages = ["train", "words"]\nset = ["data.held_out=1"]' + PLAN)
    rows = text.split("### words")[1].splitlines()
    assert rows[4].startswith("| row | n | valid | test | back-off | mixed | among | rank | mass |")
    start = "| a | 2 | 50.00 ± 0.00 | 50.00 ± 0.00 | - | - | 7.00 ± 0.00 | - | 0.2500 ± 0.0000 |"
    assert rows[6].startswith(start)


def test_analyses_have_ranks_and_loss_by_types(workspace):
    def bands(by_types: float) -> list:
        names = ("low", "high", "types", "tokens", "loss", "type_loss")
        found = ([0, 1, 0, 0, 0.0, 0.0], [1, None, 2, 4, 9.0, 2 * by_types])
        return [dict(zip(names, band, strict=True)) for band in found]

    values = {"a": 3.0, "b": 2.5}
    made = {f"{a}-seed-{n} bands": bands(each) for a, each in values.items() for n in (1, 2)}
    Path("figures.json").write_text(json.dumps(made))
    text = reported(workspace, 'stages = ["train", "analyse"]' + PLAN)
    ranks, types = text.split("### analyse")[1].split("**Loss by training count, over types**")
    assert "| a | 2 | 10.0 ± 0.0 | 14.0 ± 0.0 |" in ranks
    assert "| +4.0 (+4.0 to +4.0) | < 0.001 | 18 |" in ranks
    assert "| b | 2 | 2.500 ± 0.000 | -0.500 (-0.500 to -0.500) |" in types
    again = States(workspace.plan('stages = ["train", "analyse"]' + PLAN), workspace.ledger, None)
    assert again.status_line() == "8 of 8 jobs done"


def test_a_row_has_the_papers_figures_of_its_recipe_or_of_the_one_it_names(workspace):
    Path("ptb-tied.toml").write_text(Path("tiny.toml").read_text())
    plan = 'stages = ["train", "finetune", "cache"]' + PLAN + 'paper = "ptb-tied"\n'
    text = reported(workspace, plan.replace("tiny.toml", "ptb-tied.toml", 1))
    train, finetune, cache = (
        text.split(f"### {each}\n")[1] for each in ("train", "finetune", "cache")
    )
    assert "| 60.7 / 58.8 | -0.2 / -0.3 |" in train  # of row a, by its recipe: 60.5 and 58.5
    assert "| 60.7 / 58.8 | -1.7 / -1.8 |" in train  # of row b: 59 and 57
    assert "| 60.0 / 57.3 | 0.0 / +0.7 |" in finetune  # 60 and 58
    assert "| 53.9 / 52.8 | -4.0 / -2.9 |" in cache  # 49.9


def test_a_page_has_the_tables_and_curves_over_seeds(workspace):
    plan = workspace.plan(PLAN.replace("[1, 2]", "[1, 2, 3]"))
    workspace.behave(b_seed_3__train="fail")
    workspace.study(plan)
    page = write_study_page(States(plan, workspace.ledger, None), Path("study.html"), [60.0])
    text = page.read_text()
    assert "59.00 ± 0.58" in text
    assert "minutes to 60" in text
    assert "b-seed-3 train: failed" in text
    time, epochs = figures(text)
    assert all(row[3] for row in (*time[1:], *epochs[1:]))  # the range over seeds
    assert ["b", "2", "59"] in [row[:3] for row in epochs]
    assert ["a", "2", "61"] in [row[:3] for row in time]


def test_the_settings_of_the_plan_are_below_the_table(workspace):
    text = reported(workspace, 'set = ["training.epochs=2"]' + PLAN)
    assert text.endswith(
        "**Settings of the plan**\n\n- all rows: training.epochs=2\n- b: layer.depth=1\n"
    )
