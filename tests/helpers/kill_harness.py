"""Trains runs that are killed again and again until they have finished.

    python -m tests.helpers.kill_harness FOLDER SEED

Each training process is forked from this one, which has imported torch and computed nothing: so a
start costs milliseconds, and kill -9 is real. The report.json of a scenario says how often it has
killed, and which runs must be equal to "whole".
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch._dynamo  # noqa: F401 - the first optimizer would import it in every process

from drill.tasks import train
from drill.training.optim import ScheduledOptimizer
from drill.training.run import checkpoint
from tests.helpers.language_models import (
    acting,
    interrupted_after,
    rows,
    small_run,
    small_settings,
    text,
    write_texts,
)
from tests.helpers.translators import small_training

Process = Callable[[], object]
KILLS = 12


def fork(work: Process) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(pid: int) -> int:
    """0, or minus the signal that ended it; an error in the process ends this program."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"a process ended with {status}")
    return status


def run_to_the_end(work: Process) -> None:
    if ended(fork(work)) != 0:
        sys.exit("a process was killed by something else")


def training(
    folder: Path, checkpoint_seconds: float = 0.0, optimizer: ScheduledOptimizer | str = "nt-asgd"
) -> Process:
    """Some twenty steps, the last third of them averaged."""
    return lambda: small_run(folder, "deep-residual", optimizer, ids=text(train=240), epochs=4,
                             checkpoint_seconds=checkpoint_seconds)  # fmt: skip


def kill_at_call(work: Process, calls: int) -> Process:
    """``work`` that is killed at its ``calls``-th fsync or rename, before it does anything."""

    def process() -> None:
        kill = partial(os.kill, os.getpid(), signal.SIGKILL)
        either = acting(lambda call, *given: call(*given), calls, kill)
        os.fsync, os.replace = partial(either, os.fsync), partial(either, os.replace)
        work()

    return process


def half_written(work: Process, saves: int) -> Process:
    """``work`` that is killed in the middle of writing its ``saves``-th checkpoint."""

    def cut(handle: int) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def process() -> None:
        cut_next = partial(setattr, os, "fsync", cut)
        checkpoint.atomic_write = acting(checkpoint.atomic_write, saves, cut_next)
        work()

    return process


def translating(folder: Path) -> Process:
    """Some twenty steps, and the mean of the last weights at the end."""
    return lambda: small_training(folder, "deep-residual", checkpoint_seconds=0.0,
                                  average_checkpoints=2, gradient_accumulation_steps=2,
                                  validate_every=5, max_tokens=40)  # fmt: skip


def at_random(
    folder: Path, seed: int, training: Callable[[Path], Process] = training
) -> dict[str, object]:
    """kill -9 at any moment: twelve times within about the time that a whole run takes."""
    began = time.monotonic()
    run_to_the_end(training(folder / "whole"))
    longest = (time.monotonic() - began) / 8
    drawn, work, killed = random.Random(seed), training(folder / "killed"), 0
    while killed < KILLS:
        pid = fork(work)
        time.sleep(drawn.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        if ended(pid) == 0:
            break
        killed += 1
    run_to_the_end(work)
    return {"kills": killed, "runs": ["killed"]}


def of_a_translator(folder: Path, seed: int) -> dict[str, object]:
    return at_random(folder, seed, translating)


def in_a_save(folder: Path, seed: int) -> dict[str, object]:
    """Killed before every single fsync and rename around the end of an epoch, and inside writes."""
    run_to_the_end(training(folder / "whole", 600.0))
    almost = folder / "almost"  # one step before the end of the first epoch
    optimizer = interrupted_after(rows(folder / "whole")[0]["step"] - 1, "nt-asgd")
    run_to_the_end(training(almost, 600.0, optimizer))
    kills = 0
    runs = []
    for name, kill in (("call", kill_at_call), ("half", half_written)):
        for n in range(1, 12 if name == "call" else 5):
            own = folder / f"{name}-{n}"
            shutil.copytree(almost, own)
            kills += ended(fork(kill(training(own), n))) != 0
            run_to_the_end(training(own, 600.0))
            runs.append(own.name)
    again = folder / "again"  # no process gets further than a few calls
    drawn = random.Random(seed)
    while ended(fork(kill_at_call(training(again), drawn.randint(1, 12)))) != 0:
        kills += 1
    return {"kills": kills, "runs": [*runs, "again"]}


def from_the_start(folder: Path, seed: int) -> dict[str, object]:
    """A run of a recipe, killed before some of its first fsyncs and renames."""
    texts = write_texts(folder / "texts")
    changes = ["data.min_count=1", "training.checkpoint_seconds=0"]
    settings = small_settings(texts, *changes, name="demo-drill")

    def start(name: str, cache: str) -> Process:
        def process() -> None:
            os.environ["XDG_CACHE_HOME"] = str(folder / cache)
            os.environ["DRILL_COMMIT"] = "0000000"
            train(settings, folder / name, device="cpu")

        return process

    run_to_the_end(start("whole", "cache"))
    kills = 0
    names = []
    for n in (1, 4, 13, 14, 16, 18, 19, 21):  # not all 21: each is a whole run
        names.append(f"call-{n}")
        kills += ended(fork(kill_at_call(start(names[-1], names[-1] + "-cache"), n))) != 0
        run_to_the_end(start(names[-1], names[-1] + "-cache"))
    return {"kills": kills, "runs": names}


def reporting(
    scenario: Callable[[Path, int], dict[str, object]], folder: Path, seed: int
) -> Process:
    return lambda: (folder / "report.json").write_text(json.dumps(scenario(folder, seed)))


def main(place: Path, seed: int) -> None:
    """All scenarios at once: each is a process that forks others."""
    pids = []
    for scenario in (at_random, of_a_translator, in_a_save, from_the_start):
        folder = place / scenario.__name__
        folder.mkdir()
        pids.append(fork(reporting(scenario, folder, seed)))
    for pid in pids:
        ended(pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
