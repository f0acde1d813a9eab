"""Small language models and their runs, on a text that has something to learn."""

import functools
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drill.data import Ids
from drill.language_modeling.train import LanguageModelTask
from drill.layers import (
    AdaptiveSoftmax,
    DeepResidual,
    MixtureOfSoftmaxes,
    OutputLayer,
    SampledSoftmax,
    TiedSoftmax,
)
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.training.distributed import World
from drill.training.loop import Outcome, fit
from drill.training.optim import AdamW, Asgd, NtAsgd, ScheduledOptimizer, Sgd
from drill.training.options import LanguageModelOptions
from drill.training.progress import Progress
from drill.training.run import checkpoint
from drill.training.run.folder import RunFolder
from drill.training.settings import Settings, recipe

V, WIDTH, HIDDEN = 40, 8, 10
BATCH, BPTT = 4, 10
TIMES = ("seconds", "training_seconds", "elapsed", "tokens_per_second")
"""What differs between two equal runs."""

SMALL_LAYERS: dict[str, Callable[[nn.Embedding, float], OutputLayer]] = {
    "tied": lambda e, p: TiedSoftmax(e),
    "deep-residual": lambda e, p: DeepResidual(e, depth=2, dropout=p, locked=True),
    "mixture": lambda e, p: MixtureOfSoftmaxes(TiedSoftmax(e), experts=3, dropout=p),
    "sampled": lambda e, p: SampledSoftmax(TiedSoftmax(e), samples=12),
    "adaptive": lambda e, p: AdaptiveSoftmax(TiedSoftmax(e), cutoffs=[10, 20]),
}

OPTIMIZERS: dict[str, Callable[[], ScheduledOptimizer]] = {
    "nt-asgd": lambda: NtAsgd(
        8.0, max_grad_norm=0.25, patience=0
    ),  # starts to average within few epochs
    "asgd": lambda: Asgd(5.0),
    "sgd": lambda: Sgd(5.0),
    "adamw": lambda: AdamW(0.01),
    "adamw maps": lambda: AdamW(0.01, map_lr_scale=3.0),
    "late sgd": lambda: Sgd(5.0, schedule="linear", hold=0.3, average_from=0.6),
    "late adamw": lambda: AdamW(0.01, schedule="linear", hold=0.3, average_from=0.6),
}


def text(train: int = 400, valid: int = 120, test: int = 90) -> Ids:
    """Of three words in four the next one follows from the one before."""
    drawn = np.random.default_rng(5)
    stream = [0]
    for _ in range(train + valid + test - 1):
        known = drawn.random() < 0.75
        stream.append((3 * stream[-1] + 1) % V if known else int(drawn.integers(V)))
    ids = np.array(stream, dtype=np.uint16)
    return Ids(ids[:train], ids[train : train + valid], ids[train + valid :])


