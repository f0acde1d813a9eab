"""What the first word of a test line costs, mean -log p, by the state in which the line begins.

python bench/line_start.py runs/demo-drill runs/demo-tied
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from drill.data import EOS
from drill.language_modeling.line_start import line_start
from drill.language_modeling.perplexity import token_losses
from drill.language_modeling.run import load_run
from drill.models.encoder import State
from drill.models.language_model import LanguageModel

LINES = 300
TIMES = (2, 4, 8)


def costs(
    model: LanguageModel, ids: NDArray[Any], end: int, lines: int = LINES
) -> dict[str, float]:
    """Of the first ``lines`` lines that have a line before them, by where they begin."""
    text = torch.from_numpy(ids.astype("int64"))
    after = (text[:-1] == end).nonzero()[:lines, 0]  # places of the ends before them
    words = text[after + 1]

    def begun(state: State | None, times: int = 1) -> float:
        return float(-after_ends(model, end, state, times)[words].mean())

    found = {"in the zero state, after `<eos>`": begun(None)}
    for times in TIMES:
        found[f"after `<eos>` {times} times"] = begun(None, times)
    found["in the start state, after `<eos>`"] = begun(line_start("bench", model, end))
    read = ids[: int(after[-1]) + 2]
    found["after the lines before it"] = float(token_losses(model, read)[after].mean())
    return found


@torch.no_grad()
def after_ends(model: LanguageModel, end: int, state: State | None, times: int) -> Tensor:
    """log p (V,) after ``<eos>`` was read so many times."""
    log_probs, _ = model.eval().log_probs(torch.full((times, 1), end), state)
    return log_probs[-1, 0].double()


def table(found: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    """A column for each run."""
    yield f"| the line begins | {' | '.join(found)} |"
    yield f"|---|{'---:|' * len(found)}"
    for name in next(iter(found.values())):
        yield f"| {name} | {' | '.join(f'{each[name]:.2f}' for each in found.values())} |"


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("runs", nargs="+", type=Path, help="folders of language models")
    options.add_argument("--lines", type=int, default=LINES, help="of the test text, at most")
    args = options.parse_args(arguments)
    found = {}
    for folder in args.runs:
        run = load_run(folder, device="cpu")
        found[folder.name] = costs(run.model, run.ids.test, run.vocabulary.ids[EOS], args.lines)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
