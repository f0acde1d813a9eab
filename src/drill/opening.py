"""What a run is about to train, in a few lines before it begins."""

import inspect
from typing import Any

import torch

from drill.analysis.cost import own_parameters
from drill.config import OVER, TRANSLATION, Settings
from drill.layers import LAYERS
from drill.machine import device_name
from drill.models import LanguageModel
from drill.parallel import World
from drill.precision import effective
from drill.recipes import BASE, NAME
from drill.run_folder import RunFolder
from drill.translator import Translator


def opening(
    settings: Settings,
    run: RunFolder,
    model: LanguageModel | Translator,
    text: str,
    device: torch.device,
    processes: World,
) -> str:
    """Three lines: recipe, folder and output layer; parameters and corpus; device and precision.

    One more where a recipe leaves sizes to the defaults and has no base to say so.

    text  what of the corpus is trained on, such as ``"929,589 tokens, 10,000 words"``
    """
    begun = run.last.exists()
    precision = effective(settings.training["precision"], device)
    several = f"{processes.size} processes, " if processes.size > 1 else ""
    verb = "going on with" if begun else "training"
    lines = [
        f"{verb} {settings.recipe} in {run.path}: {layer_in_words(settings.layer)}",
        f"  {model.parameter_count():,} parameters, {own_parameters(model.layer):,} of them the "
        f"layer's own; {settings.data['corpus']}: {text}",
        f"  {several}{device} ({device_name(device)}), {precision}",
    ]
    remark = None if begun else sizes_by_default(settings)
    return "\n".join(lines if remark is None else [*lines, remark])


def layer_in_words(table: dict[str, Any]) -> str:
    """``tied``, or ``mixture (experts 15) over deep-residual (depth 4, dropout 0.6)``.

    Sizes, and the options that are not the layer's defaults.
    """
    usual = inspect.signature(LAYERS[table[NAME]]).parameters
    options = [
        f"{key} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in table.items()
        if key not in (NAME, OVER) and value is not None
        if type(value) is int or value != usual[key].default
    ]
    own = table[NAME] + (f" ({', '.join(options)})" if options else "")
    return f"{own} over {layer_in_words(table[OVER])}" if OVER in table else own


def sizes_by_default(settings: Settings) -> str | None:
    """A sentence on sizes that a recipe file without a base does not name; None without any."""
    sizes = []
    for key in settings.left_out:
        table, _, name = key.partition(".")
        value = settings.tables()[table].get(name)
        if key == "training.epochs" or (table == "encoder" and type(value) is int):
            sizes.append(f"{key} {value}")
    if not sizes:
        return None
    small = "mt-demo" if settings.task == TRANSLATION else "demo-drill"
    return (
        f"{settings.recipe}.toml has no {BASE}, so these are drill's defaults: {', '.join(sizes)}; "
        f'set them, or start from a small recipe with {BASE} = "{small}" as its first line'
    )
