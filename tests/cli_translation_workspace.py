"""A folder with pairs and a trained run of them, and settings that are soon trained."""

from pathlib import Path

from drill.tasks import train
from drill.training.settings import Settings, recipe
from tests.cli_workspace import copy_of
from tests.tiny_translations import text

SMALL = [
    "data.pairs=none", "subwords.size=262", "subwords.single_digits=false",
    "encoder.embedding_dim=8", "encoder.layers=1", "encoder.heads=2", "encoder.feedforward=16",
    "training.epochs=2", "training.max_tokens=60", "training.beam_size=2",
    "training.average_checkpoints=2", "optimizer.lr=0.02",
]  # fmt: skip


def write_pairs(folder: Path) -> None:
    folder.mkdir()
    for split, pairs in text()._asdict().items():
        for language, lines in (("en", pairs.source), ("de", pairs.target)):
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")


def small(*changes: str, name: str = "mt-demo") -> Settings:
    return recipe(name, ["data.corpus=pairs", *SMALL, *changes])


def set_by_command(*changes: str) -> list[str]:
    """``small(*changes)`` as it is typed behind `drill train mt-demo`."""
    every = ["data.corpus=pairs", *SMALL, *changes]
    return [word for change in every for word in ("--set", change)]


def make_workspace(folder: Path) -> Path:
    """``folder`` with pairs/ and runs/tiny."""
    return copy_of("translator", _train, folder)


def _train(folder: Path) -> None:
    write_pairs(folder / "pairs")
    assert train(small(), "runs/tiny", device="cpu").finished
