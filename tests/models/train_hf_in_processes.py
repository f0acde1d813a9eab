"""What each of two processes does in test_hf_encoder.py: torchrun ... -m <this module> FOLDER ddp.

With fsdp the run is interrupted and resumed.
"""

import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from drill.training.distributed import world
from drill.training.optim import AdamW, Muon
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
            optimizer = Muon if "muon" in kind else AdamW
            options = {"fsdp": True, "validate_first": True, **PLAIN}
            if "compile" in kind:
                options |= {"compile": True, "epochs": 1}
            for each in (interrupted_after(4, optimizer(0.01)), optimizer(0.01)):
                made = model(True)
                found = small_run(folder, optimizer=each, model=made, world=mine, **options)
            assert found.finished
            assert all(isinstance(p, DTensor) for p in made.parameters())
            parts = [p.to_local().numel() for p in made.parameters()]
            assert sum(parts) < 0.6 * sum(p.numel() for p in made.parameters())
