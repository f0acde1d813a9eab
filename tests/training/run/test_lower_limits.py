"""Less is asked of a run than it has trained, or no more of what ended it: nothing is lost."""

import pytest

from drill.training.run.folder import RunFolder
from tests.helpers.language_models import contents
from tests.helpers.tasks import LM, MT, interrupted
from tests.helpers.translators import set_by_command

ON_A_CPU = ("--device", "cpu", "-q")


COMMANDS = {
    LM: ["tiny.toml", "--set", "training.epochs=1"],
    MT: ["mt-demo", *set_by_command("training.epochs=1")],
}


@pytest.mark.parametrize("task", COMMANDS)
def test_a_finished_run_of_more_epochs_is_what_the_first_command_gives(
    run_cli, workspace, task, caplog
):
    name = f"longer {task}"
    first = ("train", *COMMANDS[task], "--name", name, *ON_A_CPU)
    assert run_cli(*first)[0] == 0
    code, longer, _ = run_cli("train", f"runs/{name}", "--set", "training.epochs=2", *ON_A_CPU)
    before = contents(workspace / "runs" / name)
    caplog.clear()
    assert run_cli(*first)[:2] == (code, longer) == (0, longer)
    assert "(best of 2 epochs: " in longer
    assert [f"runs/{name}: has already used 2 epochs" in each for each in caplog.messages] == [True]
    assert contents(workspace / "runs" / name) == before


@pytest.mark.parametrize(
    ("first", "second", "ended"),
    [
        ("max_steps=3", "epochs=8", ", ended by training.max_steps)\n"),
        ("epochs=1", "max_steps=900", " in total)\n"),
    ],
)
def test_a_larger_limit_than_the_one_that_ended_a_run_is_noted(
    run_cli, workspace, caplog, first, second, ended
):
    name = f"ended by {first}"
    limits = ("--name", name, *ON_A_CPU, "--set", f"training.{first}")
    code, result, _ = run_cli("train", "tiny.toml", *limits)
    assert (code, result.endswith(ended)) == (0, True)
    before = contents(workspace / "runs" / name)
    caplog.clear()
    own = ("train", f"runs/{name}", *ON_A_CPU)
    assert run_cli(*own)[:2] == (0, result)
    assert caplog.messages == []
    assert run_cli(*own, "--set", f"training.{second}")[:2] == (0, result)
    reason = f"runs/{name}: was ended by training.{first.replace('=', ' ')}"
    assert [each.startswith(reason) for each in caplog.messages] == [True]
    assert contents(workspace / "runs" / name) == before


@pytest.mark.parametrize(
    ("task", "limit"),
    [(LM, "epochs=1"), (LM, "max_steps=1"), (MT, "max_minutes=1e-6"), (MT, "max_steps=1")],
)
def test_a_longer_run_that_was_stopped_is_not_ended(run_cli, workspace, task, limit):
    """Its test would replace what it had found before it went on."""
    name = f"stopped {task} {limit}"
    own = ("train", f"runs/{name}", *ON_A_CPU, "--set")
    assert run_cli("train", *COMMANDS[task], "--name", name, *ON_A_CPU)[0] == 0
    once = RunFolder(f"runs/{name}").last_numbers()["step"]
    with interrupted(once * 3 // 2):
        assert run_cli(*own, "training.epochs=30")[0] == 130
    before = contents(workspace / "runs" / name)
    code, out, err = run_cli(*own, f"training.{limit}")
    assert (code, out) == (1, "")
    assert err.startswith(f"drill: runs/{name}: has already used ")
    assert f"set training.{limit.partition('=')[0]} above that" in err
    assert contents(workspace / "runs" / name) == before
    assert run_cli(*own, "training.epochs=4")[0] == 0
