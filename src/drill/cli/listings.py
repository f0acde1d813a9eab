"""`drill recipes`, `drill settings` and `drill layers`: what can be trained, changed and chosen."""

import inspect
import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from rich.console import Console
from typer import Argument, Option, echo

from drill.cli import options
from drill.cli.display import plain_table
from drill.recipes.reader import describe, read, recipe_names

if TYPE_CHECKING:
    from drill.training.settings import Settings

# -- drill recipes --------------------------------------------------------------------------------

WIDTH = 100
VALUES = 32  # width of `key = value`, before a comment
CPU, GPU = "cpu", "cuda"
ON_GPUS = ("elife", "ptb", "wikitext-2", "multi30k", "europarl", "wmt14")
CORPUS_DEVICES: Mapping[str, str] = {"bible": CPU, "numbers": CPU, **dict.fromkeys(ON_GPUS, GPU)}
"""What the recipes of a corpus need; those for any machine come first."""


def recipes() -> None:
    """List the recipes that come with the package.

    By corpus: name, length and output layer.
    """
    # As written in the recipe files: filling in defaults would import torch.
    tables = {name: read(name) for name in recipe_names()}
    lengths = {name: _length(table["training"]) for name, table in tables.items()}
    columns = [max(map(len, column)) for column in (tables, lengths.values())]
    for corpus, device in CORPUS_DEVICES.items():
        of_corpus = [name for name, table in tables.items() if table["data"]["corpus"] == corpus]
        translates = tables[of_corpus[0]].get("task") == "translation"
        task = "translators" if translates else "language models"
        echo(f"{corpus}: {task}, {'any CPU' if device == CPU else 'NVIDIA GPU'}")
        for name in of_corpus:
            start = f"  {name:{columns[0]}}  {lengths[name]:{columns[1]}}  "
            indent = " " * len(start)
            echo(textwrap.fill(start + describe(name), WIDTH, subsequent_indent=indent))
        echo()
    echo("Train one with `drill train RECIPE`; `drill settings RECIPE` lists its settings.")


def _length(training: Mapping[str, Any]) -> str:
    """The minutes or steps that end training before its epochs, or these."""
    if (minutes := training.get("max_minutes")) is not None:
        return f"{minutes:g} minutes"
    if (steps := training.get("max_steps")) is not None:
        return f"{steps:,} steps"
    epochs = training["epochs"]
    return f"{epochs:,} epoch{'' if epochs == 1 else 's'}"


# -- drill settings -------------------------------------------------------------------------------


class Setting(NamedTuple):
    key: str
    value: Any
    default: Any  # inspect.Parameter.empty where there is none
    kind: str
    description: str


def settings(
    recipe: Annotated[
        str,
        Argument(
            metavar="RECIPE",
            help="A recipe name, a .toml file or a run folder.",
            autocompletion=options.recipes_from,
        ),
    ],
    change: options.Set = None,
) -> None:
    """Print a recipe with all of its settings.

    As TOML, which `drill train` reads; each with its meaning, type and, where the recipe changes
    it, default. Which settings there are depends on the layer, the encoder and the optimizer: add
    --set layer.name=mixture to see those of a mixture.
    """
    if options.is_run_folder(recipe, change or ()):
        recipe = os.path.join(recipe, "recipe.toml")
    from drill.training.settings import recipe as read_recipe

    resolved = read_recipe(recipe, change or ())
    rows = {row.key: row for row in setting_rows(resolved)}
    table = ""
    for line in resolved.to_toml().splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        row = rows.get(f"{table}.{line.partition(' = ')[0]}")
        echo(line if row is None else f"{line:{VALUES}}  # {_comment(row)}")


def _comment(row: Setting) -> str:
    usual = "none" if row.default is None else row.default
    changed = "" if row.default in (row.value, inspect.Parameter.empty) else f"; default {usual}"
    return f"{row.description} [{row.kind}]{changed}"


