"""Reads run folders, finished or running."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from drill.errors import DrillError, ReportError
from drill.files import check_run
from drill.recipes.reader import layer_name, parsed, recipe_names
from drill.report.results.evaluations import Evaluation, read_evaluations
from drill.report.results.run_files import as_finite, as_number, joined_text, known
from drill.training.run.folder import RunFolder
from drill.training.schema import without_removed
from drill.training.settings import FILES_ONLY, flatten, recipe


class RunError(ReportError):
    """A folder that is no run, or has a damaged file."""


class Validation(NamedTuple):
    """Perplexities on the validation text, and in training since the epoch began."""

    epoch: int  # 0: before any training
    step: int | None
    valid: float  # NaN or infinite where training went wrong
    valid_all_tokens: float | None
    train: float | None
    elapsed: float | None  # seconds since the run began
    epochs_done: float  # with the fraction of the present one


class TrainingPoint(NamedTuple):
    """Perplexity in training since the point before."""

    epochs_done: float
    step: int
    perplexity: float | None


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run, which a ledger has too; None: unknown.

    Perplexities are per predicted token and of the epoch with the best validation; ``*_all_tokens``
    divide by all tokens, as published results do.
    """

    name: str
    recipe: str | None
    layer: str | None
    parameters: int | None
    seed: int | None
    epochs: float  # whole, unless the run ended inside one
    best_epoch: int | None
    valid: float | None
    test: float | None
    valid_all_tokens: float | None
    test_all_tokens: float | None
    seconds: float | None
    tokens_per_second: float | None  # median over epochs
    device: str | None  # "a, then b" if resumed on another device
    commit: str | None  # as the device


