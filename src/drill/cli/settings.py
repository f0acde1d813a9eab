"""`drill settings`: every setting that --set takes for a recipe."""

import inspect
import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from drill.cli.options import SetOption

if TYPE_CHECKING:
    from drill.training.settings import Settings


class Setting(NamedTuple):
    key: str
    value: Any
    default: Any
    kind: str


def settings(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe name, a .toml file or a run folder.")
    ],
    change: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """List the settings of a recipe, which --set changes.

    Each with its value in the recipe, the default and its type. Which settings a layer, an encoder
    or an optimizer has depends on its name: add --set layer.name=mixture to see those of a mixture.
    """
    from drill.cli.display import console
    from drill.training.settings import recipe as read_recipe

    name = os.path.join(recipe, "recipe.toml") if os.path.isdir(recipe) else recipe
    rows = list(_rows(read_recipe(name, change or ())))
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    cells = [(row.key, _toml(row.value), _toml(row.default), row.kind) for row in rows]
    titles = ("setting", "value", "default", "type")
    widths = [max(len(row[i]) for row in (titles, *cells)) for i in range(3)]
    for row in (titles, *cells):
        *first, kind = row
        padded = (f"{cell:{width}}" for cell, width in zip(first, widths, strict=True))
        console().print("  ".join([*padded, kind]), soft_wrap=True)


def _rows(settings: "Settings") -> Iterator[Setting]:
    from drill.training.schema import _arguments, in_words

    for table, (call, names) in _signatures(settings).items():
        values: Any = settings.tables()
        for part in table.split("."):
            values = values[part]
        arguments = _arguments(call)
        for key, value in values.items():
            if isinstance(value, dict):  # the wrapped layer, a table of its own
                continue
            if key in arguments:
                default = arguments[key].default
                default = "required" if default is inspect.Parameter.empty else default
                kind = in_words(arguments[key].annotation)
            else:
                default, kind = "", names.get(key, "")
            yield Setting(f"{table}.{key}", value, default, kind)


def _signatures(settings: "Settings") -> dict[str, tuple[Callable[..., Any], dict[str, str]]]:
    """What each table is the arguments of, and the types of its other keys."""
    from drill.data import Filters, Subwords, read_corpus, read_parallel_corpus
    from drill.layers import LAYERS
    from drill.models import ENCODERS
    from drill.models.transformer.transformer import Transformer
    from drill.training.optim import OPTIMIZERS
    from drill.training.options import LanguageModelOptions, TranslationOptions
    from drill.training.settings import INNER, TRANSLATION

    def one_of(choices: Any) -> dict[str, str]:
        return {"name": f"one of {', '.join(choices)}", "embedding_dim": "a whole number"}

    layer = {"layer": settings.layer}
    if INNER in settings.layer:
        layer[f"layer.{INNER}"] = settings.layer[INNER]
    layers = {key: (LAYERS[table["name"]], one_of(LAYERS)) for key, table in layer.items()}
    optimizer = {"optimizer": (OPTIMIZERS[settings.optimizer["name"]], one_of(OPTIMIZERS))}
    if settings.task == TRANSLATION:
        return {
            "data": (read_parallel_corpus, {}),
            "filters": (Filters, {}),
            "subwords": (Subwords.train, {}),
            "encoder": (Transformer, {**one_of(["transformer"]), "shared": "true or false"}),
            **layers,
            **optimizer,
            "training": (TranslationOptions, {}),
        }
    return {
        "data": (read_corpus, {}),
        "encoder": (ENCODERS[settings.encoder["name"]], one_of(ENCODERS)),
        **layers,
        **optimizer,
        "training": (LanguageModelOptions, {}),
    }


def _toml(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
