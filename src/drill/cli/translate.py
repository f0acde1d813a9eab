"""`drill translate` and `drill export`: use a trained translator here, or in transformers."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, echo

from drill.cli import options
from drill.cli.display import note
from drill.cli.options import blocks_of_lines, checked, name_of
from drill.errors import SettingsError

if TYPE_CHECKING:
    from drill.translation.inference import Translation


def translate(
    run: options.Run,
    file: options.Lines = None,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    greedy: Annotated[
        bool, Option("--greedy", help="Greedy decoding instead of beam search.")
    ] = False,
    sample: Annotated[bool, Option("--sample", help="Sampling instead of beam search.")] = False,
    n_best: Annotated[int, Option(min=1, help="Number of translations per line.")] = 1,
    temperature: Annotated[
        float | None, Option(min=0.0, help="With --sample: temperature; 1 by default.")
    ] = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    scores: Annotated[bool, Option("--scores", help="Print line number, score and text.")] = False,
    as_json: options.JsonLines = False,
    batch_tokens: options.BatchTokens = 4096,
    weights: options.Weights = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
) -> None:
    """Translate the lines of a file or of standard input.

    Prints one line per line, in the same order; with --n-best or --scores the line number, the
    score and the text, separated by tabs. Lines from a pipe are translated as they come.
    """
    from drill.translation.inference import translate_blocks
    from drill.translation.run import load_translator

    if greedy and (sample or n_best > 1 or beam is not None or length_penalty is not None):
        raise SettingsError(
            "leave out --beam, --n-best, --length-penalty and --sample", key="--greedy"
        )
    if beam is not None and n_best > beam:
        raise SettingsError(
            f"needs a beam width of at least {n_best}, not {beam}", key=f"--n-best {n_best}"
        )
    if sample and (beam is not None or length_penalty is not None):
        raise SettingsError("leave out --beam and --length-penalty", key="--sample")
    of_samples = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "seed": seed}
    for name, value in of_samples.items():
        if value is not None and not sample:
            raise SettingsError("is for --sample; add that", key=f"--{name}")
    if greedy:
        beam, length_penalty = 1, 0.0
    loaded = load_translator(run, weights, device)
    searching = loaded.search(
        max(n_best, beam or loaded.settings.training["beam_size"]),
        precision=precision,
        n_best=n_best,
        length_penalty=length_penalty,
        sampled=sample,
        temperature=1.0 if temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        batch_tokens=batch_tokens,
    )
    with checked(searching) as search:
        number = 0
        lines = blocks_of_lines(file, nul=True)  # subwords spell any character
        for block in translate_blocks(loaded.model, loaded.subwords, lines, search):
            for translations in block:
                number += 1
                line = _written(number, translations, scores or n_best > 1, as_json)
                sys.stdout.buffer.write(line.encode("utf-8"))  # whatever the terminal's encoding
            sys.stdout.buffer.flush()
        if number == 0:  # right in a pipe, so it is no error
            note(f"{name_of(file)}: has no line to translate")


def _written(
    number: int, translations: list["Translation"], with_scores: bool, as_json: bool
) -> str:
    if as_json:
        listed = [{"text": t.text, "score": t.score, "log_prob": t.log_prob} for t in translations]
        return json.dumps({"line": number, "translations": listed}, ensure_ascii=False) + "\n"
    if not with_scores:
        return f"{translations[0].text}\n"
    return "".join(f"{number}\t{t.score:.4f}\t{t.text}\n" for t in translations)


def export(
    run: options.Run,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Where to write it.")],
    max_length: Annotated[int, Option(min=1, help="Maximum sentence length in subwords.")] = 1024,
    weights: options.Weights = None,
) -> None:
    """Export a translator to Hugging Face transformers.

    A MarianMTModel for encoder.norm=post, else a PegasusForConditionalGeneration; the output layer
    is folded into one matrix. Beam width and length penalty are those of the run's test.
    """
    from drill.translation.export import export_translator
    from drill.translation.run import load_translator

    loaded = load_translator(run, weights, "cpu")
    training = loaded.settings.training
    searched = {key: training[key] for key in ("beam_size", "length_penalty")}
    written = export_translator(
        loaded.model, loaded.subwords, folder, max_length=max_length, **searched
    )
    kind = "Marian" if loaded.model.transformer.norm == "post" else "Pegasus"
    echo(f"wrote {written}: a {kind} model with the {loaded.weights} weights")
