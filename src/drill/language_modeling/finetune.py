"""From a run of a language model to the settings of its finetuning."""

from pathlib import Path

from drill.errors import RunFolderError, SettingsError
from drill.recipes.reader import NAME
from drill.training.run.folder import RunFolder
from drill.training.run.resume import with_text
from drill.training.settings import TRANSLATION, Settings, saved

FINETUNE_LENGTH_SEED = 331  # of the published finetuning, whatever the seed of the run
FINETUNE_LENGTH_ROOM = 10  # how far beyond bptt its segments may be


def finetuning(run: Path | str) -> Settings:
    """Settings that go on from the best weights of a run with averaged SGD from the first step.

    Segment lengths are bounded and have a seed of their own; training ends by the optimizer that
    starts averaging in NT-ASGD; only weights better than the given ones are kept.
    """
    folder = RunFolder(run)
    if not folder.recipe.exists():
        raise RunFolderError(
            f"{folder.path}: holds no run (no recipe.toml); name a folder that `drill train` made"
        )
    settings = saved(folder.recipe)
    if settings.task == TRANSLATION:
        raise SettingsError(
            f"{folder.path}: holds a translator, and finetuning is for language models; go on with "
            f"it by a larger training.epochs, or on another text by drill train {folder.recipe} "
            f"--name NAME --set init_from={folder.path} --set data.corpus=FOLDER"
        )
    if settings.optimizer[NAME] == "adamw":
        raise SettingsError(
            f"{folder.path}: was trained with adamw, whose rate tells nothing about that of "
            "averaged SGD; finetune runs of nt-asgd, asgd or sgd"
        )
    return finetuned(with_text(settings, folder), str(folder.path.resolve()))


def finetuned(settings: Settings, start: str) -> Settings:
    """From the settings of a run in the folder ``start`` to those of its finetuning."""
    kept = {key: settings.optimizer[key] for key in ("lr", "weight_decay", "max_grad_norm")}
    return Settings(
        recipe=f"{settings.recipe}-finetune",
        init_from=start,
        data=settings.data,
        encoder=settings.encoder,
        layer=settings.layer,
        optimizer={NAME: "asgd", **kept},
        training={
            **settings.training,
            "length_seed": FINETUNE_LENGTH_SEED,
            "length_cap": settings.training["bptt"] + FINETUNE_LENGTH_ROOM,
            "max_minutes": None,  # the run it starts from may have had a limit of its own
            "patience": 5,
            "validate_first": True,
        },
    )
