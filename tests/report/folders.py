"""Run folders as a training run leaves them, without the training."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drill.language_modeling.evaluation.frequency_bands import compare_bands, frequency_bands
from drill.report import TextBands
from drill.training.run import checkpoint

RECIPE = """\
recipe = "{recipe}"

[data]
corpus = "ptb"

[encoder]
widths = [400, 1150, 1150, 400]

[layer]
name = "{layer}"
{options}
[optimizer]
lr = 30.0

[training]
epochs = {epochs}
seed = {seed}
"""


def perplexities(start: float, end: float, epochs: int) -> list[float]:
    """A plausible curve: fast at first, then slow, bending down where averaging begins."""
    curve = [end + (start - end) * math.exp(-1.1 * math.sqrt(n)) for n in range(epochs)]
    return [value * (0.97 if n >= epochs // 2 else 1.0) for n, value in enumerate(curve)]


def epoch_row(epoch: int, valid: float, seconds: float = 12.5, **more: Any) -> dict[str, Any]:
    return {
        "kind": "epoch", "epoch": epoch, "step": 687 * epoch, "tokens": 929_560, "train_loss": 4.5,
        "train_perplexity": 90.0, "valid_loss": 4.4, "valid_perplexity": valid,
        "valid_all_tokens": valid - 0.03 if isinstance(valid, float) else valid,
        "lr": 30.0, "averaged": False, "best": True, "seconds": seconds, "elapsed": seconds * epoch,
        "tokens_per_second": 74_000.0 + epoch, **more,
    }  # fmt: skip


def test_row(epoch: int, valid: float, test: float, elapsed: float) -> dict[str, Any]:
    return {
        "kind": "test", "epoch": epoch, "valid_perplexity": valid, "valid_all_tokens": valid - 0.03,
        "test_loss": math.log(test), "test_perplexity": test, "test_all_tokens": test - 0.001,
        "elapsed": elapsed,
    }  # fmt: skip


test_row.__test__ = False  # type: ignore[attr-defined]  # a row, not a test


def write_run(
    folder: Path,
    *,
    recipe: str = "ptb-tied",
    layer: str = "tied",
    options: str = "",
    seed: int = 28,
    valid: list[Any] | None = None,
    test: float | None = 58.0,
    seconds: float = 12.5,
    parameters: int = 24_221_600,
    **environment: Any,
) -> Path:
    valid = perplexities(330.0, 60.0, 30) if valid is None else valid
    folder.mkdir(parents=True, exist_ok=True)
    text = RECIPE.format(recipe=recipe, layer=layer, options=options, epochs=len(valid), seed=seed)
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    about = {
        "drill": "0.1.0", "commit": "abc1234", "python": "3.12.3", "torch": "2.11.0",
        "device": "NVIDIA H200", "threads": 2, "precision": "tf32", "seed": seed, "world_size": 1,
        "command": ["drill", "train", recipe], "parameters": parameters, "vocabulary_size": 10_000,
        "started": "2026-11-15T08:00:00+00:00", **environment,
    }  # fmt: skip
    (folder / "environment.json").write_text(json.dumps(about), encoding="utf-8")
    half = len(valid) // 2
    rows = [epoch_row(n, each, seconds, averaged=n > half) for n, each in enumerate(valid, start=1)]
    finite = [row for row in rows if isinstance(row["valid_perplexity"], float)]
    if test is not None and finite:
        best = min(finite, key=lambda row: row["valid_perplexity"])
        last = rows[-1]["elapsed"] + 2.0
        rows.append(test_row(best["epoch"], best["valid_perplexity"], test, last))
    write_metrics(folder, rows)
    # Best weights, as small as can be; others at every epoch.
    weights = {"layer.bias": torch.full((3,), float(len(valid)))}
    checkpoint.save(folder / "best.safetensors", weights, {"epoch": len(valid)})
    return folder


def write_metrics(
    folder: Path, rows: list[dict[str, Any]], tail: str = "", name: str = "metrics.jsonl"
) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / name).write_text(lines + tail, encoding="utf-8")


def of_weights(folder: Path) -> dict[str, Any]:
    """What a row says that was made of the best weights of the folder as they are now."""
    path = folder / "best.safetensors"
    epoch = checkpoint.load(path)[1]["epoch"]
    digits = checkpoint.fingerprint_in(path)
    return {"weights": "best", "weights_epoch": epoch, "weights_fingerprint": digits}


write_evaluations = partial(write_metrics, name="evaluations.jsonl")


def text_bands(factors: dict[str, float], changed: str, against: str) -> TextBands:
    """Losses of models on one text, drawn at random times these factors."""
    generator = np.random.default_rng(0)
    counts, targets = np.array([0, 10, 70, 200, 6000]), generator.integers(5, size=500)
    base = generator.exponential(4.0, 500)
    losses = {name: base * factor for name, factor in factors.items()}
    bands = {name: frequency_bands(each, targets, counts) for name, each in losses.items()}
    change = compare_bands(losses[against], losses[changed], targets, counts)
    return TextBands(bands, {changed: change})
