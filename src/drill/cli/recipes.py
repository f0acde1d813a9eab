"""`drill recipes`: what can be trained by name, on what and how long that takes."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from drill.cli.display import console
from drill.recipes.reader import Measured, describe, measured, recipe_names
from drill.report.results.runs import layer_name
from drill.training.progress import duration
from drill.training.settings import TRANSLATION, recipe

WIDTH = 80
NO_BREAK = "\N{NO-BREAK SPACE}"  # where a line may not end
CPU, GPU = "cpu", "cuda"

CORPUS_DEVICES: Mapping[str, str] = {
    "bible": CPU,
    "numbers": CPU,
    "ptb": GPU,
    "wikitext-2": GPU,
    "multi30k": GPU,
    "europarl": GPU,
    "wmt14": GPU,
}
"""What a recipe of the corpus is made for, those first that train anywhere."""

IN_WORDS = {CPU: "a CPU is enough", GPU: "wants an NVIDIA GPU"}


@dataclass(frozen=True)
class Listed:
    """A recipe as somebody sees it who has to choose one."""

    name: str
    about: str
    task: str
    corpus: str
    layer: str
    device: str
    epochs: int
    updates: int | None
    """Where a recipe has them they end it, long before its epochs."""
    max_minutes: float | None
    """So do these."""
    measured: Measured | None


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """List the recipes that come with the package.

    Each with its corpus, the device it wants, its layer, what ends it (epochs, updates or minutes)
    and how long it took. A time is one measurement on the machine it names; most recipes have none.
    """
    found = [_listed(name) for name in recipe_names()]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    shown = console()
    for corpus, device in CORPUS_DEVICES.items():
        of_corpus = [each for each in found if each.corpus == corpus]
        task = "translators" if of_corpus[0].task == TRANSLATION else "language models"
        shown.print(f"{corpus}: {task}; {IN_WORDS[device]}")
        for each in of_corpus:
            shown.print(_wrapped(each, max(map(len, recipe_names()))))
        shown.print()
    shown.print("`drill data` tells where the texts come from, `drill train RECIPE` trains.")


def _listed(name: str) -> Listed:
    settings = recipe(name)
    corpus, layer = settings.data["corpus"], layer_name(settings.layer)
    assert layer is not None
    return Listed(
        name,
        describe(name),
        settings.task,
        corpus,
        layer,
        CORPUS_DEVICES[corpus],
        settings.training["epochs"],
        settings.training.get("updates"),
        settings.training["max_minutes"],
        measured().get(name),
    )


def _wrapped(each: Listed, width: int) -> str:
    number, what = (each.epochs, "epoch") if each.updates is None else (each.updates, "update")
    facts = f"{each.layer}, {number:,} {what}{'' if number == 1 else 's'}"
    if each.max_minutes is not None:
        facts = f"{each.layer}, {each.max_minutes:g} minutes"
    if each.measured is not None:
        facts += f"; {_took(each.measured, each.epochs)}"
    below = " " * (width + 4)
    options: dict[str, Any] = {"width": WIDTH, "subsequent_indent": below}
    return "\n".join(
        textwrap.fill(text, **options, break_on_hyphens=False).replace(NO_BREAK, " ")
        for text in (f"  {each.name:{width}}  {each.about}", f"{below}{facts}")
    )


def _took(found: Measured, epochs: int) -> str:
    device = found.device.replace("(R)", "")  # of Intel's
    where = f"on {device}" + (f", {found.note}" if found.note else "")
    if found.epochs == epochs:
        return f"took {duration(found.seconds)} {where}"
    if found.epochs == 1:
        return f"an epoch took {found.seconds:.1f}{NO_BREAK}s {where}"
    return f"{found.epochs} of them took {duration(found.seconds)} {where}"
