"""Searches against all translations written out, against plain loops and against each other."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from drill.errors import DataError
from drill.layers import (
    LAYERS,
    DeepResidual,
    DualNonlinear,
    MatrixLayer,
    MixtureOfSoftmaxes,
    OutputLayer,
    TiedSoftmax,
)
from drill.models import Transformer
from drill.models.translator import Translator
from drill.translation.search import beam_search as beam_search_module
from drill.translation.search import decoding as decoding_module
from drill.translation.search.beam_search import beam_search
from drill.translation.search.decoding import Hypothesis, Search, cached_head
from drill.translation.search.sampling import sample

pytestmark = pytest.mark.usefixtures("fixed_seed")
PAD, BOS, EOS, WORDS = 0, 1, 2, (3, 4, 5)
V, d = 6, 8
SHORT = Search(max_ratio=0.0, max_extra=4)
ALL = sum(len(WORDS) ** n for n in range(4))  # translations of at most 3 words and an <eos>
SOURCES = [[3, 4, 5, 3, 2], [5, 2], [4, 4, 2], [], [3, 5, 4, 5, 5, 3, 2]]


def make(seed: int = 0, layer=DeepResidual, eos: float = 0.0, dropout: float = 0.5) -> Translator:
    """In train mode with dropout on, so that a search which leaves it on shows.

    ``eos`` moves the bias of <eos>: the lower, the longer translations get.
    """
    embedding = nn.Embedding(V, d)
    sizes = {"layers": 2, "heads": 2, "feedforward": 12}
    model = Translator(Transformer(embedding, dropout=dropout, **sizes), layer(embedding))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.empty(parameter.shape).uniform_(-0.8, 0.8, generator=generator)
        parameter.data = drawn
        if name.endswith("layer.bias"):
            parameter.data[EOS] += eos
    return model.double().train()


def built(name: str):
    over = {"mixture": {"experts": 3}, "sampled": {"samples": 3}, "adaptive": {"cutoffs": [2, 4]}}
    over |= {"mixtape": {"gates": 3, "counts": [4, 9, 3, 7, 1, 5]}, "doc": {"experts": [3]}}

    def build(embedding: nn.Embedding) -> OutputLayer:
        matrix = issubclass(LAYERS[name], MatrixLayer)
        inner = embedding if matrix else TiedSoftmax(embedding)
        return LAYERS[name](inner, **over.get(name, {}))

    return build


@torch.no_grad()
def log_probs(model: Translator, source: list[int], rows: list[tuple[int, ...]]) -> list[float]:
    """log p(ids, <eos> | source) for ids of one length, whole targets at once."""
    model.eval()
    target_in = torch.tensor([[BOS, *ids] for ids in rows])
    log_p = model.log_probs(torch.tensor([source or [PAD]]).expand(len(rows), -1), target_in)
    model.train()
    target_out = torch.tensor([[*ids, EOS] for ids in rows])
    return log_p.gather(-1, target_out[..., None]).sum((1, 2)).tolist()


def penalised(value: float, length: int, alpha: float) -> float:
    return value / ((5 + length) / 6) ** alpha


def exhaustive(model: Translator, source: list[int], alpha: float) -> list[Hypothesis]:
    """Every translation of at most 3 words, the best first."""
    found = []
    for n in range(4):
        rows = list(itertools.product(WORDS, repeat=n))
        for ids, value in zip(rows, log_probs(model, source, rows), strict=True):
            found.append(Hypothesis(ids, value, penalised(value, n + 1, alpha)))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@torch.no_grad()
def plain_beam(
    model: Translator, source: list[int], limit: int, beam: int, alpha: float
) -> list[Hypothesis]:
    """The search in loops over hypotheses: no batch, no cache, no early stop."""
    model.eval()
    rows = torch.tensor([source or [PAD]])
    alive, ended = [((), 0.0)], []
    for length in range(1, limit + 1):
        grown = []
        for ids, value in alive:
            log_p = model.log_probs(rows, torch.tensor([[BOS, *ids]]))[0, -1]
            for y in (EOS,) if length == limit else (EOS, *WORDS):
                grown.append(((*ids, y), value + log_p[y].item()))
        grown.sort(key=lambda pair: -pair[1])
        alive = []
        for ids, value in grown[: beam - len(ended)]:
            if ids[-1] == EOS:
                ended.append(Hypothesis(ids[:-1], value, penalised(value, length, alpha)))
            else:
                alive.append((ids, value))
    model.train()
    return sorted(ended, key=lambda hypothesis: -hypothesis.score)


def greedy(model: Translator, sources, search: Search, **options) -> list[Hypothesis]:
    narrow = replace(search, beam_size=1, length_penalty=0.0)
    return [hypotheses[0] for hypotheses in beam_search(model, sources, narrow, **options)]


def same(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
    """For every sentence."""
    ids = [[[each.ids for each in rows] for rows in side] for side in (found, wanted)]
    assert ids[0] == ids[1]
    for a, b in zip(itertools.chain(*found), itertools.chain(*wanted), strict=True):
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-10)
        assert a.score == pytest.approx(b.score, abs=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 3.0, -0.5])
def test_wide_beam_finds_the_best_of_all_translations(alpha):
    for seed, eos in ((0, 0.0), (1, -1.5)):
        model = make(seed, eos=eos)
        search = replace(SHORT, beam_size=ALL, n_best=ALL, length_penalty=alpha)
        found = beam_search(model, SOURCES, search)
        assert [len(hypotheses) for hypotheses in found] == [ALL] * len(SOURCES)  # each, once
        same(found, [exhaustive(model, source, alpha) for source in SOURCES])


@pytest.mark.parametrize(
    ("beam", "n_best", "alpha"),
    [(1, 1, 0.0), (2, 2, 0.6), (4, 4, 2.0), (4, 1, 0.0), (4, 2, 1.0), (4, 1, -0.5)],
)
def test_narrow_beam_is_the_search_in_plain_loops(beam, n_best, alpha):
    search = Search(beam_size=beam, n_best=n_best, length_penalty=alpha, max_extra=3)
    for seed, eos in ((0, 0.0), (1, -2.0), (2, 1.0)):
        model = make(seed, eos=eos)
        found = beam_search(model, SOURCES, search)
        plain = [plain_beam(model, each, len(each) + 3, beam, alpha) for each in SOURCES]
        same(found, [hypotheses[:n_best] for hypotheses in plain])


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "end_now", "end_then", "words", "steps"),
    [
        (1.0, 0.5, 12, 11, 12),  # log 0.5 is worse than log 0.22 over the penalty of 12 tokens
        (0.0, 0.5, 12, 0, 2),
        (-0.5, 0.44, 2, 1, 2),  # the short is favoured, but log 0.56 of two tokens is better yet
        (-0.5, 0.44, 12, 0, 6),
    ],
)
def test_longer_hypothesis_may_win_and_no_step_is_taken_once_none_can(
    alpha, end_now, end_then, words, steps
):
    search = Search(beam_size=2, length_penalty=alpha, max_ratio=0.0, max_extra=12)
    go_on = 0.22 if alpha > 0 else 1 - end_now
    lengths = itertools.count(1)

    def scripted(hidden: Tensor) -> Tensor:
        p = torch.full((len(hidden), V), 1e-9, dtype=torch.float64)
        length = next(lengths)
        p[:, EOS] = end_now if length == 1 else 0.999 if length == end_then else 1e-9
        p[:, 3] = go_on if length == 1 else 1e-9 if length == end_then else 0.999
        return p.log()

    found = beam_search(make(), [[3]], search, head=scripted)
    assert len(found[0][0].ids) == words
    assert next(lengths) == steps + 1


def test_translation_ends_at_its_own_limit():
    model = make(eos=-30.0)  # it would never end by itself
    search = Search(max_ratio=1.5, max_extra=1, seed=0)
    for found in (
        greedy(model, SOURCES, search),
        [rows[0] for rows in beam_search(model, SOURCES, search)],
        [rows[0] for rows in sample(model, SOURCES, search)],
    ):
        wanted = [max(1, math.floor(1.5 * len(source) + 1)) - 1 for source in SOURCES]
        assert [len(each.ids) for each in found] == wanted
        assert all(each.log_prob < -20 for each in found)  # the <eos> has its price


def test_n_best_gives_fewer_if_there_are_fewer():
    search = Search(beam_size=9, n_best=9, max_ratio=0.0, max_extra=2)
    (found,) = beam_search(make(), [[3, 2]], search)
    assert {each.ids for each in found} == {(), (3,), (4,), (5,)}
    (found,) = beam_search(make(), [[3, 2]], replace(search, max_extra=0))
    assert [each.ids for each in found] == [()]


# -- batches, caches, layers ----------------------------------------------------------------------


def test_batching_does_not_change_the_result():
    model = make(1, eos=-1.0)
    search = Search(beam_size=3, n_best=3, max_extra=6)
    together = beam_search(model, SOURCES, search)
    same([beam_search(model, [source], search)[0] for source in SOURCES], together)
    few = replace(search, batch_tokens=8)
    same(beam_search(model, SOURCES, few), together)
    width = max(map(len, SOURCES)) + 2
    rows = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in SOURCES])
    same(beam_search(model, rows, search), together)


@pytest.mark.parametrize("find", [beam_search, sample])
def test_number_of_scores_of_a_step_is_bounded(find, monkeypatch):
    """However short the sentences: B x K x V stays below batch_tokens * SCORES_PER_TOKEN."""
    model, sources = make(1, eos=-1.0), [[3, 2], [4, 2], [5, 2]] * 10
    search = Search(beam_size=3, n_best=3, seed=1, max_extra=3, batch_tokens=64)
    whole, sizes = find(model, sources, search), []
    monkeypatch.setattr(decoding_module, "SCORES_PER_TOKEN", 2)
    with cached_head(model) as head:

        def spied(hidden: Tensor) -> Tensor:
            sizes.append(head(hidden).numel())
            return head(hidden)

        parts = find(model, sources, search, head=spied)
    assert 7 * 3 * V == max(sizes) <= 64 * 2 < 8 * 3 * V
    same(parts, whole)


@pytest.mark.parametrize(("beam", "alpha"), [(1, 0.0), (3, 0.6), (8, 0.6)])
def test_replayed_steps_are_the_same(beam, alpha, monkeypatch):
    """In fixed room that grows twice, with sentences that leave; without a device, no graph."""
    monkeypatch.setattr(beam_search_module, "INITIAL_CAPACITY", 4)
    monkeypatch.setattr(beam_search_module, "CHECK_DONE_EVERY", 4)
    search = Search(beam_size=beam, n_best=beam, length_penalty=alpha, max_extra=11)
    for seed, eos in ((2, -1.0), (3, -6.0)):
        model = make(seed, eos=eos)
        plain, replayed = (
            beam_search(model, SOURCES, replace(search, graph=graph)) for graph in (False, True)
        )
        same(plain, replayed)


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_graphs_are_the_same_on_a_gpu(autocast, monkeypatch):
    monkeypatch.setattr(beam_search_module, "INITIAL_CAPACITY", 8)
    model = make(2, eos=-4.0).float().cuda()
    for beam in (1, 4):
        plain, replayed = (
            beam_search(
                model,
                SOURCES,
                Search(beam_size=beam, max_extra=40, graph=graph, autocast=autocast),
            )
            for graph in (False, None)
        )
        for a, b in zip(plain, replayed, strict=True):
            assert a[0].ids == b[0].ids
            assert a[0].score == pytest.approx(b[0].score, abs=1e-3 if autocast is None else 0.1)


def test_only_layers_that_fold_are_replayed():
    model = make(4, built("mixture"))
    with pytest.raises(ValueError, match="graph"):
        beam_search(model, SOURCES, Search(graph=True))


@pytest.mark.parametrize("name", LAYERS)
def test_any_layer_is_searched_exactly(name):
    model = make(4, built(name))
    found = beam_search(model, [[3, 4, 2]], replace(SHORT, beam_size=ALL, n_best=ALL))
    same(found, [exhaustive(model, [3, 4, 2], 0.6)])


@pytest.mark.parametrize(
    "layer",
    [DeepResidual, lambda e: DualNonlinear(e, joint_size=5), built("mixture")],
    ids=["deep residual", "dual", "mixture"],
)
def test_labels_are_encoded_once_for_all_steps_and_calls(layer, calls_of):
    model = make(layer=layer)
    matrix = model.layer.layer if isinstance(model.layer, MixtureOfSoftmaxes) else model.layer
    encoded = calls_of(matrix, "labels")
    expected = beam_search(model, SOURCES, SHORT)
    assert len(encoded) == 1
    with cached_head(model) as head:
        for i, source in enumerate(SOURCES):
            same(beam_search(model, [source], SHORT, head=head), [expected[i]])
            greedy(model, [source], SHORT, head=head)
            sample(model, [source], SHORT, head=head)
    assert len(encoded) == 2


def test_model_comes_back_as_it_was():
    model = make()
    model.layer.eval()
    before = [(name, module.training) for name, module in model.named_modules()]
    beam_search(model, SOURCES, SHORT)
    sample(model, SOURCES, SHORT)
    assert [(name, module.training) for name, module in model.named_modules()] == before
    assert beam_search(model, [], SHORT) == sample(model, [], SHORT) == []


# -- samples --------------------------------------------------------------------------------------


def test_samples_have_the_probabilities_of_the_model():
    model, n = make(1), 4000
    (found,) = sample(model, [[3, 4, 2]], replace(SHORT, n_best=n, seed=0))
    counts: dict[tuple[int, ...], int] = {}
    for each in found:
        counts[each.ids] = counts.get(each.ids, 0) + 1
    # At the limit a sample must end, whatever that costs; its first word is drawn freely.
    model.eval()
    with torch.no_grad():
        p = model.log_probs(torch.tensor([[3, 4, 2]]), torch.tensor([[BOS]]))[0, 0].exp()
    p = p[[EOS, *WORDS]] / p[[EOS, *WORDS]].sum()
    for y, share in zip((EOS, *WORDS), p.tolist(), strict=True):
        hits = sum(c for ids, c in counts.items() if (ids[0] if ids else EOS) == y)
        assert hits / n == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n))


def test_sample_has_the_log_probability_of_the_model():
    model = make(eos=-1.0)
    found = sample(model, SOURCES, replace(SHORT, n_best=4, temperature=2.0, top_k=3, seed=1))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        for each in hypotheses:
            assert [each.log_prob] == pytest.approx(log_probs(model, source, [each.ids]), abs=1e-10)
            assert each.score == each.log_prob


def test_seeded_samples_do_not_depend_on_their_number_or_batch():
    model = make(eos=-2.0)
    search = Search(n_best=3, seed=7, max_extra=8)
    found = sample(model, SOURCES, search)
    again = sample(model, SOURCES, replace(search, batch_tokens=5))
    same(again, found)
    single = sample(model, SOURCES, replace(search, n_best=1))
    same(single, [rows[:1] for rows in found])
    ids = {each.ids for rows in found for each in rows}
    assert len(ids) > 5  # they are no copies
    assert found != sample(model, SOURCES, replace(search, seed=8))
    unseeded = [sample(model, SOURCES, replace(search, seed=None)) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_tiny_temperature_top_k_1_and_tiny_top_p_are_greedy():
    model = make(eos=-1.0)
    wanted = [each.ids for each in greedy(model, SOURCES, SHORT)]
    for options in ({"temperature": 1e-9}, {"top_k": 1}, {"top_p": 1e-9}):
        found = sample(model, SOURCES, replace(SHORT, seed=3, **options))
        assert [rows[0].ids for rows in found] == wanted


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"n_best": 5}, "n_best must be at most beam_size 4"),
        ({"beam_size": 0}, "beam_size (must be|is)"),
        ({"n_best": 0}, "n_best (must be|is)"),
        ({"top_k": 0}, "top_k (must be|is)"),
        ({"max_ratio": -1.0}, r"max_ratio .*must be .*-1\.0"),
        ({"batch_tokens": 0}, "batch_tokens .*must be .*0"),
    ],
)
def test_invalid_options_raise(options, fault):
    with pytest.raises(ValueError, match=fault):
        beam_search(make(), SOURCES, replace(SHORT, **options))


@pytest.mark.parametrize(
    ("sources", "fault"),
    [([[3], [4, V]], f"id {V} of sentence 1"), (torch.tensor([3, 4]), "shape")],
)
def test_invalid_sources_raise(sources, fault):
    with pytest.raises(DataError, match=fault):
        beam_search(make(), sources)


def test_nan_and_impossible_end_raise():
    model = make()
    with torch.no_grad():
        model.transformer.decoder[1].feedforward.output.bias[0] = math.nan
    for find in (greedy, beam_search, sample):
        with pytest.raises(FloatingPointError, match="NaN for a probability at token 1"):
            find(model, SOURCES, SHORT)
    endless = make(eos=-math.inf)
    with pytest.raises(FloatingPointError, match=r"no translation of sentence \d ends"):
        beam_search(endless, SOURCES, SHORT)
    with pytest.raises(FloatingPointError, match="0 for all that may be written"):
        sample(endless, SOURCES, SHORT)
