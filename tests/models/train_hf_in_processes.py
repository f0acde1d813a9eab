"""What each of two processes does in test_hf_encoder.py: torchrun ... -m <this module> FOLDER."""

import sys
from pathlib import Path

import torch

from drill.training.distributed import world
from tests.models.test_hf_encoder import PLAIN, model
from tests.tiny_runs import small_run

if __name__ == "__main__":
    torch.set_num_threads(1)
    with world(torch.device("cpu")) as mine:
        assert mine.size == 2
        small_run(
            Path(sys.argv[1]),
            optimizer="adamw",
            model=model(True),
            world=mine,
            untie_at=0.5,
            **PLAIN,
        )
