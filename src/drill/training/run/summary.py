"""The lines that `drill train` prints before a run starts, and warnings about its settings."""

import inspect
from typing import Any

import torch

from drill.data import UNK, Corpus, FilterReport, Ids, Vocabulary
from drill.layers import LAYERS
from drill.layers.cost import own_parameters
from drill.recipes.reader import NAME
from drill.training.device import device_name
from drill.training.distributed import World
from drill.training.precision import resolve_precision
from drill.training.run.environment import Start, ended_by
from drill.training.run.folder import RunFolder
from drill.training.settings import INNER, Settings

FEW_STEPS = 100  # with fewer a model learns next to nothing


def run_summary(settings: Settings, run: RunFolder, device: torch.device, world: World) -> str:
    """Two lines, before a text is read: recipe, folder and output layer; device and precision."""
    precision = resolve_precision(settings.training["precision"], device)
    several = f"{world.size} processes, " if world.size > 1 else ""
    verb = "resuming" if run.last.exists() else "training"
    if ended_by(run, settings):
        verb = "already trained:"
    return (
        f"{verb} {settings.recipe} in {run.path}: {layer_in_words(settings.layer)}\n"
        f"  {several}{device} ({device_name(device)}), {precision}"
    )


def sizes(settings: Settings, start: Start) -> str:
    """Parameters and corpus in one line, and a line for each remark."""
    model, run = start.task.model, start.task.run
    line = (
        f"  {model.parameter_count():,} parameters, {own_parameters(model.layer):,} of them the "
        f"layer's own; {settings.data['corpus']}: {start.size}"
    )
    lines = () if ended_by(run, settings) else start.remarks()
    if run.last.exists():
        lines = lines[:1]
    return "\n".join([line, *(each for each in lines if each is not None)])


def share_of_unknown(
    corpus: Corpus,
    vocabulary: Vocabulary,
    ids: Ids,
    min_count: int = 1,
    max_vocab_size: int | None = None,
) -> str | None:
    """How much of a text is ``<unk>``, and by which cut-off; None if nothing is.

    None also for a corpus whose authors have put ``<unk>`` into the text.
    """
    if corpus.closed or UNK not in vocabulary:
        return None
    train, test = (float((split == vocabulary.ids[UNK]).mean()) for split in (ids.train, ids.test))
    if train == test == 0.0:
        return None
    limits = [f"data.min_count {min_count}"] if min_count > 1 else []
    if max_vocab_size is not None:
        limits.append(f"data.max_vocab_size {max_vocab_size:,}")
    if vocabulary.held_out:
        limits.append(f"data.held_out {len(vocabulary.held_out):,}")
    seen = {*corpus.train.split()}
    cut = len(seen - {*vocabulary.words})
    words = "1 word" if cut == 1 else f"{cut:,} words"
    rare = f"{words} cut by {' and '.join(limits)} and " if cut else ""
    if UNK in seen:
        rare += f"{UNK} in the text itself and "
    return (
        f"{UNK} stands for {rare}words never seen in training: {train:.1%} of the training tokens, "
        f"{test:.1%} of the test tokens; perplexities count it as one word"
    )


def left_out(report: FilterReport, filters: dict[str, Any]) -> str | None:
    """How many training pairs were dropped by which filter; None without any."""
    dropped = report.pairs - report.kept
    if not dropped:
        return None
    reasons = {
        "without words on a side (filters.minimum)": report.empty,
        "seen before (filters.deduplicate)": report.duplicate,
        f"below {filters['minimum']} subwords (filters.minimum)": report.short,
        f"above {filters['maximum']} subwords (filters.maximum)": report.long,
        f"with one side over {filters['ratio']} times the other (filters.ratio)": report.ratio,
    }
    dropped_by = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    return f"{dropped:,} of {report.pairs:,} training pairs are left out: {dropped_by}"


def few_steps(settings: Settings, tokens: int) -> str | None:
    """A warning if a language model on so many tokens gets only a few steps."""
    given = settings.training
    rows = tokens // given["batch_size"]
    if rows < 2:  # an error of its own
        return None
    epoch = max(1, rows // given["bptt"])  # segments are about bptt long
    steps = epoch * given["epochs"]
    if steps >= FEW_STEPS or given["max_steps"] is not None:  # which asks for few
        return None
    enough = -(-FEW_STEPS // epoch)
    return (
        f"about {steps} step{'' if steps == 1 else 's'} in all, too few to learn much: set a "
        f"larger training.epochs ({enough} make about {FEW_STEPS}), a smaller "
        "training.batch_size or training.bptt"
    )


def no_better_than_guessing(perplexity: float, words: int) -> str | None:
    """A warning about a model that predicts no better than an untrained one."""
    if perplexity < words:
        return None
    return (
        f"the test perplexity {perplexity:,.1f} is not below {words:,}, that of a guess among all "
        "words: the model has learnt nothing; train it for more steps (training.epochs, "
        "training.batch_size, training.bptt), or on more text"
    )


def layer_in_words(table: dict[str, Any]) -> str:
    """``tied``, or ``mixture (experts 15) over deep-residual (depth 4, dropout 0.6)``.

    Sizes, and the options that are not the layer's defaults.
    """
    usual = inspect.signature(LAYERS[table[NAME]]).parameters
    options = [
        f"{key} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in table.items()
        if key not in (NAME, INNER) and value is not None
        if (type(value) is int and value) or value != usual[key].default
    ]
    own = table[NAME] + (f" ({', '.join(options)})" if options else "")
    return f"{own} over {layer_in_words(table[INNER])}" if INNER in table else own