@dataclass(frozen=True)
class RunSummary(RunFigures):
    """A run folder as tables and plots need it."""

    folder: Path
    extra: Mapping[str, Any]  # further figures of the test: BLEU or bits per byte, and the search
    evaluations: tuple[Evaluation, ...]  # of the tested weights, see ``read_evaluations``
    curve: tuple[Validation, ...]  # the last of each epoch
    validations: tuple[Validation, ...]  # inside epochs too, by step
    training: tuple[TrainingPoint, ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    remarks: tuple[str, ...]  # what was left out, and why

    @property
    def changes(self) -> list[str] | None:
        """``optimizer.lr: 0.0007 -> 0.0005`` for every key that differs from the recipe.

        The recipe is that of this version of drill; None: there is none of that name.
        """
        if self.recipe not in recipe_names():
            return None
        named = flatten(recipe(self.recipe).to_dict())
        return [
            f"{key}: {setting_text(named.get(key, 'none'))} -> {setting_text(value)}"
            for key, value in sorted(flatten(without_removed(self.settings)).items())
            if key not in NOT_A_CHANGE and named.get(key, "none") != value
        ]

    @property
    def fingerprint(self) -> str:
        """Equal for copies of a trained model: from settings, seed and perplexities of training.

        Later evaluations do not change it.
        """
        curve = [(point.epoch, repr(point.valid), point.elapsed) for point in self.curve]
        best: list[Any] = [self.best_epoch, self.valid, self.test, []]  # [] as in older rows
        return digest([self.settings, self.seed, curve, best])


def read_runs(folders: Iterable[Path | str]) -> list[RunSummary]:
    """Read run folders.

    Args:
        folders: one that is given twice is read once.

    Returns:
        Summaries in the order given, with distinct names.
    """
    paths: dict[Path, Path] = {}
    for folder in map(Path, folders):
        paths.setdefault(folder.resolve(), folder)
    names = distinct_names(list(paths))
    return [replace(read_run(folder), name=names[resolved]) for resolved, folder in paths.items()]


def is_run(folder: Path) -> bool:
    return RunFolder(folder).recipe.exists()


def read_run(folder: Path | str) -> RunSummary:
    """Read a run folder, also of a run that is not finished.

    Args:
        folder: RunError if it is no run, or has a damaged file.

    Returns:
        A summary; what is not known yet is None.
    """
    files = RunFolder(folder)
    try:
        check_run(files.path)
        return _summary(files)
    except DrillError as error:
        raise RunError(str(error)) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        fault = f"has entries that no training writes ({type(error).__name__}: {error})"
        raise RunError(fault, key=str(folder)) from error


def _summary(files: RunFolder) -> RunSummary:
    remarks: list[str] = []
    settings = parsed(files.recipe)
    environment = files.read_environment() or {}
    rows = files.rows()
    validations = [_validation(row) for row in rows if row["kind"] in ("epoch", "validation")]
    curve = list({each.epoch: each for each in validations}.values())  # the last of each
    test: dict[str, Any] = next((row for row in reversed(rows) if row["kind"] == "test"), {})
    rates = known(as_finite(row.get("tokens_per_second")) for row in rows)
    rates = [rate for rate in rates if rate]  # epoch 0 trains nothing
    elapsed = known(as_finite(row.get("elapsed")) for row in rows)
    return RunSummary(
        folder=files.path,
        name=files.path.resolve().name,
        recipe=settings.get("recipe"),
        layer=layer_name(settings.get("layer")),
        parameters=environment.get("parameters"),
        seed=environment.get("seed"),
        epochs=rounded_epochs(curve[-1].epochs_done) if curve else 0,
        **_best(curve, test),
        extra=_extra(test),
        seconds=elapsed[-1] if elapsed else None,
        tokens_per_second=median(rates) if rates else None,
        device=joined_text(environment, "device"),
        commit=joined_text(environment, "commit"),
        evaluations=read_evaluations(files, test, remarks),
        curve=tuple(curve),
        validations=tuple({e.step: e for e in validations if e.step is not None}.values()),
        training=tuple(
            TrainingPoint(_epochs_done(row), row["step"], as_number(row.get("train_perplexity")))
            for row in rows
            if row["kind"] == "step"
        ),
        settings=settings,
        environment=environment,
        remarks=tuple(remarks),
    )


def distinct_names(folders: Sequence[Path]) -> dict[Path, str]:
    """The last part of each path, with as many parents as make it unique among different paths."""
    names, different = {}, dict.fromkeys(folders)
    for folder in different:
        for length in range(1, len(folder.parts) + 1):
            tail = folder.parts[-length:]
            if sum(other.parts[-length:] == tail for other in different) == 1:
                break
        names[folder] = str(Path(*tail))
    return names


SEED = "training.seed"
NOT_A_CHANGE = ("recipe", SEED, "training.cuda_graphs", *FILES_ONLY)
"""Keys that do not change what is trained, or have a column of their own."""


def without(tables: Mapping[str, Any], keys: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """A copy of nested tables without some dotted keys."""
    return {
        key: without(value, keys, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in tables.items()
        if f"{prefix}{key}" not in keys
    }


def setting_text(value: Any) -> str:
    """A value as a recipe has it, for readers."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def digest(value: Any) -> str:
    """16 hexadecimal digits, equal for equal values whatever the order of keys."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# -- from rows to figures ------------------------------------------------------------------------


def _validation(row: Mapping[str, Any]) -> Validation:
    valid = as_number(row.get("valid_perplexity"))
    return Validation(
        row["epoch"],
        row.get("step"),
        math.nan if valid is None else valid,
        as_number(row.get("valid_all_tokens")),
        as_number(row.get("train_perplexity")),
        as_finite(row.get("elapsed")),
        _epochs_done(row),
    )


def _epochs_done(row: Mapping[str, Any]) -> float:
    """A row inside an epoch is at ``position`` of the ``epoch_size``."""
    inside = row["kind"] != "epoch" and "epoch_size" in row
    return float(row["epoch"] - 1 + row["position"] / row["epoch_size"] if inside else row["epoch"])


def rounded_epochs(epochs: float) -> float:
    return int(epochs) if epochs.is_integer() else round(epochs, 2)


LANGUAGE_MODEL_SCORES = ("valid_bits_per_byte", "test_bits_per_byte", "test_bands")


def _extra(test: Mapping[str, Any]) -> dict[str, Any]:
    """What a test row says besides perplexity: of translations, or bits per byte and bands."""
    if as_finite(test.get("test_bleu")) is None:
        return {key: test[key] for key in LANGUAGE_MODEL_SCORES if key in test}
    scores = {key: test.get(f"test_{key}") for key in ("bleu", "tokenised_bleu", "chrf", "exact")}
    scores |= {key: test.get(key) for key in ("beam", "length_penalty", "weights")}
    signatures = (key for key in test if key.endswith("_signature") and test[key])
    scores["signatures"] = {key: test[key] for key in signatures}
    return {key: value for key, value in scores.items() if value is not None}


def _best(curve: list[Validation], test: Mapping[str, Any]) -> dict[str, Any]:
    """The best epoch and its perplexities: as tested last, else as validated so far."""
    figures: dict[str, Any] = {"best_epoch": test.get("epoch")}
    for split in ("valid", "test"):
        figures[split] = as_finite(test.get(f"{split}_perplexity"))
        figures[f"{split}_all_tokens"] = as_finite(test.get(f"{split}_all_tokens"))
    finite = [point for point in curve if math.isfinite(point.valid)]
    if finite and figures["valid"] is None:
        best = min(finite, key=lambda point: point.valid)
        figures |= {"best_epoch": best.epoch, "valid": best.valid}
        figures["valid_all_tokens"] = best.valid_all_tokens
    return figures
