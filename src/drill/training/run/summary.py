"""The lines that `drill train` prints before a run starts, with remarks on its text."""

import torch

from drill.layers.cost import own_parameters
from drill.recipes.reader import layer_name
from drill.training.device import device_name
from drill.training.distributed import World
from drill.training.precision import resolve_precision
from drill.training.run.environment import Start
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import has_ended
from drill.training.settings import Settings

FEW_STEPS = 100  # with fewer a model learns next to nothing


def run_summary(settings: Settings, run: RunFolder, device: torch.device, world: World) -> str:
    """Two lines, before a text is read: recipe, folder and output layer; device and precision."""
    precision = resolve_precision(settings.training["precision"], device)
    several = f"{world.size} processes, " if world.size > 1 else ""
    verb = "resuming" if run.last.exists() else "training"
    if has_ended(run, settings):
        verb = "already trained:"
    return (
        f"{verb} {settings.recipe} in {run.path}: {layer_name(settings.layer)}\n"
        f"  {several}{device} ({device_name(device)}), {precision}"
    )


def sizes(settings: Settings, start: Start) -> str:
    """Parameters and corpus in one line, and a line for each remark."""
    model = start.task.model
    line = (
        f"  {model.parameter_count():,} parameters, {own_parameters(model.layer):,} of them the "
        f"layer's own; {settings.data['corpus']}: {start.size}"
    )
    remarks = () if has_ended(start.task.run, settings) else start.remarks
    return "\n".join([line, *(remark for remark in remarks if remark is not None)])


def few_steps(settings: Settings, tokens: int) -> str | None:
    """A warning if a language model on this many tokens gets only a few steps."""
    training = settings.training
    rows = tokens // training["batch_size"]
    if rows < 2:  # an error of its own
        return None
    epoch = max(1, rows // training["bptt"])  # segments are about bptt long
    steps = epoch * training["epochs"]
    if steps >= FEW_STEPS or training["max_steps"] is not None:  # which asks for few
        return None
    enough = -(-FEW_STEPS // epoch)
    return (
        f"about {steps} step{'' if steps == 1 else 's'} in all, too few to learn much: set a "
        f"larger training.epochs ({enough} make about {FEW_STEPS}), a smaller "
        "training.batch_size or training.bptt"
    )