def small_model(
    layer: str = "tied", *, dropout: float = 0.2, dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """Two LSTMs, each dropout at ``dropout``; the numbers are always the same."""
    torch.manual_seed(7)
    embedding = nn.Embedding(V, WIDTH)
    drops = ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output")
    encoder = AwdLstm(
        embedding, HIDDEN, 2, weight_drop=dropout, init_range=0.1, **dict.fromkeys(drops, dropout)
    )
    return LanguageModel(encoder, SMALL_LAYERS[layer](embedding, dropout)).to(dtype)


def small_run(
    path: Path | str,
    layer: str = "tied",
    optimizer: ScheduledOptimizer | str = "sgd",
    *,
    dropout: float = 0.2,
    dtype: torch.dtype = torch.float32,
    model: LanguageModel | None = None,
    ids: Ids | None = None,
    device: str = "cpu",
    world: World = World(),  # noqa: B008 - it is frozen
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Outcome:
    """Train in the folder ``path``, from the beginning or from where it stopped."""
    model = small_model(layer, dropout=dropout, dtype=dtype) if model is None else model
    torch.manual_seed(11)
    usual = {"epochs": 3, "batch_size": BATCH, "bptt": BPTT, "seed": 3}
    task = LanguageModelTask(
        model.to(device),
        text() if ids is None else ids,
        RunFolder(path),
        OPTIMIZERS[optimizer]() if isinstance(optimizer, str) else optimizer,
        LanguageModelOptions(**usual | options),
        world=world,
    )
    return fit(task, progress)


def acting(
    function: Callable[..., Any], which: int, act: Callable[[], object], *, after: bool = False
) -> Callable[..., Any]:
    """``function`` with ``act`` before its call number ``which``, or ``after`` it."""
    left = which

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            act()
        result = function(*arguments, **options)
        if left == 0 and after:
            act()
        return result

    return counted


def after(
    steps: int, optimizer: ScheduledOptimizer, act: Callable[[], object]
) -> ScheduledOptimizer:
    """``optimizer`` that calls ``act`` when it has made ``steps`` steps."""
    optimizer.step = acting(optimizer.step, steps, act, after=True)  # type: ignore[method-assign]
    return optimizer


def interrupted_after(
    steps: int, optimizer: ScheduledOptimizer | str, number: int = signal.SIGINT
) -> ScheduledOptimizer:
    """``optimizer`` whose process gets a signal when it has made ``steps`` steps."""
    fresh = OPTIMIZERS[optimizer]() if isinstance(optimizer, str) else optimizer
    return after(steps, fresh, lambda: os.kill(os.getpid(), number))


def interrupted_replays(steps: int, optimizer: ScheduledOptimizer) -> ScheduledOptimizer:
    """The same for steps that are replayed: an optimizer hears of them before."""
    stop = functools.partial(os.kill, os.getpid(), signal.SIGINT)
    optimizer.prepare_step = acting(optimizer.prepare_step, steps, stop, after=True)  # type: ignore
    return optimizer


def train_in_pieces(run: Callable[[], Outcome]) -> int:
    """Call ``run``, which interrupts itself, until it has finished; how many starts that took."""
    for start in range(1, 200):
        torch.manual_seed(start)  # the saved random state counts, not the current one
        outcome = run()
        if outcome.finished:
            return start
        assert (outcome.interrupted, outcome.test) == (True, None)
    raise AssertionError("200 starts were not enough")


def all_rows(path: Path | str) -> list[dict[str, Any]]:
    """The metrics of a run without the times."""
    found = RunFolder(path).rows()
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


def rows(path: Path | str) -> list[dict[str, Any]]:
    """``all_rows`` without those of training loss."""
    return [row for row in all_rows(path) if row["kind"] != "step"]


def assert_close_rows(path: Path | str, other: Path | str, rel: float) -> None:
    """Two runs have the same metrics but for the rounding of their sums."""
    for mine, theirs in zip(rows(path), rows(other), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            # The first is of all bits; a translator's process counts the batches of its own.
            if key in ("weights_fingerprint", "position", "epoch_size"):
                continue
            assert mine[key] == (pytest.approx(value, rel) if type(value) is float else value), key


def weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint."""
    return checkpoint.load(path)[0]


def run_state(path: Path | str) -> dict[str, Any]:
    """All that a run has come to but for the times: metrics, numbers and every tensor's bits."""
    folder = RunFolder(path)
    found: dict[str, Any] = {"rows": rows(path), "all rows": all_rows(path)}
    for name, file in (("last", folder.last), ("best", folder.best)):
        tensors, numbers = checkpoint.load(file)
        for key in (*TIMES, "metrics_size"):  # which times make longer and shorter
            numbers.pop(key, None)
        found[f"{name} numbers"] = numbers
        found |= {f"{name} {key}": bits(tensor) for key, tensor in tensors.items()}
    return found


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@functools.cache
def uninterrupted_run(
    run: Callable[..., Outcome], layer: str = "tied", **options: Any
) -> dict[str, Any]:
    """``run_state`` of a run that nothing interrupts, trained once for all tests.

    Args:
        run: ``small_run``, or ``small_training`` of translators.
    """
    with tempfile.TemporaryDirectory() as folder:
        run(folder, layer, **options)
        return run_state(folder)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names under which two runs hold something else; empty for equal runs."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


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


def small_settings(texts: Path, *changes: str, name: str = "ptb-drill-2") -> Settings:
    return recipe(name, [f"data.corpus={texts}", *SMALL, *changes])
