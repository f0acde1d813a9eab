"""What each of two processes does in test_hf_encoder.py: torchrun ... -m <this module> FOLDER ddp.

With fsdp the run is interrupted and resumed.
"""

import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from drill.training.distributed import world
from tests.models.test_hf_encoder import PLAIN, model
from tests.tiny_runs import interrupted_after, small_run

if __name__ == "__main__":
    torch.set_num_threads(1)
    with world(torch.device("cpu")) as mine:
        assert mine.size == 2
        folder, kind = Path(sys.argv[1]), sys.argv[2]
        if kind == "ddp":
            small_run(
                folder, optimizer="adamw", model=model(True), world=mine, untie_at=0.5, **PLAIN
            )
        else:
            for optimizer in (interrupted_after(4, "adamw"), "adamw"):
                made = model(True)
                options = {"fsdp": True, "validate_first": True, **PLAIN}
                found = small_run(folder, optimizer=optimizer, model=made, world=mine, **options)
                assert found.finished == (optimizer == "adamw")
            assert all(isinstance(p, DTensor) for p in made.parameters())
            parts = [p.to_local().numel() for p in made.parameters()]
            assert sum(parts) < 0.6 * sum(p.numel() for p in made.parameters())
