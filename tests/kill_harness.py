"""Raises runs that are killed, again and again, until they have finished.

    python -m tests.kill_harness FOLDER SEED

A life is a process that trains in a folder. All are forked from this one, which has imported torch
and computed nothing: so a life costs milliseconds, and kill -9 is the real one. The report.json of
a scene says how often it has killed, and which runs must have come to what "whole" has.
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
from pathlib import Path

import torch._dynamo  # noqa: F401 - the first optimiser would import it, in every life anew

from drill.tasks import train
from drill.training.optim import ScheduledOptimizer
from drill.training.run import checkpoint
from drill.training.settings import recipe
from tests.tiny_runs import interrupted_after, rows, small_run, text
from tests.tiny_translations import small_training

Life = Callable[[], object]
KILLS = 12


def fork(life: Life) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        life()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(pid: int) -> int:
    """0, or minus the signal that ended it; a life that ends in an error ends this program."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"a life ended with {status}")
    return status


def lived(life: Life) -> None:
    if ended(fork(life)) != 0:
        sys.exit("a life that nobody should have killed was killed")


def training(
    folder: Path, checkpoint_seconds: float = 0.0, optimizer: ScheduledOptimizer | str = "nt-asgd"
) -> Life:
    """Some twenty steps, the last third of them averaged."""
    return lambda: small_run(folder, "deep-residual", optimizer, ids=text(train=240), epochs=4,
                             checkpoint_seconds=checkpoint_seconds)  # fmt: skip


def kill_at_call(life: Life, calls: int) -> Life:
    """``life`` that is killed at its ``calls``-th fsync or rename, before it does anything."""

    def lives() -> None:
        left = calls

        def doomed(act: Callable) -> Callable:
            def counted(*args: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return act(*args)

            return counted

        os.fsync, os.replace = doomed(os.fsync), doomed(os.replace)
        life()

    return lives


def half_written(life: Life, saves: int) -> Life:
    """``life`` that is killed in the middle of writing its ``saves``-th checkpoint."""

    def lives() -> None:
        left = saves

        def write(stream, content: bytes) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                stream.write(content[: len(content) // 2])
                stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            stream.write(content)

        checkpoint._write = write
        life()

    return lives


def translating(folder: Path) -> Life:
    """Some twenty updates, and the mean of the last weights at the end."""
    return lambda: small_training(folder, "deep-residual", checkpoint_seconds=0.0,
                                  average_checkpoints=2, gradient_accumulation_steps=2,
                                  validate_every=5, max_tokens=40)  # fmt: skip


def at_random(
    folder: Path, seed: int, training: Callable[[Path], Life] = training
) -> dict[str, object]:
    """kill -9 at any moment: twelve times within about the time that a whole run takes."""
    began = time.monotonic()
    lived(training(folder / "whole"))
    longest = (time.monotonic() - began) / 8
    drawn, life, killed = random.Random(seed), training(folder / "killed"), 0
    while killed < KILLS:
        pid = fork(life)
        time.sleep(drawn.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        if ended(pid) == 0:
            break
        killed += 1
    lived(life)
    return {"kills": killed, "runs": ["killed"]}


def of_a_translator(folder: Path, seed: int) -> dict[str, object]:
    return at_random(folder, seed, translating)


def in_a_save(folder: Path, seed: int) -> dict[str, object]:
    """Killed before every single fsync and rename around the end of an epoch, and inside writes."""
    lived(training(folder / "whole", 600.0))
    eve = folder / "eve"  # one step before the end of the first epoch
    optimizer = interrupted_after(rows(folder / "whole")[0]["step"] - 1, "nt-asgd")
    lived(training(eve, 600.0, optimizer))
    kills = 0
    runs = []
    for name, ill in (("call", kill_at_call), ("half", half_written)):
        for n in range(1, 12 if name == "call" else 5):
            own = folder / f"{name}-{n}"
            shutil.copytree(eve, own)
            kills += ended(fork(ill(training(own), n))) != 0
            lived(training(own, 600.0))
            runs.append(own.name)
    again = folder / "again"  # no life gets further than a few calls
    drawn = random.Random(seed)
    while ended(fork(kill_at_call(training(again), drawn.randint(1, 12)))) != 0:
        kills += 1
    return {"kills": kills, "runs": [*runs, "again"]}


def from_the_start(folder: Path, seed: int) -> dict[str, object]:
    """A run of a recipe, killed before every rename that it begins with."""
    texts = folder / "texts"
    texts.mkdir()
    for name, ids in zip(("train", "valid", "test"), text(), strict=True):
        lines = (ids[i : i + 7] for i in range(0, len(ids), 7))
        (texts / f"{name}.txt").write_text("\n".join(" ".join(map(str, line)) for line in lines))
    settings = recipe(
        "demo-drill",
        [f"data.corpus={texts}", "data.min_count=1", "encoder.embedding_dim=8", "training.bptt=10",
         "encoder.hidden_size=10", "training.batch_size=4", "training.checkpoint_seconds=0"],
    )  # fmt: skip

    def life(name: str, cache: str) -> Life:
        def lives() -> None:
            os.environ["XDG_CACHE_HOME"] = str(folder / cache)
            os.environ["DRILL_COMMIT"] = "0000000"
            train(settings, folder / name, device="cpu")

        return lives

    lived(life("whole", "cache"))
    kills = 0
    names = []
    for n in (1, 4, 13, 14, 16, 18, 19, 21):
        names.append(f"call-{n}")
        kills += ended(fork(kill_at_call(life(names[-1], names[-1] + "-cache"), n))) != 0
        lived(life(names[-1], names[-1] + "-cache"))
    return {"kills": kills, "runs": names}


def told(scene: Callable[[Path, int], dict[str, object]], folder: Path, seed: int) -> Life:
    return lambda: (folder / "report.json").write_text(json.dumps(scene(folder, seed)))


def main(place: Path, seed: int) -> None:
    """All scenes at once: each is a process of its own that raises others."""
    pids = []
    for scene in (at_random, of_a_translator, in_a_save, from_the_start):
        folder = place / scene.__name__
        folder.mkdir()
        pids.append(fork(told(scene, folder, seed)))
    for pid in pids:
        ended(pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
