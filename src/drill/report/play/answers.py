"""What the page asks of runs. Answers are plain values, ready for JSON."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drill.data import BEGIN, END, EOS, UNK, Subwords, SubwordVocabulary
from drill.data.text.word_features import GLOSS
from drill.errors import DataError, SettingsError
from drill.language_modeling.evaluation.frequency_bands import default_edges, frequency_bands
from drill.language_modeling.generation import generate
from drill.language_modeling.new_words import new_words_blocker
from drill.language_modeling.run import LanguageModelRun
from drill.language_modeling.scoring import line_start, score
from drill.layers import LabelSource
from drill.models.encoder import State
from drill.report.analysis.label_vectors import label_vectors, nearest_labels
from drill.report.page.figures import css_classes
from drill.report.page.page import corpus_of
from drill.report.results.runs import RunError, RunSummary, distinct_names, is_run, read_run
from drill.training.precision import evaluating
from drill.training.progress import perplexity_of
from drill.translation.inference import translate
from drill.translation.run import TranslationRun

MAX_PREFIX = 500  # words or subwords
MAX_LINES = 10  # that are translated at once
MAX_CURVES = 30
TOP = 12  # words of a list
DIFFERENT = 8
SHOWN_PREFIX = 40  # subwords of a prefix that are shown

Answer = dict[str, Any]


class Player:
    """A loaded run; its labels are words, or the pieces of ``subwords``."""

    task: ClassVar[str]
    name: str
    run: LanguageModelRun | TranslationRun
    subwords: Subwords | None
    counts: Sequence[int] | None  # of labels in training
    embedding: nn.Embedding | LabelSource
    display: Callable[[int], str]
    """The name of a label, ``▁`` in front of a subword that begins a word."""
    adds_words: bool = False

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The ids of labels by name; of labels with the same name, the last one."""
        return {self.display(i): i for i in range(self.run.model.layer.vocabulary_size)}

    def word(self, word: str, exact: bool = False) -> Answer:
        """How often a word occurs in training, and the labels next to it in E and in g_out(E).

        Of several subwords those of the first one; ``exact``: of the label of that name.
        """
        if self.subwords is None or exact:
            labels = [self.label_ids[word]] if word in self.label_ids else []
        else:
            labels = self.subwords.encode(" " + word.replace("▁", ""))
        if not labels:
            return {"label": word, "count": None}
        vectors = label_vectors(self.embedding, self.run.model.layer)
        label, counts = labels[0], self.counts
        return {
            **vars(nearest_labels(vectors, label, self.display, counts, top=TOP)),
            "rank": None if counts is None else sum(c > counts[label] for c in counts) + 1,
            "labels": len(vectors.output),
            **({} if self.subwords is None else {"subwords": [*map(self.display, labels)]}),
        }


