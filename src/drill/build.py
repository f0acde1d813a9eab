"""From settings to objects, and from a run folder back to its model: only here both are known.

settings = recipe("demo-drill", ["training.epochs=2"])
outcome = train_run(settings, "runs/demo-drill")
run = load_run("runs/demo-drill")
run.model, run.vocabulary
"""

import datetime
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from drill import __version__
from drill.checkpoint import copy_into, load, load_into
from drill.config import OVER, Settings, saved, wraps
from drill.data import DataError, Ids, Vocabulary, cache_folder, read_corpus
from drill.encoders import ENCODERS
from drill.layers import LAYERS, OutputLayer
from drill.models import LanguageModel
from drill.optim import RULES, Rule
from drill.parallel import World, world
from drill.progress import Progress
from drill.recipes import NAME, SettingsError
from drill.run_folder import RunFolder, RunFolderError
from drill.training import Outcome, train

FINETUNE_LENGTH_SEED = 331  # of the published finetuning, whatever the seed of the run
FINETUNE_LENGTH_ROOM = 10  # how far beyond bptt its segments may be

Weights = Literal["best", "last"]


def corpus(settings: Settings, progress: Any = None) -> tuple[Ids, Vocabulary]:
    """The encoded splits and the vocabulary; ids are cached by what they hold."""
    found, vocabulary = read_corpus(**settings.data, progress=progress)
    return found.encode(vocabulary, cache_folder()), vocabulary


def language_model(
    settings: Settings, vocabulary: Vocabulary, device: torch.device | str = "cpu"
) -> LanguageModel:
    """A fresh model; its numbers follow from torch's seed."""
    encoder = dict(settings.encoder)
    kind, width = ENCODERS[encoder.pop(NAME)], encoder.pop("width")
    try:
        embedding = nn.Embedding(len(vocabulary), width)
        built = kind(embedding, **encoder)
        layer = _layer(settings.layer, embedding, built.output_size, vocabulary)
        return LanguageModel(built, layer).to(device)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"the recipe {settings.recipe} makes no model: {error}") from None


def _layer(
    table: dict[str, Any], embedding: nn.Embedding, hidden_size: int, vocabulary: Vocabulary
) -> OutputLayer:
    options = {key: value for key, value in table.items() if key not in (NAME, OVER)}
    kind: Any = LAYERS[table[NAME]]
    takes = inspect.signature(kind).parameters
    if options.get("hidden_size", hidden_size) is None:
        options["hidden_size"] = hidden_size
    if "counts" in takes:
        options["counts"] = vocabulary.counts.tolist()
    if not wraps(kind):
        return kind(embedding, **options)
    # A mixture projects what the encoder gives; others hand it on as it is.
    inner = embedding.embedding_dim if "hidden_size" in takes else hidden_size
    return kind(_layer(table[OVER], embedding, inner, vocabulary), **options)


def rule(settings: Settings) -> Rule:
    options = dict(settings.optimizer)
    try:
        return RULES[options.pop(NAME)](**options)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"[optimizer]: {error}") from None


