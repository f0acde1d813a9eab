"""src/drill/cli/evaluate_language_model.py"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from drill.cli.display import note
from drill.cli.evaluation_rows import Split
from drill.cli.generate import tell_if_never_trained
from drill.data import EOS, UNK
from drill.data.text.corpora import read_own_text
from drill.files import digest, lines_of
from drill.language_modeling.run import Run
from drill.report.results.evaluations import OWN_FILES


class EvaluatedText(NamedTuple):
    """A text as a run's model reads it.

    ids      (N,)
    columns  in which plain evaluation reads it
    told     what a row of evaluations.jsonl says of it
    options  by which `drill evaluate` reads it again
    """

    name: str
    ids: NDArray[Any]
    columns: int
    told: dict[str, Any]
    options: tuple[str, ...]


def splits_of(run: Run, splits: Sequence[Split]) -> list[EvaluatedText]:
    training = run.settings.training
    return [
        EvaluatedText(
            split.value,
            getattr(run.ids, split),
            training["test_batch_size" if split is Split.test else "valid_batch_size"],
            {"split": split.value},
            ("--split", split.value),
        )
        for split in splits
    ]


def own_text(run: Run, path: Path) -> EvaluatedText:
    """A file as the run's corpus is read, in the columns of its test.

    It is no split, whatever it is called: the row names the file, what it held, and how many of its
    words the model does not know.
    """
    vocabulary = run.vocabulary
    ids = vocabulary.encode(lines_of(read_own_text(path)))
    unknown = int((ids == vocabulary.ids[UNK]).sum()) if UNK in vocabulary else 0
    if unknown:
        words = int((ids != vocabulary.ids[EOS]).sum())
        note(
            f"{path}: {unknown:,} of its {words:,} words ({unknown / words:.1%}) are {UNK} to the "
            f"model, which the perplexity takes for one word"
        )
        tell_if_never_trained(vocabulary)
    told = {
        "split": OWN_FILES,
        "text": str(path),
        "sha256": digest(path, "sha256"),
        "unknown": unknown,
    }
    columns = run.settings.training["test_batch_size"]
    return EvaluatedText(str(path), ids, columns, told, ("--text", str(path)))
