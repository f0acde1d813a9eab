"""`drill words`: add words to a trained run; score held-out ones."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, echo

from drill.cli import options
from drill.cli.display import counting, note
from drill.cli.options import Split
from drill.errors import SettingsError
from drill.training.progress import perplexity_of

if TYPE_CHECKING:
    from drill.cli.evaluation.rows import Evaluation

NEAREST = 5
RANK_AND_MASS = ("rank", "median_rank", "mass")


def words(
    run: options.Run,
    glosses: Annotated[
        list[str] | None, Argument(metavar="GLOSS", help="What each WORD means.")
    ] = None,
    add: Annotated[
        list[str] | None,
        Option(metavar="WORD [GLOSS]", help="A new word, and what it means; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, Option(help="Save the run with the new words in this folder.")
    ] = None,
    score: Annotated[
        Path | None, Option(help="Score the lines of this file with the new words.")
    ] = None,
    split: Annotated[
        list[Split] | None, Option(help="Of held-out words: train, valid or test; repeatable.")
    ] = None,
    as_json: options.JsonLines = False,
    quiet: options.Quiet = False,
    weights: options.Weights = None,
    device: options.Device = "auto",
) -> None:
    """Add words to a trained run, or score its held-out words.

    With --add, as in `drill words RUN --add sloop "a boat with one mast"`: new words get
    vectors from their characters or glosses, as the run's labels.source says, and are printed with
    the words of nearest vectors. Without: the words that data.held_out has removed from training
    are scored on the validation and test text, and the result is saved in the run folder.
    """
    new = _pairs(add or [], glosses or [])
    if not new:
        from drill.cli.evaluation.rows import evaluation

        if out is not None or score is not None:
            raise SettingsError("needs words: --add", key="--out" if out else "--score")
        with evaluation(run, split, None, weights, None, device, as_json) as evaluated:
            _score_held_out(evaluated, quiet)
        return
    if split is not None:
        raise SettingsError("is for held-out words; leave out --add", key="--split")
    from drill.language_modeling.run import load_language_model

    added = load_language_model(run, weights, device).add_words(new)
    if score is None:
        from drill.report.analysis.label_vectors import label_vectors, nearest_labels

        vectors = label_vectors(added.model.encoder.embedding, added.model.layer)
        name = added.vocabulary.words.__getitem__
        for word in new:
            neighbours = nearest_labels(vectors, added.vocabulary.ids[word], name, top=NEAREST)
            nearest = [neighbour for neighbour, _ in neighbours.embedding]
            if as_json:
                echo(json.dumps({"word": word, "nearest": nearest}, ensure_ascii=False))
            else:
                echo(f"{word}: nearest {', '.join(nearest)}")
    if out is not None:
        added.save(out)
        if not quiet:
            note(f"saved in {out}")
    elif score is None and not quiet:
        note("nothing is saved; --out FOLDER saves the run with these words")
    if score is not None:
        from drill.cli.generate import print_scores

        print_scores(added, score, as_json=as_json)


def _pairs(words: list[str], glosses: list[str]) -> dict[str, str]:
    """Every word with its gloss; the command line has all of these, or none."""
    if glosses and len(glosses) != len(words):
        raise SettingsError(
            f"must be as many as the glosses, not {len(words)} and {len(glosses)}; '' is no gloss",
            key="--add",
        )
    twice = {word for word in words if words.count(word) > 1}
    if twice:
        raise SettingsError(f"{', '.join(sorted(twice))} given twice", key="--add")
    return dict(zip(words, glosses or [""] * len(words), strict=True))


def _score_held_out(evaluation: "Evaluation", quiet: bool) -> None:
    from drill.language_modeling.evaluation.held_out import held_out_run, score_held_out

    run = evaluation.run
    added = held_out_run(run)
    for text in evaluation.texts:
        start = time.monotonic()
        with counting(f"held-out words, {text.name}", quiet) as progress:
            scores = score_held_out(
                run,
                added,
                getattr(added.ids, text.name),
                batch_size=text.batch_size,
                autocast=evaluation.autocast,
                progress=progress,
            )
        row = {
            "kind": "words",
            **text.row,
            "types": scores.types,
            "tokens": scores.labels.tokens,
            "loss": scores.labels.loss,
            "perplexity": perplexity_of(scores.labels.loss),
            "backoff_perplexity": perplexity_of(scores.backoff.loss),
            "mixed_perplexity": perplexity_of(scores.mixed),
            "among": perplexity_of(scores.labels.among),
            **{key: getattr(scores.labels, key) for key in RANK_AND_MASS},
            **{f"backoff_{key}": getattr(scores.backoff, key) for key in RANK_AND_MASS},
            "mass_elsewhere": scores.mass_elsewhere,
            "text_perplexity": scores.text.perplexity,
            "seconds": round(time.monotonic() - start, 3),
            "batch_size": text.batch_size,
        }
        evaluation.add(row, _lines(row))


def _lines(row: dict[str, Any]) -> str:
    """How the held-out words are predicted: as labels, by an equal share of ``<unk>``, by a share
    of it in the labels' proportions, and among each other; and the whole text with these labels."""

    def ranks(of: str) -> str:
        mean, median, mass = (row[f"{of}{key}"] for key in RANK_AND_MASS)
        return f"mean rank {mean:8,.1f}  median {median:8,.1f}  mass {mass:.4f}"

    lines = [
        f"{row['split']}: {row['tokens']:,} occurrences of {row['types']:,} held-out words",
        f"  as labels           perplexity {row['perplexity']:10,.0f}  {ranks('')}",
        f"  equal share of <unk>           {row['backoff_perplexity']:10,.0f}  {ranks('backoff_')}",
        f"  share of <unk> by the labels   {row['mixed_perplexity']:10,.0f}",
        f"  among held-out words           {row['among']:10,.1f}",
        f"  whole text                     {row['text_perplexity']:10,.2f}  "
        f"mass of the labels elsewhere {row['mass_elsewhere']:.4f}",
    ]
    return "\n".join(lines)
