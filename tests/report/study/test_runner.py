"""Studies run by a stand-in for the command: order, resumption, budget, failures."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import drill
from drill.errors import DrillError, SettingsError
from drill.report.results.ledger import read_failures, read_ledger
from drill.report.study import runner
from drill.report.study.plan import read_plan
from drill.report.study.runner import command
from drill.report.study.states import AGAIN, DONE, FAILED, MISSING, PARTIAL, States
from drill.report.study.tables import status_table
from drill.training.run.folder import RunFolder
from tests.report.study.fake_drill import PLAN, StudyWorkspace

TRAINED = ["a-seed-1 train", "b-seed-1 train", "a-seed-2 train", "b-seed-2 train"]
CHAIN = ["a-seed-1 train", "a-seed-1-finetune finetune", "a-seed-1-finetune cache"]
STAGES = 'stages = ["train", "finetune", "cache"]' + PLAN


def states(workspace: StudyWorkspace) -> dict[str, str]:
    plan = read_plan("plan.toml")
    found = States(plan, workspace.ledger, workspace.runs)
    return {str(job): found.state(job) for job in plan.jobs()}


def test_jobs_run_in_order_and_are_recorded(workspace):
    assert workspace.study() == TRAINED
    assert [row.name for row in read_ledger(workspace.ledger)] == [
        each.split()[0] for each in TRAINED
    ]
    assert set(states(workspace).values()) == {DONE}
    assert workspace.said[0] == "a-seed-1 train: started"
    assert workspace.said[1].startswith("a-seed-1 train: valid 60.00, test 58.00 (0.0 min)")
    assert workspace.said[-1] == "results.jsonl: 4 of 4 jobs done"
    assert Path("runs/a-seed-1.train.log").exists()


def test_a_study_resumes_from_the_ledger_alone(workspace):
    workspace.study(workspace.plan(PLAN.replace("[1, 2]", "[1]")))
    shutil.rmtree("runs")
    assert workspace.study() == TRAINED[2:]
    assert workspace.study() == []


def test_other_settings_are_another_experiment(workspace):
    workspace.study()
    shutil.rmtree("runs")
    workspace.plan(PLAN.replace('"layer.depth=1"', '"layer.depth=1", "optimizer.lr=3"'))
    assert states(workspace)["b-seed-1 train"] == MISSING
    assert workspace.study(read_plan("plan.toml")) == [TRAINED[1], TRAINED[3]]


def test_an_evaluation_by_another_plan_is_not_taken_for_its_own(workspace):
    workspace.study()
    subprocess.run([*runner.PROGRAM, "dynamic", "runs/a-seed-1"], check=True)
    plan = workspace.plan('stages = ["train", "cache", "dynamic"]' + PLAN)
    assert workspace.study(plan)[:2] == ["a-seed-1 cache", "a-seed-1 dynamic"]


def test_weights_that_are_gone_are_trained_again_only_if_a_stage_needs_them(workspace):
    workspace.study()
    shutil.rmtree("runs")
    plan = workspace.plan(STAGES.replace("[1, 2]", "[1]"))
    found = States(plan, workspace.ledger, workspace.runs)
    status = status_table(found)
    assert status.count(AGAIN) == 2
    assert status.splitlines()[-1].startswith("0 of 6 jobs done; 6 to run")  # each job once
    assert workspace.study(plan)[:3] == CHAIN
    shutil.rmtree("runs")
    assert workspace.study(plan) == []


# -- the budget -----------------------------------------------------------------------------------


def test_a_job_that_does_not_fit_is_passed_over_for_one_that_does(workspace):
    limits = [f'recipe = "tiny.toml"\nset = ["training.max_minutes={limit}"]' for limit in (9, 1)]
    rows = "".join(f'[[row]]\nname = "{name}"\n{limits.pop(0)}\n' for name in "ab")
    plan = workspace.plan(f"seeds = [1, 2]\n{rows}")
    assert workspace.study(plan, minutes=5) == ["b-seed-1 train", "b-seed-2 train"]
    assert states(workspace)["a-seed-1 train"] == MISSING


def test_estimates_are_of_finished_jobs_then_of_max_minutes(workspace):
    plan = workspace.plan(PLAN.replace("layer.depth=1", "training.max_minutes=9"))
    a, b = plan.jobs()[:2]
    empty = States(plan, workspace.ledger, workspace.runs)
    assert (empty.minutes(a), empty.minutes(b)) == (None, 9)
    workspace.behave(b_seed_1__train="fail", b_seed_2__train="fail")
    workspace.study(plan)
    known = States(plan, workspace.ledger, workspace.runs)
    assert known.minutes(a) == pytest.approx(121 / 60)
    assert known.minutes(b) == 9
    other = workspace.plan(PLAN.replace('"layer.depth=1"', ""))
    found, never_run = States(other, workspace.ledger, workspace.runs), other.jobs()[1]
    assert found.minutes(never_run) == pytest.approx(121 / 60)
    assert found.minutes_left([never_run, *other.jobs()[:1]]) == "4.0?"


def test_jobs_stop_at_the_end_of_the_budget_and_resume(workspace):
    workspace.behave(a_seed_1__train="wait")
    plan = workspace.plan()
    workspace.study(plan, minutes=1.5 / 60)
    assert workspace.said[-2] == "a-seed-1 train: stopped after 0.0 min, valid 70.00, test not yet"
    assert states(workspace)["a-seed-1 train"] == PARTIAL
    (row,) = read_ledger(workspace.ledger)
    assert (row.epochs, row.valid, row.test) == (1, 70.0, None)
    assert workspace.study(plan) == TRAINED
    assert states(workspace)["a-seed-1 train"] == DONE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_as_the_end_of_the_budget_does(workspace, monkeypatch, number):
    workspace.behave(a_seed_1__train="wait")

    def sleep(_: float) -> None:
        if Path("waiting.txt").exists():
            Path("waiting.txt").unlink()  # once: a second signal would end the process
            os.kill(os.getpid(), number)
        real_sleep(0.05)

    real_sleep = time.sleep
    monkeypatch.setattr(runner.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        workspace.study()
    assert states(workspace)["a-seed-1 train"] == PARTIAL


def test_jobs_run_at_once(workspace):
    workspace.behave(a_seed_1__train="meet")
    assert sorted(workspace.study(parallel=2)) == sorted(TRAINED)
    assert set(states(workspace).values()) == {DONE}


# -- failures -------------------------------------------------------------------------------------


def test_a_failed_job_is_recorded_and_does_not_stop_the_study(workspace):
    workspace.behave(a_seed_1__train="fail", b_seed_1__train="crash")
    plan = workspace.plan(STAGES)
    started = workspace.study(plan)
    assert "a-seed-1-finetune finetune" not in started  # nothing to start from
    assert "a-seed-2-finetune cache" in started
    first, second = read_failures(workspace.ledger)
    assert (first.name, first.seed, first.stage) == ("a-seed-1", 1, "train")
    assert first.message == "ValueError: bad luck"
    assert second.message == "killed by SIGKILL; no output"
    assert states(workspace)["a-seed-1 train"] == FAILED
    workspace.behave()
    assert workspace.study(plan) == []
    again = workspace.study(plan, retry=True)
    assert again[:2] == ["a-seed-1 train", "a-seed-1-finetune finetune"]
    assert set(states(workspace).values()) == {DONE}


def test_a_job_that_hangs_is_killed_and_recorded(workspace, monkeypatch):
    monkeypatch.setattr(runner, "SILENT_SECONDS", 0.5)
    workspace.behave(a_seed_1__train="hang")
    assert workspace.study() == TRAINED
    (failure,) = read_failures(workspace.ledger)
    assert (failure.name, failure.stage) == ("a-seed-1", "train")
    log = (workspace.runs / "a-seed-1.train.log").read_text()
    assert "most recent call first" in log  # where it hung
    assert states(workspace)["a-seed-1 train"] == FAILED


def test_a_job_that_does_not_stop_is_killed_and_run_again(workspace, monkeypatch):
    monkeypatch.setattr(runner, "STOP_SECONDS", 0.2)
    workspace.behave(a_seed_1__train="hang")
    workspace.study(minutes=1.5 / 60)
    assert states(workspace)["a-seed-1 train"] == MISSING
    assert not workspace.ledger.exists()
    workspace.behave()
    assert workspace.study() == TRAINED


def test_a_run_without_a_test_is_a_failure(workspace):
    Path("figures.json").write_text(json.dumps({"a-seed-1": [60.0, "inf"]}))
    workspace.study()
    assert [each.message for each in read_failures(workspace.ledger)] == ["ended without a result"]


def test_a_folder_that_another_process_uses_is_left_to_it(workspace):
    with RunFolder("runs/a-seed-1").locked():
        workspace.behave(a_seed_1__train="fail")
        workspace.study()
    assert "a-seed-1 train: another process trains in runs/a-seed-1" in workspace.said
    assert states(workspace)["a-seed-1 train"] == MISSING


def test_settings_are_checked_before_the_first_job(workspace):
    for change in ("data.corpus=nowhere", "init_from=nowhere"):
        missing = PLAN.replace("layer.depth=1", change)
        with pytest.raises(DrillError, match="nowhere"):
            workspace.study(workspace.plan(missing))
    assert workspace.started() == []
    workspace.study()
    (workspace.ledger).unlink()
    shutil.rmtree("runs/a-seed-1")
    folder = RunFolder("runs/b-seed-1")
    folder.recipe.write_text(folder.recipe.read_text().replace("depth = 1", "depth = 2"))
    with pytest.raises(SettingsError, match="b-seed-1: has a run with other settings than row b"):
        workspace.study()


# -- commands -------------------------------------------------------------------------------------


def test_commands_are_those_that_a_user_types(workspace):
    text = STAGES.replace("seeds", 'finetune_set = ["training.epochs=3"]\nseeds')
    text = text.replace("[[row]]", '[options]\ncache = ["--search"]\n\n[[row]]', 1)
    plan = workspace.plan(text)
    jobs = [job for job in plan.jobs() if (job.row.name, job.seed) == ("b", 2)]
    assert [" ".join(command(job, plan, workspace.runs, "cpu")) for job in jobs] == [
        "train tiny.toml --name b-seed-2 --runs runs --set layer.depth=1 --set training.seed=2 "
        "--device cpu",
        "finetune runs/b-seed-2 --name b-seed-2-finetune --set training.epochs=3 --device cpu",
        "cache runs/b-seed-2-finetune --search --device cpu",
    ]


# -- a study that is killed -----------------------------------------------------------------------

STUDY = """
import sys
from pathlib import Path
from drill.report.study import runner
from drill.report.study.plan import read_plan
runner.PROGRAM = (sys.executable, "-S", "stand_in.py")
runner.StudyRunner(read_plan("plan.toml"), Path("results.jsonl"), Path("runs")).run()
"""


@pytest.mark.slow
def test_a_killed_study_resumes(workspace):
    workspace.behave(b_seed_1__train="wait")
    plan = workspace.plan()
    study = subprocess.Popen(
        [sys.executable, "-c", STUDY],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(drill.__file__).parents[1])},
    )
    deadline = time.monotonic() + 120
    while not Path("waiting.txt").exists():
        assert study.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    study.kill()
    study.wait()
    os.kill(int(Path("waiting.txt").read_text()), signal.SIGKILL)
    assert [row.name for row in read_ledger(workspace.ledger)] == ["a-seed-1"]
    with workspace.ledger.open("ab") as stream:
        stream.write(b'{"kind": "resu')  # it may have been writing
    workspace.behave()
    shutil.rmtree("runs")
    assert workspace.study(plan) == TRAINED[1:]
    assert set(states(workspace).values()) == {DONE}
