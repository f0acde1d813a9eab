"""What each of two processes does in test_hf_encoder.py: torchrun ... -m <this module> FOLDER ddp.

With fsdp the run is interrupted and resumed.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from drill.training.distributed import init_distributed
from drill.training.optim import Muon
from drill.training.state import TrainingState
from tests.helpers.language_models import OPTIMIZERS, interrupted_after, small_run
from tests.models.test_hf_encoder import PLAIN, model

if __name__ == "__main__":
    torch.set_num_threads(1)
    with init_distributed(torch.device("cpu")) as mine:
        assert mine.size == 2
        folder, kind = Path(sys.argv[1]), sys.argv[2]
        if kind == "ddp":
            small_run(
                folder, optimizer="adamw", model=model(True), world=mine, untie_at=0.5, **PLAIN
            )
        else:
            update_best = TrainingState.update_best

            def watched(state: TrainingState, *arguments) -> bool:
                better = update_best(state, *arguments)
                assert not better or bool(state.best_weights) == mine.is_main
                return better

            TrainingState.update_best = watched
            options = {"fsdp": True, "validate_first": True, **PLAIN}
            if "compile" in kind:
                options |= {"compile": True, "epochs": 1}
            optimizer = OPTIMIZERS["adamw maps" if kind == "fsdp" else "adamw"]
            if "muon" in kind:
                optimizer = partial(Muon, 0.01)
            for each in (interrupted_after(4, optimizer()), optimizer()):
                made = model(True)
                found = small_run(folder, optimizer=each, model=made, world=mine, **options)
            assert found.finished
            assert all(isinstance(p, DTensor) for p in made.parameters())
            parts = [p.to_local().numel() for p in made.parameters()]
            assert sum(parts) < 0.6 * sum(p.numel() for p in made.parameters())
