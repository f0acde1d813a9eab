"""Kernels that waited in vain: every evaluation that finds NaN says so, once, and keeps nothing."""

import json

import pytest
import torch

from drill.errors import DrillError
from drill.kernels.lstm.persistent import recurrence as lstm_persistent
from drill.kernels.lstm.persistent.recurrence import Stalled
from drill.language_modeling.cache_pointer import cache_perplexity, cache_search
from drill.language_modeling.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.generation import generate
from drill.language_modeling.gradient_statistics import gradient_statistics
from drill.language_modeling.perplexity import perplexity, token_losses
from drill.language_modeling.scoring import score
from tests.language_modeling.models import language_model, text
from tests.language_modeling.words import VOCABULARY

EVALUATIONS = {
    "perplexity": lambda model: perplexity(model, text(50)),
    "token_losses": lambda model: token_losses(model, text(50)),
    "cache_perplexity": lambda model: cache_perplexity(model, text(50)),
    "cache_search": lambda model: cache_search(model, text(50)),
    "gradient_statistics": lambda model: gradient_statistics(model, text(50), batch_size=4),
    "score": lambda model: list(score(model, VOCABULARY, ["the sea"])),
    "generate": lambda model: next(generate(model, VOCABULARY)),
}


@pytest.fixture
def flag(monkeypatch):
    """Set, as a launch that gave up leaves it."""
    flag = torch.ones(1, dtype=torch.int32)
    monkeypatch.setattr(lstm_persistent, "_flags", {0: flag})
    return flag


@pytest.mark.parametrize("name", EVALUATIONS)
def test_nan_of_a_stall_is_told_as_one_and_later_nan_is_not(name, flag):
    model = language_model()
    with torch.no_grad():
        model.encoder.embedding.weight.fill_(torch.nan)
    with pytest.raises(Stalled, match=rf"^{name}: .*waited in vain for room on the GPU") as caught:
        EVALUATIONS[name](model)
    assert isinstance(caught.value, DrillError)
    assert not flag.any()
    with pytest.raises((FloatingPointError, ValueError), match=f"^{name}: .* NaN"):
        EVALUATIONS[name](model)


def test_a_stall_is_not_taken_for_steps_that_are_too_long(flag):
    model = language_model("tied")
    statistics = gradient_statistics(model, text(100), batch_size=4)
    with pytest.raises(Stalled, match=r"^dynamic_perplexity: .*waited in vain"):
        dynamic_perplexity(model, text(60), statistics, lr=1e308)
    with pytest.raises(FloatingPointError, match="smaller lr"):
        dynamic_perplexity(model, text(60), statistics, lr=1e308)


def test_a_search_keeps_no_cell_of_a_stall(flag, tmp_path):
    model, path = language_model("tied"), tmp_path / "search.json"
    statistics = gradient_statistics(model, text(100), batch_size=4)
    tried = {"lrs": [1e-5, 1e308], "lambs": [0.0], "file": path}
    with pytest.raises(Stalled):
        dynamic_search(model, text(60), statistics, **tried)
    (kept,) = json.loads(path.read_text())["searches"].values()
    assert len(kept) == 1
    found = dynamic_search(model, text(60), statistics, **tried)
    assert [cell.result is None for cell in found.cells] == [False, True]


@pytest.mark.gpu
def test_a_launch_that_finds_no_room_is_told(monkeypatch):
    """Each launch finds marks where the initial state should be, and waits until it gives up."""
    reason = lstm_persistent.supported(torch.device("cuda", 0), 6)
    if reason:
        pytest.skip(reason)
    model = language_model("tied", torch.float32).cuda()
    sound = perplexity(model, text(200), autocast=torch.bfloat16)
    whole = lstm_persistent._forward_kernel

    def unfed(*given):
        def launch(blocks, threads, arguments):
            steps, words = arguments[7], arguments[3].view(torch.int16)
            marks = torch.full_like(words.expand(steps, -1, -1), lstm_persistent.EMPTY)
            whole(*given)(blocks, threads, [*arguments[:3], marks.contiguous(), *arguments[4:]])

        return launch

    with monkeypatch.context() as patch:
        patch.setattr(lstm_persistent, "_forward_kernel", unfed)
        with pytest.raises(Stalled, match="waited in vain"):
            perplexity(model, text(200), autocast=torch.bfloat16)
    assert not lstm_persistent.stalled()
    assert perplexity(model, text(200), autocast=torch.bfloat16) == sound