class LanguageModelPlayer(Player):
    """A language model of words or subwords; the state at the start of a line is computed once."""

    task = "language model"

    run: LanguageModelRun

    def __init__(self, name: str, run: LanguageModelRun) -> None:
        self.name = name
        self._use(run)

    def _use(self, run: LanguageModelRun) -> None:
        self.run, self.vocabulary, self.display = run, run.vocabulary, run.vocabulary.display
        vars(self).pop("label_ids", None)
        self.embedding = run.model.encoder.embedding
        self.counts = self.vocabulary.counts.tolist()
        self.subwords = None
        if isinstance(run.vocabulary, SubwordVocabulary):
            self.subwords = run.vocabulary.subwords
        self.adds_words = self.subwords is None and new_words_blocker(run.model) is None
        self.start = line_start("play", run.model, self.vocabulary.ids[EOS])
        self.last_prefix: tuple[list[int], State, Tensor] | None = None  # its ids, state, output

    @torch.no_grad()
    def next_probabilities(self, prefix: str) -> NDArray[np.float64]:
        """p of every label after ``prefix``, (V,). A prefix that goes on from the last one is
        read from there: a click on a word costs one step."""
        ids = self.encoded(prefix)
        if len(ids) > MAX_PREFIX:
            raise DataError(f"{len(ids) - 1:,} tokens; give at most {MAX_PREFIX - 1}", key="text")
        model, state, done = self.run.model, self.start, 0
        if self.last_prefix is not None and self.last_prefix[0] == ids[: len(self.last_prefix[0])]:
            done, state = len(self.last_prefix[0]), self.last_prefix[1]
        with evaluating(model):
            if self.last_prefix is None or done < len(ids):
                device = next(model.parameters()).device
                encoded = model.encoder(torch.tensor(ids[done:], device=device)[:, None], state)
                self.last_prefix = (ids, encoded.state, encoded.output[-1, 0])
            return model.layer.log_probs(self.last_prefix[2]).double().exp().cpu().numpy()

    def encoded(self, prefix: str) -> list[int]:
        """``<eos>``, then the ids of a text without the spaces at its end, as by ``generate``: a
        space belongs to the subword after it."""
        lines = prefix.rstrip(" ").split("\n")
        return [self.vocabulary.ids[EOS], *self.vocabulary.encode(lines)[:-1].tolist()]

    def unknown(self, text: str) -> list[str]:
        return list(dict.fromkeys(self.vocabulary.unknown_words(text)))[:TOP]

    def sample(self, text: str, **options: Any) -> Iterator[str]:
        return generate(self.run.model, self.vocabulary, prompt=text, start=self.start, **options)

    def losses(self, lines: Sequence[str]) -> Answer:
        """-log p of every token of every line, each line on its own; mean loss by frequency."""
        ids, counts = self.vocabulary.ids, self.vocabulary.counts
        sizes = self.vocabulary.token_bytes
        scored = list(score(self.run.model, self.vocabulary, lines, start=self.start))
        targets = self.vocabulary.encode(line.text for line in scored)
        losses = [-loss for line in scored for loss in line.log_probs]
        exclude = [ids[word] for word in (EOS, UNK) if word in ids]
        edges = default_edges(self.vocabulary)
        bands = frequency_bands(losses, targets, counts, edges=edges, exclude=exclude)
        total, tokens = math.fsum(losses), len(losses)
        return {
            "tokens": tokens,
            "loss": number(total / tokens),
            "perplexity": number(perplexity_of(total / tokens)),
            "bits_per_byte": None
            if sizes is None
            else number(total / math.log(2.0) / float(sizes[targets].sum())),
            "lines": [[number(-loss) for loss in line.log_probs] for line in scored],
            "counts": [
                [None if i is None else int(counts[i]) for _, i in self.tokens(line.text)]
                for line in scored
            ],
            "bands": [
                {key: getattr(band, key) for key in ("label", "low", "high", "tokens")}
                | {"loss": number(band.mean_loss)}
                for band in bands
            ],
        }

    def tokens(self, line: str) -> list[tuple[str, int | None]]:
        """The tokens of a line and their labels, ``<eos>`` last; None of an unknown word."""
        if self.subwords is None:
            return [(word, self.vocabulary.ids.get(word)) for word in (*line.split(), EOS)]
        return [(self.display(i), i) for i in self.vocabulary.encode([line]).tolist()]

    def add_word(self, word: str, gloss: str) -> None:
        """Give the model a vector for a new word; the run folder does not change."""
        reads = GLOSS in self.run.settings.labels["source"]  # a run next to it may read none
        self._use(self.run.add_words({word: gloss if reads else ""}))