def setting_rows(settings: "Settings") -> Iterator[Setting]:
    from drill.training.schema import in_words, settable_arguments
    from drill.training.settings import ENCODER_DEFAULTS

    special = ENCODER_DEFAULTS.get(settings.encoder["name"], {})
    for table, values, calls in _tables(settings):
        names = calls if isinstance(calls, Mapping) else {}
        arguments = settable_arguments(names[values["name"]] if names else calls)
        other_types = {"name": Literal[tuple(names)], "embedding_dim": int, "shared": bool}
        for key, value in values.items():
            if isinstance(value, dict):  # a wrapped layer has a table of its own
                continue
            default: Any = inspect.Parameter.empty
            if key in arguments:
                default = special.get(table, {}).get(key, arguments[key].default)
            kind = in_words(arguments[key].annotation if key in arguments else other_types[key])
            described = descriptions()[table.split(".")[0]].get(key, "")
            yield Setting(f"{table}.{key}", value, default, kind, described)


def _tables(settings: "Settings") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every table, its values, and what it calls: one callable, or several by name."""
    from drill.training.settings import INNER, TASKS

    for table, values in settings.tables().items():
        calls, _ = TASKS[settings.task][table]
        yield table, values, calls
        if INNER in values:
            yield f"{table}.{INNER}", values[INNER], calls


@cache
def descriptions() -> dict[str, dict[str, str]]:
    """Table -> setting -> what it means."""
    return tomllib.loads(
        resources.files("drill.cli").joinpath("setting_descriptions.toml").read_text("utf-8")
    )


# -- drill layers ---------------------------------------------------------------------------------


LEGEND = """
own parameters: without the embedding E, which belongs to the encoder
train: FLOPs of one training step; x tied: relative to the tied layer
infer: FLOPs of the logits of N tokens, with the labels encoded beforehand
folds: after training, fold() replaces the layer by one nn.Linear on g_in(h)
layers below deep-residual wrap another one, here tied
experts: of mixture 15, of mixtape 4 (gates for V/10 labels), of doc 15 and 5 on a lower state"""


def layers(
    vocabulary: Annotated[int, Option(min=2, max=10**8, help="V, vocabulary size.")] = 10_000,
    width: Annotated[
        int, Option("--embedding-dim", min=1, max=10**5, help="d, size of the embeddings.")
    ] = 400,
    tokens: Annotated[int, Option(min=1, max=10**6, help="N, tokens per step.")] = 1_400,
    depth: Annotated[int, Option(min=0, max=1000, help="Depth of deep-residual.")] = 4,
) -> None:
    """List the output layers and their cost.

    A matrix layer computes softmax(g_out(E) g_in(h) + b) of the embedding E and the hidden state h;
    the layers below deep-residual mix, bend or sample the logits of another. The costs are
    parameters, and FLOPs of a training step and of inference.
    """
    from drill.layers.cost import FORMULAE, cost, example_layers

    built = example_layers(vocabulary, width, width, depth=depth, experts=15, joint=width)
    costs = {name: cost(layer, tokens) for name, layer in built.items()}
    headings = ["layer", "g_out(E)", "g_in(h)", "own\nparameters", "train\nGFLOP", "x\ntied"]
    rows = []
    for name, layer_cost in costs.items():
        ratio = layer_cost.train_flops / costs["tied"].train_flops
        over_tied = f"{ratio:,.2f}" if ratio >= 0.01 else f"{ratio:.1g}"  # not 0.00
        train, infer = _giga(layer_cost.train_flops), _giga(layer_cost.inference_flops)
        folds = "yes" if layer_cost.folded else "no"
        rows.append(
            [name, *FORMULAE[name], f"{layer_cost.parameters:,}", train, over_tied, infer, folds]
        )
    table = plain_table([*headings, "infer\nGFLOP", "folds"], rows, left=3, padding=(0, 1, 0, 0))
    console = Console(highlight=False, width=200)  # numbers must not be cut
    console.print(f"V = {vocabulary:,} labels, d = {width:,} for E and h", end=", ")
    console.print(f"N = {tokens:,} tokens a step, depth {depth}\n")
    console.print(table)
    console.print(LEGEND)


def _giga(flops: int) -> str:
    return f"{flops / 1e9:,.1f}" if flops >= 10**9 else f"{flops / 1e9:.2g}"
