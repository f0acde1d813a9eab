"""A translator that begins with the weights of another one: ``start`` of its settings.

It takes the other run's subwords and its averaged weights, or the best ones where no mean was
better. All that the weights mean has to be the same; texts, dropout and training may differ.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drill.data import Subwords
from drill.errors import RunFolderError, SettingsError
from drill.layers import LAYERS, AdaptiveSoftmax
from drill.models.translator import Translator
from drill.recipes.reader import NAME
from drill.training.run.checkpoint import fingerprint_in, load_into
from drill.training.run.folder import RunFolder
from drill.training.run.weights import settings_of
from drill.training.settings import INIT_FROM, TRANSLATION, Settings

OF_THE_MODEL = ("subwords", "encoder", "layer")
MAY_DIFFER = (  # what training alone reads, and which kernels run
    "dropout",
    "attention_dropout",
    "locked",
    "dropout_at",
    "init_range",
    "samples",
    "proposal",
    "impl",
)


@dataclass(frozen=True)
class TranslationStart:
    """The run that another one starts from."""

    folder: RunFolder
    settings: Settings
    subwords: Subwords
    weights: Literal["averaged", "best"]

    def load_into(self, model: Translator) -> dict[str, str]:
        """Gives what environment.json says of it."""
        path = self.folder.averaged if self.weights == "averaged" else self.folder.best
        load_into(model, path)
        return {
            "folder": str(self.folder.path.resolve()),
            "weights": self.weights,
            "weights_fingerprint": fingerprint_in(path),
        }

    def remark(self) -> str:
        return f"starts from the {self.weights} weights of {self.folder.path}, with its subwords"


def translation_start(settings: Settings, path: Path | str) -> TranslationStart:
    """The run in the folder ``path``; refuses one whose weights do not fit these settings."""
    folder = RunFolder(path)
    try:
        own = settings_of(folder)
    except RunFolderError as error:
        raise SettingsError(f"{INIT_FROM}: {error}") from None
    if own.task != TRANSLATION:
        raise SettingsError(
            f"{INIT_FROM}: {folder.path} holds a language model, and a translator starts from a "
            "translator's run"
        )
    changes = [each for each in own.differences(settings) if _of_the_model(each.partition(":")[0])]
    if changes:
        changes.sort(key=lambda each: not each.partition(":")[0].endswith(f".{NAME}"))
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise SettingsError(
            f"{INIT_FROM}: {folder.path} holds a model of other settings ({'; '.join(changes[:3])}"
            f"{more}); set them as it has them, or start from another run"
        )
    averaged = folder.averaged.exists()
    if not averaged and not folder.best.exists():
        raise SettingsError(
            f"{INIT_FROM}: {folder.path} has no best weights; train it up to its first validation"
        )
    subwords = Subwords.load(folder.subwords)
    return TranslationStart(folder, own, subwords, "averaged" if averaged else "best")


def ranks_labels(settings: Settings) -> bool:
    """Whether the weights mean something only beside the counts that they were trained with."""
    return LAYERS[settings.layer[NAME]] is AdaptiveSoftmax


def _of_the_model(key: str) -> bool:
    parts = key.split(".")
    return parts[0] in OF_THE_MODEL and parts[-1] not in MAY_DIFFER