class TranslatorPlayer(Player):
    """A translator; its labels are subwords."""

    task = "translator"
    run: TranslationRun
    subwords: Subwords

    def __init__(self, name: str, run: TranslationRun) -> None:
        self.name, self.run, self.subwords = name, run, run.subwords
        self.display, self.embedding = run.subwords.display, run.model.transformer.target_embedding
        path = run.folder.target_counts
        self.counts = json.loads(path.read_bytes()) if path.exists() else None

    def translate(self, lines: list[str], beam_size: int, n_best: int) -> list[Answer]:
        """The ``n_best`` translations of each line, and the attention of the best one."""
        with self.run.search(beam_size, n_best=n_best) as search:
            translations = list(translate(self.run.model, self.subwords, lines, search))
        return [
            {
                "translations": [
                    {"text": t.text, "score": number(t.score), "log_prob": number(t.log_prob)}
                    for t in best
                ],
                "attention": self.attention(line, best[0].text),
            }
            for line, best in zip(lines, translations, strict=True)
        ]

    @torch.no_grad()
    def attention(self, source: str, target: str) -> Answer | None:
        """Attention to the source while ``target`` is read, mean over layers and heads (T, S)."""
        read, written = self.subwords.encode(source), self.subwords.encode(target)
        if not read or not written:
            return None
        model = self.run.model
        device = next(model.parameters()).device
        maps: list[Tensor] = []  # of each layer, mean over heads

        def keep_map(module: Any, inputs: tuple[Any, ...]) -> None:
            x, states, mask = inputs
            keys = (module.keys_values(states) if isinstance(states, Tensor) else states)[0]
            queries = module.query(x).unflatten(-1, (module.heads, -1)).transpose(1, 2)
            scores = queries @ keys.transpose(-1, -2) / math.sqrt(keys.shape[-1]) + mask
            maps.append(scores.softmax(-1)[0].mean(0))

        hooks = [
            block.source_attention.register_forward_pre_hook(keep_map)
            for block in model.transformer.decoder
        ]
        try:
            with evaluating(model):
                model.transformer(
                    torch.tensor([[*read, END]], device=device),
                    torch.tensor([[BEGIN, *written[:-1]]], device=device),
                )
        finally:
            for hook in hooks:
                hook.remove()
        return {
            "source": [*map(self.display, read), "<end>"],
            "target": [*map(self.display, written)],
            "weights": [[round(w, 3) for w in row] for row in torch.stack(maps).mean(0).tolist()],
        }


# -- several runs next to each other --------------------------------------------------------------


def next_words(players: Sequence[LanguageModelPlayer], prefix: str) -> Answer:
    """The likeliest next labels of all runs, and of the first two those that differ most.

    A row has the ``word`` to show and the ``text`` that goes on with it: that of a subword with its
    space, None of one that is no whole character.
    """
    first = players[0]
    pairs = [(player, player.next_probabilities(prefix)) for player in players]

    def row(word: str) -> Answer:
        labels = [(player.vocabulary.ids.get(word), p) for player, p in pairs]
        probabilities = [None if label is None else number(float(p[label])) for label, p in labels]
        return {**_shown(first, word), "p": probabilities}

    likely = {player.vocabulary.words[i]: 0 for player, p in pairs for i in np.argsort(-p)[:TOP]}
    answer: Answer = {
        "words": sorted(map(row, likely), key=lambda row: -max(x or 0.0 for x in row["p"])),
        "different": [],
        "unknown": [player.unknown(prefix) for player in players],
    }
    if first.subwords is not None:
        ids = first.encoded(prefix)[1:][-SHOWN_PREFIX:]
        answer["read"] = [*map(first.display, ids)]
    if len(pairs) > 1:
        (a, p_a), (b, p_b) = pairs[:2]
        shared = [word for word in a.vocabulary.words if word in b.vocabulary]
        change = [p_b[b.vocabulary.ids[word]] - p_a[a.vocabulary.ids[word]] for word in shared]
        most = np.argsort(-np.abs(change), kind="stable")[:DIFFERENT]
        answer["different"] = [row(shared[i]) for i in most]
    return answer


def _shown(player: LanguageModelPlayer, word: str) -> Answer:
    """The entries of a row for an entry of ``vocabulary.words``."""
    if player.subwords is None or word == EOS:
        return {"word": word, "text": word}
    label = player.vocabulary.ids[word]
    text = player.subwords.decode([label])
    return {
        "word": player.display(label),
        "text": None if not text.strip() or "\ufffd" in text else text,
    }


def score_text(players: Sequence[LanguageModelPlayer], text: str) -> Answer:
    """Every token's loss by every run; lines without words are left out."""
    lines = [line for line in text.splitlines() if line.split()]
    if not lines:
        raise DataError("holds no words; paste some text", key="text")
    return {
        "lines": [[token for token, _ in players[0].tokens(line)] for line in lines],
        "runs": [player.losses(lines) for player in players],
    }


def look_up(players: Sequence[Player], word: str, exact: bool = False) -> list[Answer]:
    """``Player.word`` of every run."""
    _check_one_word(word)
    return [player.word(word.strip(), exact) for player in players]


