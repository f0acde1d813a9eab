"""What each of several processes does in test_distributed.py, started by torchrun.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m tests.training.workers FOLDER

Runs go one after the other in FOLDER. In the last one a process kills itself, once: torchrun then
starts all of them again, and only that run is left to do.
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path

import torch

from drill.training import loop
from drill.training.distributed import World, init_distributed
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import (
    OPTIMIZERS,
    after,
    bits,
    interrupted_after,
    rows,
    small_model,
    small_run,
)
from tests.helpers.translators import small_optimizer, small_training

EXACT = {"dropout": 0.0, "dtype": torch.float64, "epochs": 4}
NOISY = {"layer": "deep-residual", "epochs": 4, "checkpoint_seconds": 0.0}
PLAIN = ("deep-residual", "mixture", "adaptive")
TRANSLATOR = {"layer": "plain", "dropout": 0.0, "dtype": torch.float64, "average_checkpoints": 2}
TWO_BATCHES = {**TRANSLATOR, "gradient_accumulation_steps": 2}
MANY_BATCHES = {**TWO_BATCHES, "max_tokens": 22}


def alike(mine: World, model: torch.nn.Module) -> bool:
    """Whether all processes hold the same numbers."""
    return all(len(set(map(bits, mine.all_gather(p)))) == 1 for p in model.parameters())


def first_start(folder: Path, mine: World) -> None:
    found: dict[str, object] = {"size": mine.size}
    for layer in PLAIN:
        small_run(folder / layer, layer, "nt-asgd", world=mine, **EXACT)
    small_run(folder / "micro", "deep-residual", "nt-asgd", world=mine, micro_batch=1, **EXACT)
    found["sampled"] = small_run(folder / "sampled", "sampled", world=mine).test.loss
    small_run(folder / "one, then two", "deep-residual", "nt-asgd", world=mine, **EXACT)

    model = small_model("deep-residual")
    same: list[bool] = []
    optimizer = after(5, OPTIMIZERS["sgd"](), lambda: same.append(alike(mine, model)))
    small_run(folder / "alike", optimizer=optimizer, model=model, world=mine, epochs=1)
    found["alike"] = same

    for batches in (2, 4):
        path = folder / f"translator {batches}"
        small_training(path, world=mine, gradient_accumulation_steps=batches, **TRANSLATOR)
    stopping = interrupted_after(5, small_optimizer()) if mine.rank == 1 else small_optimizer()
    stopped = folder / "stopped translator"
    outcome = small_training(stopped, optimizer=stopping, world=mine, **TWO_BATCHES)
    found["translator stopped"] = [outcome.finished, RunFolder(stopped).load_last()[1]["step"]]
    small_training(stopped, world=mine, **TWO_BATCHES)
    # Asked just before a validation, all stop after it.
    step = rows(folder / "translator 2")[0]["step"]
    stopping = interrupted_after(step, small_optimizer()) if mine.rank == 0 else small_optimizer()
    validated = folder / "translator stopped after a validation"
    outcome = small_training(validated, optimizer=stopping, world=mine, **TWO_BATCHES)
    found["stopped after a validation"] = [outcome.finished, len(rows(validated))]
    small_training(validated, world=mine, **TWO_BATCHES)
    small_training(folder / "one, then two translators", world=mine, **MANY_BATCHES)
    stopping = interrupted_after(5, small_optimizer())
    small_training(
        folder / "two, then one translator", optimizer=stopping, world=mine, **MANY_BATCHES
    )
    try:
        small_training(folder / "odd", world=mine, gradient_accumulation_steps=3)
    except ValueError as error:
        found["odd step"] = str(error)
    try:
        small_run(folder / "odd", world=mine, batch_size=5)
    except ValueError as error:
        found["odd"] = str(error)

    small_run(folder / "whole", optimizer="nt-asgd", world=mine, **NOISY)
    # One process alone is interrupted: all must stop, at the same step.
    optimizer = OPTIMIZERS["nt-asgd"]()
    stopping = interrupted_after(7, optimizer) if mine.rank == 1 else optimizer
    outcome = small_run(folder / "stopped", optimizer=stopping, world=mine, **NOISY)
    _, numbers = RunFolder(folder / "stopped").load_last()
    found["stopped"] = [outcome.finished, numbers["step"]]
    small_run(folder / "stopped", optimizer="nt-asgd", world=mine, **NOISY)
    small_run(folder / "two, then one", "deep-residual", interrupted_after(13, "nt-asgd"),
              world=mine, **EXACT)  # fmt: skip
    if mine.is_main:
        (folder / "found.json").write_text(json.dumps(found))


def last_run(folder: Path, mine: World, dies: bool) -> None:
    optimizer = OPTIMIZERS["nt-asgd"]()
    if dies:
        optimizer = after(20, optimizer, lambda: os.kill(os.getpid(), signal.SIGKILL))
    small_run(folder / "died", optimizer=optimizer, world=mine, **NOISY)
    if mine.is_main:
        (folder / "restarts").write_text(os.environ["TORCHELASTIC_RESTART_COUNT"])


def main(folder: Path) -> None:
    logging.basicConfig()
    loop.AGREE_EVERY = 3  # an epoch of these has eleven steps
    starts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with init_distributed(torch.device("cpu"), timeout=60.0) as mine:
        if starts == 0:
            first_start(folder, mine)
        last_run(folder, mine, dies=starts == 0 and mine.rank == 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
