"""`drill export`: a trained translator for the package transformers."""

from pathlib import Path
from typing import Annotated

import typer

from drill.cli.options import (
    RunFolderArgument,
    WeightsOption,
    as_settings_error,
    load_translator,
)
from drill.errors import SettingsError


def export(
    run: RunFolderArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it.")],
    positions: Annotated[
        int, typer.Option(min=1, help="Maximum sentence length in subwords.")
    ] = 1024,
    weights: WeightsOption = None,
) -> None:
    """Export a translator to Hugging Face transformers.

    A MarianMTModel for encoder.norm=post, else a PegasusForConditionalGeneration; the output layer
    is folded into one matrix. Beam width and length penalty are those of the run's test.
    """
    from drill.training.run.weights import task_of
    from drill.training.settings import TRANSLATION
    from drill.translation.export_marian import export_marian

    if task_of(run) != TRANSLATION:
        raise SettingsError("is a language model; only translators can be exported", key=str(run))
    loaded = load_translator(run, weights, "cpu")
    with as_settings_error():
        searched = {key: loaded.settings.training[key] for key in ("beam", "length_penalty")}
        written = export_marian(
            loaded.model, loaded.subwords, folder, positions=positions, **searched
        )
    kind = "Marian" if loaded.model.transformer.norm == "post" else "Pegasus"
    typer.echo(f"wrote {written}: a {kind} model with the {loaded.weights} weights")