def _check_one_word(word: str) -> None:
    if len(word.split()) != 1:
        raise DataError("must be one word, without spaces", key="word")


def add_word(players: Sequence[LanguageModelPlayer], word: str, gloss: str) -> list[Answer]:
    """Add a word to the runs that can and lack it, then look it up in all."""
    _check_one_word(word)
    able = [player for player in players if player.adds_words]
    without = [player for player in able if word.strip() not in player.vocabulary]
    if not able:
        raise SettingsError("no chosen run makes label vectors from descriptions", key="word")
    if not without:
        raise DataError(f"{word.strip()!r} is in the vocabulary already", key="word")
    for player in without:
        player.add_word(word.strip(), gloss)
    return look_up(players, word)


def translate_text(
    players: Sequence[TranslatorPlayer], text: str, beam_size: int, n_best: int
) -> Answer:
    """Translations by every run; of two runs, the words of the best ones that differ."""
    if not 1 <= n_best <= beam_size <= 16:
        raise SettingsError("must be 1 to 16, and n_best 1 to beam", key="beam")
    lines = [line for line in text.splitlines() if line.split()]
    if not 1 <= len(lines) <= MAX_LINES:
        raise DataError(f"{len(lines)} lines with words; give 1 to {MAX_LINES}", key="text")
    by_run = [player.translate(lines, beam_size, n_best) for player in players]
    for ours, theirs in zip(*by_run[:2], strict=True) if len(by_run) > 1 else ():
        best = [answer["translations"][0]["text"] for answer in (ours, theirs)]
        ours["marked"], theirs["marked"] = _differences(*best)
    return {"lines": lines, "runs": by_run}


def _differences(a: str, b: str) -> tuple[list[Any], list[Any]]:
    """The words of both as [word, whether the other text lacks it there]."""
    ours, theirs = a.split(), b.split()
    marked: tuple[list[Any], list[Any]] = ([], [])
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        marked[0].extend([word, kind != "equal"] for word in ours[i:j])
        marked[1].extend([word, kind != "equal"] for word in theirs[k:m])
    return marked


def curves(folders: Iterable[Path], loaded: Sequence[Path] = ()) -> Answer:
    """Validation and training perplexities by step of the runs in ``folders``.

    The ``loaded`` ones among them come first, in the colours that the page uses for A and B, then
    the last changed of the same corpora.
    """
    run_paths = {path.resolve() for folder in folders for path in folder.iterdir() if is_run(path)}
    first = [path for path in dict.fromkeys(map(Path.resolve, loaded)) if path in run_paths]
    runs = {path: _read_again(path, _changed(path)) for path in first}
    corpora = {corpus_of(run) for run in runs.values()}
    for path in sorted(run_paths.difference(first), key=_changed, reverse=True)[: 10 * MAX_CURVES]:
        with suppress(RunError):  # a damaged run is not shown
            run = _read_again(path, _changed(path))
            if not corpora or corpus_of(run) in corpora:  # others do not compare
                runs[path] = run
    others = sorted([path for path in runs if path not in first][:MAX_CURVES])
    paths = [*first, *others]  # by name: colours do not depend on what changed last
    names = distinct_names(paths)
    looks = css_classes(names.values())
    return {"runs": [_curve(name, runs[path], looks[name]) for path, name in names.items()]}


def _curve(name: str, run: RunSummary, look: str) -> Answer:
    points = [(point.step or 0, number(point.valid)) for point in run.validations]
    return {
        "name": name,
        "look": look,
        "layer": run.layer,
        "finished": run.test is not None,
        "points": points,
        "train": [(p.step, number(p.perplexity)) for p in run.training],
        "best": min((y for _, y in points if y is not None), default=None),
    }


@lru_cache(maxsize=256)
def _read_again(path: Path, _: float) -> RunSummary:
    """A run, read when it has changed: the page asks every two seconds."""
    return read_run(path)


def _changed(path: Path) -> float:
    metrics = path / "metrics.jsonl"
    return metrics.stat().st_mtime if metrics.exists() else path.stat().st_mtime


def number(value: float | None) -> float | None:
    """A number with six digits; None for NaN and infinities, which JSON lacks."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
