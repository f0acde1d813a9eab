"""`drill translate`: lines through a trained translator, in their order, as they are done."""

import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from drill.cli.display import note
from drill.cli.input_lines import blocks_of_lines, name_of
from drill.cli.options import (
    DeviceOption,
    Precision,
    RunFolderArgument,
    WeightsOption,
    loaded_translator,
    told,
)
from drill.errors import SettingsError
from drill.training.device import told_of_memory
from drill.training.precision import products
from drill.translation.translate import Search, Translation, translate_blocks


def translate(
    run: RunFolderArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="One sentence a line; - or none: standard input."),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Places; the run's by default, at least --n-best.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="0 favours the short; the run's by default.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="The likeliest token each.")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="Draw translations at random.")] = False,
    n_best: Annotated[int, typer.Option(min=1, help="Translations of each line.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(help="Of --sample: below 1 safer; 1 by default.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Of --sample: only k tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of --sample: what makes up p.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of --sample: the same again.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Line, score and text.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    max_ratio: Annotated[
        float, typer.Option(help="At most so many subwords for each of the line's,")
    ] = 1.0,
    max_extra: Annotated[int, typer.Option(help="and so many more.")] = 50,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Subwords searched together; less takes less memory.")
    ] = 4096,
    max_source: Annotated[
        int, typer.Option(min=1, help="Subwords of a line that are read; the rest is cut off.")
    ] = 512,
    weights: WeightsOption = None,
    precision: Annotated[Precision | None, typer.Option(help="The run's by default.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Translate lines of a file or of standard input.

    A line in, a line out, in the same order; with --n-best or --scores each has the number of its
    line, its score and the text, separated by tabs. What has come is translated at once.
    """
    if greedy and (sample or n_best > 1 or beam is not None or length_penalty is not None):
        raise SettingsError(
            "--greedy: has one place, ranks nothing and draws nothing; leave out --beam, --n-best, "
            "--length-penalty and --sample"
        )
    if beam is not None and n_best > beam:
        raise SettingsError(
            f"--n-best {n_best}: a beam of {beam} places has {beam} translations of a line; give "
            f"--beam {n_best}, or leave --beam out"
        )
    if sample and (beam is not None or length_penalty is not None):
        raise SettingsError("--sample: has no beam; leave out --beam and --length-penalty")
    of_samples = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "seed": seed}
    for name, value in of_samples.items():
        if value is not None and not sample:
            raise SettingsError(f"--{name}: says something about --sample; add that")
    if temperature is not None and not 0.0 < temperature < math.inf:  # NaN fails too
        raise SettingsError(
            f"--temperature {temperature:g}: a temperature is a finite number above 0; for the "
            "likeliest tokens take --greedy instead of --sample"
        )
    held = loaded_translator(run, weights, device)
    training = held.settings.training
    chosen: Any = precision.value if precision else training["precision"]
    places = 1 if greedy else max(n_best, beam or training["beam"])
    penalty = training["length_penalty"] if length_penalty is None else length_penalty
    where = torch.device(next(held.model.parameters()).device)
    memory = told_of_memory(f"the search with {run}", "take a smaller --batch-tokens or --beam")
    with told(), memory, ExitStack() as stack:
        search = Search(
            beam=places,
            n_best=n_best,
            length_penalty=0.0 if greedy else penalty,
            sampled=sample,
            temperature=1.0 if temperature is None else temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            max_ratio=max_ratio,
            max_extra=max_extra,
            max_source=max_source,
            batch_tokens=batch_tokens,
            autocast=stack.enter_context(products(chosen, where)),
        )
        number = 0
        lines = blocks_of_lines(file, nul=True)  # subwords spell any character
        for block in translate_blocks(held.model, held.subwords, lines, search):
            for found in block:
                number += 1
                line = _written(number, found, scores or n_best > 1, as_json)
                sys.stdout.buffer.write(line.encode("utf-8"))  # whatever the terminal's encoding
            sys.stdout.buffer.flush()
        if number == 0:  # no lines in, no lines out: right in a pipe, so it is no fault
            note(f"{name_of(file)}: holds no line to translate")


def _written(number: int, found: list[Translation], with_scores: bool, as_json: bool) -> str:
    if as_json:
        listed = [{"text": t.text, "score": t.score, "log_prob": t.log_prob} for t in found]
        return json.dumps({"line": number, "translations": listed}, ensure_ascii=False) + "\n"
    if not with_scores:
        return f"{found[0].text}\n"
    return "".join(f"{number}\t{each.score:.4f}\t{each.text}\n" for each in found)
