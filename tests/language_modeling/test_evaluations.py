"""What all evaluations share: the model is left as it was, progress, NaN, stalled kernels."""

import json

import pytest
import torch

from drill.errors import DrillError
from drill.kernels.runtime import stalls
from drill.kernels.runtime.stalls import Stalled
from drill.language_modeling.evaluation import cache_pointer
from drill.language_modeling.evaluation.cache_pointer import cache_perplexity, cache_search
from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.evaluation.gradient_statistics import gradient_statistics
from drill.language_modeling.evaluation.perplexity import perplexity, token_losses
from drill.language_modeling.generation import generate
from drill.language_modeling.scoring import line_start, score
from tests.language_modeling.models import VOCABULARY, bits, language_model, measured, text
from tests.layers.table import V


def adapted(model, **options):
    statistics = gradient_statistics(model, text(50), batch_size=4)
    return dynamic_perplexity(model, text(50), statistics, lr=0.02, decay=0.3, **options)


OF_A_TEXT = {
    "perplexity": lambda model, **options: perplexity(model, text(50), batch_size=1, **options),
    "token_losses": lambda model, **options: token_losses(model, text(50), **options),
    "cache_perplexity": lambda model, **options: cache_perplexity(model, text(50), **options),
    "cache_search": lambda model, **options: cache_search(model, text(50), **options),
    "gradient_statistics": lambda model, **options: gradient_statistics(
        model, text(50), batch_size=1, **options
    ),
    "dynamic_perplexity": adapted,
}
SEGMENT = dict.fromkeys(("perplexity", "token_losses"), "bptt")
SEGMENT |= dict.fromkeys(("gradient_statistics", "dynamic_perplexity"), "segment_length")
OF_LINES = {
    "score": lambda model: list(score(model, VOCABULARY, ["the sea"])),
    "generate": lambda model: list(generate(model, VOCABULARY, max_new_tokens=3, seed=0)),
    "line_start": lambda model: line_start("line_start", model, 2),
}
EVALUATIONS = OF_A_TEXT | OF_LINES


def model_state(model):
    """Bits, modes, and the random state of torch."""
    modes = [module.training for module in model.modules()]
    return bits(model), modes, torch.random.get_rng_state().tolist()


@pytest.mark.parametrize("name", ["deep residual 2", "mixture standard", "adaptive deep residual"])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_model_is_left_as_it_was(evaluation, name):
    model = language_model(name)
    model.layer.eval()  # different modes, as with a frozen part
    model.loss(*torch.randint(V, (2, 4, 3))).total.backward()
    gradients = [p.grad for p in model.parameters()]
    before, values = model_state(model), [grad.clone() for grad in gradients]
    with torch.no_grad():  # as a caller may have it
        EVALUATIONS[evaluation](model)
    assert model_state(model) == before
    assert all(p.grad is grad for p, grad in zip(model.parameters(), gradients, strict=True))
    assert all(map(torch.equal, gradients, values))


STREAMS = {
    "score": lambda model: score(model, VOCABULARY, ["the sea", "", "a lamp"], lines_per_block=1),
    "generate": lambda model: generate(model, VOCABULARY, max_new_tokens=5, seed=0),
}


@pytest.mark.parametrize("name", ["deep residual 2", "mixture standard", "adaptive deep residual"])
@pytest.mark.parametrize("stream", STREAMS)
def test_nothing_leaks_from_a_stream_that_is_half_read(stream, name):
    model = language_model(name)
    model.layer.eval()
    before, begun = model_state(model), STREAMS[stream](model)
    next(begun)
    assert torch.is_grad_enabled()
    assert model_state(model) == before
    whole = list(STREAMS[stream](model))  # no labels are cached
    with model.layer.shared_labels():
        pass
    assert list(begun) == whole[1:]
    assert model_state(model) == before


@pytest.mark.parametrize("evaluation", OF_A_TEXT)
def test_progress_reaches_the_end_and_may_interrupt(evaluation, monkeypatch):
    monkeypatch.setattr(cache_pointer, "CHUNK", 7)
    model, seen = language_model(), []
    options = {SEGMENT[evaluation]: 7} if evaluation in SEGMENT else {}
    options["progress"] = lambda *now: seen.append(now)
    OF_A_TEXT[evaluation](model, **options)
    done, totals = zip(*seen, strict=True)
    assert set(totals) == {49}
    assert list(done) == sorted(set(done))
    assert done[-1] == 49

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    before = model_state(model)
    with pytest.raises(KeyboardInterrupt):
        OF_A_TEXT[evaluation](model, progress=interrupt)
    assert model_state(model) == before
    OF_A_TEXT[evaluation](model)  # no labels are left cached


@pytest.fixture
def flag(monkeypatch):
    """Set, as a launch that gave up leaves it."""
    flag = torch.ones(1, dtype=torch.int32)
    monkeypatch.setattr(stalls, "_flags", {0: flag})
    return flag


@pytest.mark.parametrize("name", sorted(EVALUATIONS.keys() - {"dynamic_perplexity"}))
def test_nan_after_a_stall_raises_stalled_and_later_nan_does_not(name, flag):
    model = language_model()
    with torch.no_grad():
        model.encoder.embedding.weight.fill_(torch.nan)
    with pytest.raises(Stalled, match=f"^{name}: ") as caught:
        EVALUATIONS[name](model)
    assert isinstance(caught.value, DrillError)
    assert not flag.any()
    with pytest.raises((FloatingPointError, ValueError), match=f"^{name}: .* NaN"):
        EVALUATIONS[name](model)


def test_stall_is_not_taken_for_divergence(flag):
    model, statistics = measured("tied")
    before = bits(model)
    with pytest.raises(Stalled, match=r"^dynamic_perplexity: "):
        dynamic_perplexity(model, text(60), statistics, lr=1e308)
    with pytest.raises(FloatingPointError, match="smaller lr"):
        dynamic_perplexity(model, text(60), statistics, lr=1e308)
    assert bits(model) == before


def test_search_saves_no_cell_of_a_stall(flag, tmp_path):
    (model, statistics), path = measured("tied"), tmp_path / "search.json"
    tried = {"lrs": [1e-5, 1e308], "decays": [0.0], "file": path}
    with pytest.raises(Stalled):
        dynamic_search(model, text(60), statistics, **tried)
    (saved,) = json.loads(path.read_text())["searches"].values()
    assert len(saved) == 1
    found = dynamic_search(model, text(60), statistics, **tried)
    assert [cell.result is None for cell in found.cells] == [False, True]