def pick_device(name: str = "auto") -> torch.device:
    """``auto``: the process's own GPU where there is one, else the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise SettingsError(f"device {name}: cannot be used here ({reason})") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


# -- runs -----------------------------------------------------------------------------------------


def train_run(
    settings: Settings,
    folder: Path | str,
    *,
    device: torch.device | str = "auto",
    progress: Callable[[Progress], None] | None = None,
    data_progress: Any = None,
) -> Outcome:
    """Train in ``folder``, from the beginning or from where a run of these settings stopped."""
    place = pick_device(device) if isinstance(device, str) else device
    if place.type == "cuda":
        torch.cuda.set_device(place)
    run = RunFolder(folder)
    with world(place) as processes:
        if not processes.first:
            return _train(settings, run, place, processes, progress, data_progress)
        with run.locked():
            return _train(settings, run, place, processes, progress, data_progress)


def _train(
    settings: Settings,
    run: RunFolder,
    device: torch.device,
    processes: World,
    progress: Callable[[Progress], None] | None,
    data_progress: Any,
) -> Outcome:
    begun = run.last.exists() or run.best.exists()  # else there is nothing to keep
    if begun and run.recipe.exists():
        _refuse_other(settings, run)
    ids, vocabulary = corpus(settings, data_progress if processes.first else None)
    if begun and Vocabulary.load(run.vocabulary) != vocabulary:
        raise DataError(
            f"{run.path}: its vocabulary is not that of {settings.data['corpus']} any more; the "
            "text has changed, so train under another name"
        )
    torch.manual_seed(settings.training["seed"])
    model = language_model(settings, vocabulary, device)
    if settings.start is not None and not run.last.exists():
        start = RunFolder(settings.start)
        if Vocabulary.load(start.vocabulary) != vocabulary:
            raise DataError(f"{start.path}: was trained with another vocabulary; start elsewhere")
        load_into(model, start.best)
    if processes.first:
        vocabulary.save(run.vocabulary)
        run.write_json(run.environment, _environment(settings, model, device, processes))
        run.write_text(run.recipe, settings.to_toml())
    return train(
        model,
        ids,
        run,
        rule(settings),
        **settings.training,
        world=processes,
        progress=progress,
    )


def _refuse_other(settings: Settings, run: RunFolder) -> None:
    changes = saved(run.recipe).differences(settings)
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise RunFolderError(
            f"{run.path}: holds a run with other settings ({'; '.join(changes[:3])}{more}); give "
            "this one another --name, or remove the folder"
        )


def finetuning(run: Path | str) -> Settings:
    """Settings that go on from the best weights of a run with averaged SGD from the first step.

    Segment lengths are bounded and have a seed of their own; training ends by the rule that
    starts averaging in NT-ASGD; only weights better than the given ones are kept.
    """
    folder = RunFolder(run)
    if not folder.recipe.exists():
        raise RunFolderError(
            f"{folder.path}: holds no run (no recipe.toml); name a folder that `drill train` made"
        )
    settings = saved(folder.recipe)
    if settings.optimizer[NAME] == "adamw":
        raise SettingsError(
            f"{folder.path}: was trained with adamw, whose rate tells nothing about that of "
            "averaged SGD; finetune runs of nt-asgd, asgd or sgd"
        )
    kept = {key: settings.optimizer[key] for key in ("lr", "weight_decay", "clip")}
    return Settings(
        recipe=f"{settings.recipe}-finetune",
        start=str(folder.path),
        data=settings.data,
        encoder=settings.encoder,
        layer=settings.layer,
        optimizer={NAME: "asgd", **kept},
        training={
            **settings.training,
            "length_seed": FINETUNE_LENGTH_SEED,
            "length_cap": settings.training["bptt"] + FINETUNE_LENGTH_ROOM,
            "patience": 5,
            "baseline": True,
        },
    )


@dataclass(frozen=True)
class Run:
    """A trained model and what it was trained on."""

    folder: RunFolder
    settings: Settings
    vocabulary: Vocabulary
    model: LanguageModel
    weights: Weights

    @cached_property
    def ids(self) -> Ids:
        """The encoded corpus; refuses one that is not the run's."""
        ids, vocabulary = corpus(self.settings)
        if vocabulary != self.vocabulary:
            raise DataError(
                f"{self.folder.path}: was trained on another text than "
                f"{self.settings.data['corpus']} is now; restore the text"
            )
        return ids


def load_run(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> Run:
    """The model of a run in eval mode: the best weights, or the last where none are best yet."""
    run = RunFolder(folder)
    if not run.path.is_dir() or not run.recipe.exists():
        raise RunFolderError(
            f"{run.path}: holds no run (no recipe.toml); name a folder of `drill train`"
        )
    settings = saved(run.recipe)
    vocabulary = Vocabulary.load(run.vocabulary)
    place = pick_device(device) if isinstance(device, str) else device
    chosen: Weights = weights or ("best" if run.best.exists() else "last")
    model = language_model(settings, vocabulary, place)
    if chosen == "best":
        load_into(model, run.best)
    else:
        tensors, _ = load(run.last)
        wanted = {f"model/{name}": p for name, p in model.named_parameters()}
        found = {name: t for name, t in tensors.items() if name.startswith("model/")}
        copy_into(wanted, found, str(run.last))
    model.eval()
    return Run(run, settings, vocabulary, model, chosen)


# -- environment ----------------------------------------------------------------------------------


def _environment(
    settings: Settings, model: LanguageModel, device: torch.device, processes: World
) -> dict[str, Any]:
    precision = settings.training["precision"]
    return {
        "drill": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "tf32": precision != "float32" and device.type == "cuda",
        "seed": settings.training["seed"],
        "world_size": processes.size,
        "command": sys.argv,
        "parameters": model.parameter_count(),
        "vocabulary_size": model.layer.vocabulary_size,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the source, with a plus where files differ from it; None outside a checkout.

    ``DRILL_COMMIT`` goes before: a copy on another machine may have another history or none.
    """
    if "DRILL_COMMIT" in os.environ:
        return os.environ["DRILL_COMMIT"]
    here = str(Path(__file__).parent)

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        name = git("rev-parse", "--short", "HEAD")
        return name + ("+" if git("status", "--porcelain", "--untracked-files=no", here) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.exists() else []
    model = [line.split(":", 1)[1].strip() for line in names if line.startswith("model name")]
    return model[0] if model else platform.processor() or platform.machine()
