"""`drill recipes`: the recipes that come with the package."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from drill.recipes.reader import Measured, describe, layer_name, measured, read, recipe_names

WIDTH = 80
NO_BREAK = "\N{NO-BREAK SPACE}"  # where a line may not end
CPU, GPU = "cpu", "cuda"

CORPUS_DEVICES: Mapping[str, str] = {
    "bible": CPU,
    "numbers": CPU,
    "elife": GPU,
    "ptb": GPU,
    "wikitext-2": GPU,
    "multi30k": GPU,
    "europarl": GPU,
    "wmt14": GPU,
}
"""What a recipe of the corpus is made for; first those that train anywhere."""

IN_WORDS = {CPU: "a CPU is enough", GPU: "for an NVIDIA GPU"}


@dataclass(frozen=True)
class Listed:
    """A recipe in the list; ``max_steps`` or ``max_minutes`` end it before its epochs."""

    name: str
    about: str
    task: str
    corpus: str
    layer: str
    device: str
    epochs: int
    max_steps: int | None
    max_minutes: float | None
    measured: Measured | None


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """List the recipes that come with the package.

    With corpus, device, output layer, length (epochs, updates or minutes) and, if measured, the
    training time on the machine named.
    """
    from drill.cli.display import console

    found = [_listed(name) for name in recipe_names()]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    shown = console()
    for corpus, device in CORPUS_DEVICES.items():
        of_corpus = [each for each in found if each.corpus == corpus]
        task = "translators" if of_corpus[0].task == "translation" else "language models"
        shown.print(f"{corpus}: {task}; {IN_WORDS[device]}")
        for each in of_corpus:
            shown.print(_wrapped(each, max(map(len, recipe_names()))))
        shown.print()
    shown.print("`drill train RECIPE` trains one, `drill settings RECIPE` lists its settings,")
    shown.print("`drill data` lists the corpora.")


def _listed(name: str) -> Listed:
    tables = read(name)  # as written: reading the defaults would import torch
    corpus, training = tables["data"]["corpus"], tables["training"]
    layer = layer_name(tables["layer"])
    assert layer is not None
    return Listed(
        name,
        describe(name),
        tables.get("task", "language-model"),
        corpus,
        layer,
        CORPUS_DEVICES[corpus],
        training["epochs"],
        training.get("max_steps"),
        training.get("max_minutes"),
        measured().get(name),
    )


def _wrapped(each: Listed, width: int) -> str:
    number, what = (each.epochs, "epoch") if each.max_steps is None else (each.max_steps, "update")
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
    from drill.training.progress import duration

    device = found.device.replace("(R)", "")  # of Intel's
    where = f"on {device}" + (f", {found.note}" if found.note else "")
    if found.epochs == epochs:
        return f"took {duration(found.seconds)} {where}"
    if found.epochs == 1:
        return f"an epoch took {found.seconds:.1f}{NO_BREAK}s {where}"
    return f"{found.epochs} of them took {duration(found.seconds)} {where}"
