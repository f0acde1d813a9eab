"""Three own text files, and a recipe that is soon trained on them."""

from pathlib import Path

from drill.training.settings import Settings, recipe
from tests.tiny_runs import text

SMALL = [
    "encoder.embedding_dim=8", "encoder.hidden_size=10", "training.bptt=10",
    "training.batch_size=4", "training.epochs=2", "training.seed=3",
]  # fmt: skip


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    for name, ids in zip(("train", "valid", "test"), text(), strict=True):
        lines = (ids[i : i + 7] for i in range(0, len(ids), 7))
        content = "\n".join(" ".join(f"w{word}" for word in line) for line in lines)
        (folder / f"{name}.txt").write_text(content + "\n", encoding="utf-8")
    return folder


def small(texts: Path, *changes: str, name: str = "ptb-drill-2") -> Settings:
    return recipe(name, [f"data.corpus={texts}", *SMALL, *changes])
