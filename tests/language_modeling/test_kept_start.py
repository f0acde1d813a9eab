"""Where lines begin is worked out once for a model, and never taken for another's."""

import gc

import pytest
import torch
from torch import nn

from drill.data import EOS
from drill.language_modeling import kept_start as module
from drill.language_modeling.generation import generate
from drill.language_modeling.kept_start import kept_start
from drill.language_modeling.line_start import line_start
from drill.language_modeling.scoring import score
from drill.training.run import checkpoint
from tests.language_modeling.models import bits, language_model
from tests.translation.words import VOCABULARY, WORDS

END = WORDS.index(EOS)


def parts(state):
    return [part for layer in state for part in layer]


def same(one, other) -> bool:
    return all(map(torch.equal, parts(one), parts(other)))


@pytest.fixture
def made(monkeypatch):
    """How often it was worked out."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return line_start(*arguments)

    monkeypatch.setattr(module, "line_start", counted)
    return calls


def test_it_is_worked_out_once_while_a_model_lives(made):
    model = language_model("tied")
    truth, before = line_start("test", model, END), bits(model)
    for _ in range(2):
        list(generate(model, VOCABULARY, tokens=2, seed=0))
        list(score(model, VOCABULARY, ["the sea"]))
    found = kept_start("test", model, END)
    torch.testing.assert_close(parts(found), parts(truth))
    parts(found)[0].zero_()  # the caller's own
    assert not same(kept_start("test", model, END), found)
    assert len(made) == 1
    assert bits(model) == before
    held = len(module._in_memory)
    del model, made[:]
    gc.collect()
    assert len(module._in_memory) < held  # it keeps no model alive


@pytest.mark.parametrize("unseen", [False, True])
def test_other_weights_begin_elsewhere(made, unseen):
    model = language_model("tied")
    before = kept_start("test", model, END)
    weight = model.layer.bias.data if unseen else model.layer.bias  # autograd does not count these
    with torch.no_grad():
        weight[END] += 5.0
    after = kept_start("test", model, END)
    assert len(made) == 2
    assert not same(after, before)
    assert same(after, line_start("test", model, END))


def test_a_file_tells_the_next_process(made, tmp_path):
    file = tmp_path / "start.safetensors"
    first = kept_start("test", language_model("tied"), END, file)
    assert same(kept_start("test", language_model("tied"), END, file), first)
    assert len(made) == 1
    assert not same(kept_start("test", language_model("bilinear"), END, file), first)
    kept_start("test", language_model("tied"), END, file)  # whose place the other took
    assert len(made) == 3


def test_a_file_has_a_state_for_every_number_of_threads(made, tmp_path, monkeypatch):
    file = tmp_path / "start.safetensors"
    for threads in (1, 2, 1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        kept_start("test", language_model("tied"), END, file)
    assert len(made) == 2
    for threads in range(3, 3 + module.MACHINES):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        kept_start("test", language_model("tied"), END, file)
    tensors, _ = checkpoint.load(file)
    assert len({name.split("/")[0] for name in tensors}) == module.MACHINES


def test_another_version_of_drill_makes_its_own(made, tmp_path, monkeypatch):
    file = tmp_path / "start.safetensors"
    kept_start("test", language_model("tied"), END, file)
    monkeypatch.setattr(module, "__version__", "another")
    kept_start("test", language_model("tied"), END, file)
    assert len(made) == 2


@pytest.mark.parametrize("how", ["hook", "forward"])
def test_what_hooks_do_is_never_kept(made, tmp_path, how):
    file = tmp_path / "start.safetensors"
    model = language_model("tied")
    before = kept_start("test", model, END, file)
    plain = model.encoder.forward

    def moved(encoded):
        state = tuple(tuple(part + 1 for part in layer) for layer in encoded.state)
        return encoded._replace(state=state)

    if how == "hook":
        model.encoder.register_forward_hook(lambda *given: moved(given[-1]))
    else:
        model.encoder.forward = lambda *given: moved(plain(*given))
    raw = file.read_bytes()
    after = kept_start("test", model, END, file)
    assert not same(after, before)
    assert same(after, kept_start("test", model, END, file))
    assert len(made) == 3
    assert file.read_bytes() == raw


def test_classes_of_others_leave_no_file(made, tmp_path):
    """Their code may be another in the next process."""

    class Mine(nn.Dropout):
        pass

    model = language_model("tied")
    model.add_module("mine", Mine())
    for _ in range(2):
        kept_start("test", model, END, tmp_path / "start.safetensors")
    assert len(made) == 1  # memory has it
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "folder"])
def test_a_file_that_cannot_be_used_is_made_again(made, tmp_path, damage):
    file = tmp_path / "start.safetensors"
    first = kept_start("test", language_model("tied"), END, file)
    raw = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()  # nor can it be written
    elif damage != "gone":
        file.write_bytes(raw[: len(raw) // 2] if damage == "cut" else b"")
    assert same(kept_start("test", language_model("tied"), END, file), first)
    assert len(made) == 2
    if damage != "folder":  # it is whole again
        assert same(kept_start("test", language_model("tied"), END, file), first)
        assert len(made) == 2


def test_nothing_is_kept_of_a_model_that_gives_nan(tmp_path):
    model = language_model("tied")
    with torch.no_grad():
        model.layer.bias[0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"^score: the model gives NaN"):
        kept_start("score", model, END, tmp_path / "start.safetensors")
    assert list(tmp_path.iterdir()) == []
