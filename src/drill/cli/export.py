"""`drill export`: a trained translator for the package transformers."""

from pathlib import Path
from typing import Annotated

import typer

from drill.cli.options import RunFolderArgument, WeightsOption, loaded_translator, told
from drill.errors import SettingsError
from drill.training.run.weights import task_of
from drill.training.settings import TRANSLATION
from drill.translation.export_marian import export_marian


def export(
    run: RunFolderArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it.")],
    positions: Annotated[
        int, typer.Option(min=1, help="Longest sentence of the copy, in subwords.")
    ] = 1024,
    weights: WeightsOption = None,
) -> None:
    """Write a translator for the package transformers.

    With encoder.norm=post it is a MarianMTModel, else a PegasusForConditionalGeneration; the output
    layer is folded into one matrix. Beam and length penalty are those of the run's test.
    """
    if task_of(run) != TRANSLATION:
        raise SettingsError(f"{run}: holds a language model; only translators can be exported")
    held = loaded_translator(run, weights, "cpu")
    with told():
        searched = {key: held.settings.training[key] for key in ("beam", "length_penalty")}
        written = export_marian(held.model, held.subwords, folder, positions=positions, **searched)
    kind = "Marian" if held.model.transformer.norm == "post" else "Pegasus"
    typer.echo(f"wrote {written}: a {kind} model, of the {held.weights} weights")
