"""Small translators: a language of letters that is written backwards, learnt in a few steps."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

from drill.data import PAD, ParallelSplits, ParallelText, Subwords
from drill.data.parallel.pairs import TranslationData, translation_data
from drill.layers import AdaptiveSoftmax, DeepResidual, MixtureOfSoftmaxes, OutputLayer, TiedSoftmax
from drill.models import Transformer
from drill.models.translator import Translator
from drill.training.distributed import World
from drill.training.loop import Outcome, fit
from drill.training.optim import AdamW, ScheduledOptimizer
from drill.training.options import TranslationOptions
from drill.training.progress import Progress
from drill.training.run.folder import RunFolder
from drill.training.settings import Settings, recipe
from drill.translation.train import TranslationTask

WIDTH = 8

SMALL_LAYERS: dict[str, Callable[[nn.Embedding], OutputLayer]] = {
    "tied": TiedSoftmax,
    "deep-residual": lambda e: DeepResidual(e, depth=2, dropout=0.2, locked=True),
    "plain": lambda e: DeepResidual(e, depth=2),
    "mixture": lambda e: MixtureOfSoftmaxes(TiedSoftmax(e), experts=2),
    "adaptive": lambda e: AdaptiveSoftmax(TiedSoftmax(e), cutoffs=[50, 150]),
}


def text(train: int = 60, valid: int = 8, test: int = 6) -> ParallelSplits:
    drawn = Random(3)

    def lines(count: int) -> ParallelText:
        words = ["".join(drawn.choice("abcde") for _ in range(drawn.randint(1, 9)))
                 for _ in range(count)]  # fmt: skip
        return ParallelText(words, [word[::-1] for word in words])

    return ParallelSplits(lines(train), lines(valid), lines(test))


def small_data(**sizes: int) -> TranslationData:
    """262 subwords: the bytes, the special ids and a few pairs of letters."""
    found = text(**sizes)
    subwords = Subwords.train([*found.train.source, *found.train.target], 262)
    return translation_data(found, subwords)


def small_translator(
    layer: str = "tied", *, dropout: float = 0.1, dtype: torch.dtype = torch.float32
) -> Translator:
    """One block on either side; the numbers are always the same."""
    torch.manual_seed(7)
    embedding = nn.Embedding(262, WIDTH)
    transformer = Transformer(
        embedding, layers=1, heads=2, feedforward=16, dropout=dropout, pad=PAD,
        init_embeddings=True,
    )  # fmt: skip
    return Translator(transformer, SMALL_LAYERS[layer](embedding)).to(dtype)


def small_optimizer() -> ScheduledOptimizer:
    return AdamW(0.02, weight_decay=0.01, schedule="inverse-sqrt", warmup_steps=5)


def small_task(
    path: Path | str,
    layer: str = "tied",
    *,
    optimizer: ScheduledOptimizer | None = None,
    dropout: float = 0.1,
    dtype: torch.dtype = torch.float32,
    model: Translator | None = None,
    data: TranslationData | None = None,
    world: World = World(),  # noqa: B008 - it is frozen
    **options: Any,
) -> TranslationTask:
    model = small_translator(layer, dropout=dropout, dtype=dtype) if model is None else model
    torch.manual_seed(11)
    return TranslationTask(
        model,
        small_data() if data is None else data,
        RunFolder(path),
        small_optimizer() if optimizer is None else optimizer,
        TranslationOptions(**{"epochs": 3, "max_tokens": 60, "seed": 3, "beam_size": 1, **options}),
        world=world,
    )


def small_training(
    path: Path | str,
    *given: str,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Outcome:
    """Train in the folder ``path``, from the beginning or from where it stopped."""
    return fit(small_task(path, *given, **options), progress)


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


def small_settings(*changes: str, name: str = "mt-demo") -> Settings:
    return recipe(name, ["data.corpus=pairs", *SMALL, *changes])


def set_by_command(*changes: str) -> list[str]:
    """``small_settings(*changes)`` as it is typed behind `drill train mt-demo`."""
    every = ["data.corpus=pairs", *SMALL, *changes]
    return [word for change in every for word in ("--set", change)]
