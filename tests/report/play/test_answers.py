"""What the page shows of runs agrees with the public functions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from drill.errors import DataError
from drill.report.play import answers
from drill.report.play.answers import LanguageModelPlayer


def test_next_words_are_those_of_generate(models):
    answer = answers.next_words(models, "lamp is\nthe boat")
    for order, player in enumerate(models):
        likely = max(answer["words"], key=lambda row: row["p"][order])["word"]
        greedy = player.run.generate("lamp is\nthe boat", max_new_tokens=1, temperature=0.0)
        assert greedy.removeprefix("lamp is\nthe boat").strip() == likely.replace("<eos>", "")
        assert player.next_probabilities("lamp is").sum() == pytest.approx(1.0)
    assert answer["unknown"] == [["the"], ["the"]]


def test_words_that_differ_most_come_first(models):
    different = answers.next_words(models, "lamp is")["different"]
    changes = [abs(b - a) for a, b in (row["p"] for row in different)]
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > 0
    assert answers.next_words(models[:1], "lamp is")["different"] == []


def test_a_prefix_read_in_steps_gives_the_same_probabilities(models):
    """Also after another prefix, and for the same one twice."""
    player = LanguageModelPlayer("again", models[0].run)
    for prefix in ("sea", "sea is", "sea is lit", "sea is lit", "boat", "sea is lit"):
        steps = player.next_probabilities(prefix)
    player.last_prefix = None
    np.testing.assert_allclose(steps, player.next_probabilities("sea is lit"), rtol=1e-5)


def test_a_long_prefix_is_an_error(models):
    with pytest.raises(DataError, match="at most 499"):
        models[0].next_probabilities("sea " * 500)


def test_losses_of_words_are_those_of_score(models):
    text = "lamp is lit\n\nthe unheard-of boat"
    answer = answers.score_text(models, text)
    assert answer["lines"] == [
        ["lamp", "is", "lit", "<eos>"],
        ["the", "unheard-of", "boat", "<eos>"],
    ]
    for player, found in zip(models, answer["runs"], strict=True):
        scored = player.run.score(["lamp is lit", "the unheard-of boat"])
        for line, expected in zip(found["lines"], scored, strict=True):
            assert line == pytest.approx([-x for x in expected.log_probs], rel=1e-4)
        assert found["counts"][1][:2] == [None, None]
        assert sum(band["tokens"] for band in found["bands"]) == 4
        assert found["tokens"] == 8


def test_neighbours_of_a_word_are_by_cosine_in_labels(models):
    tied, deep = answers.look_up(models, "boat")
    assert tied["embedding"] == tied["output"]
    assert deep["embedding"] != deep["output"]
    assert "boat" not in [word for word, _ in deep["output"]]
    player = models[1]
    labels = player.run.model.layer.labels().detach()
    labels -= labels.mean(0)
    cosine = F.cosine_similarity(labels[player.vocabulary.ids["boat"]][None], labels)
    word, value = deep["output"][0]
    assert value == pytest.approx(cosine[player.vocabulary.ids[word]].item(), abs=1e-3)
    assert value == pytest.approx(cosine.topk(2).values[1].item(), abs=1e-3)
    assert deep["count"] == player.vocabulary.counts[player.vocabulary.ids["boat"]]


def test_an_unknown_word_has_no_neighbours(models):
    assert answers.look_up(models[:1], "zebra") == [{"label": "zebra", "count": None}]
    with pytest.raises(DataError, match="word"):
        answers.look_up(models, "two words")


def test_translations_have_scores_attention_and_marked_differences(translators):
    answer = answers.translate_text(translators, "a b c\nb a", beam_size=3, n_best=2)
    assert answer["lines"] == ["a b c", "b a"]
    for lines, player in zip(answer["runs"], translators, strict=True):
        assert [each["translations"][0]["text"] for each in lines] == player.run.translate(
            answer["lines"], beam_size=3
        )
        for each in lines:
            scores = [found["score"] for found in each["translations"]]
            assert len(scores) == 2
            assert scores == sorted(scores, reverse=True)
            assert [w for w, _ in each["marked"]] == each["translations"][0]["text"].split()


def test_attention_is_what_the_model_attends_with(translators, monkeypatch):
    """Of the one layer: weights times values are what the fused kernel gives."""
    from drill.models.transformer import attention

    seen, real = [], attention.fused_attention

    def fused_attention(q, k, v, mask, dropout):
        weights = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (0 if mask is None else mask)
        out = real(q, k, v, mask, dropout)
        if q.shape[2] != k.shape[2]:
            weights = weights.softmax(-1)
            torch.testing.assert_close(weights @ v, out)
            seen.append(weights[0].mean(0))
        return out

    monkeypatch.setattr(attention, "fused_attention", fused_attention)
    found = translators[0].attention("a b c d e", "a")
    np.testing.assert_allclose(np.array(found["weights"]), seen[0].numpy(), atol=1e-3)
    assert seen[0].shape == (len(found["target"]), len(found["source"]))
    assert translators[0].attention("", "a") is None
    assert not any(m._forward_pre_hooks for m in translators[0].run.model.modules())


def test_differences_mark_the_words_that_the_other_lacks():
    ours, theirs = answers._differences("a b c", "a x c d")
    assert ours == [["a", False], ["b", True], ["c", False]]
    assert theirs == [["a", False], ["x", True], ["c", False], ["d", True]]


# -- language models of subwords ------------------------------------------------------------------


def test_next_subwords_have_marks_and_the_text_that_goes_on(subword_models):
    player = subword_models[0]
    answer = answers.next_words(subword_models, "boat is ")
    assert "".join(answer["read"]) == "boat▁is"
    marked = [row for row in answer["words"] if row["word"].startswith("▁")]
    assert marked
    texts = {row["word"]: row["text"] for row in marked}
    assert texts.pop("▁", None) is None  # a space alone is not read at the end of a text
    assert all(text == word.replace("▁", " ") for word, text in texts.items())
    likely = max(answer["words"], key=lambda row: row["p"][0])
    greedy = player.run.generate("boat is", max_new_tokens=1, temperature=0.0)
    assert greedy == "boat is" + likely["word"].replace("▁", " ").replace("<eos>", "\n")
    half = player.vocabulary.bytes_of.index("é".encode()[:1])
    assert answers._shown(player, player.vocabulary.words[half])["text"] is None


def test_losses_of_subwords_are_those_of_score(subword_models):
    answer = answers.score_text(subword_models, "lamp is lit\n\nzé  boat")
    assert "".join(answer["lines"][0]) == "lamp▁is▁lit<eos>"
    for player, found in zip(subword_models, answer["runs"], strict=True):
        scored = player.run.score(["lamp is lit", "zé  boat"])
        for line, counts, expected in zip(found["lines"], found["counts"], scored, strict=True):
            assert line == pytest.approx([-x for x in expected.log_probs], rel=1e-4)
            assert len(counts) == len(line)
        nats = -sum(each.log_prob for each in scored)
        assert found["bits_per_byte"] == pytest.approx(nats / np.log(2.0) / 22, rel=1e-4)
    assert [len(line) for line in answer["lines"]] == [len(each) for each in found["lines"]]


def test_subwords_of_a_language_model_are_looked_up(subword_models):
    (found,) = answers.look_up(subword_models[:1], "boats")
    _, *rest = found["subwords"]
    assert "".join(found["subwords"]) == "▁boats"
    assert rest
    (exact,) = answers.look_up(subword_models[:1], rest[-1], exact=True)
    assert exact["label"] == rest[-1]
    assert answers.look_up(subword_models[:1], "boats", exact=True)[0]["count"] is None


def begun(folder: Path, corpus: str = "ptb") -> Path:
    """A run that has just been started."""
    folder.mkdir()
    text = f'[data]\ncorpus = "{corpus}"\n[layer]\nname = "tied"\n'
    (folder / "recipe.toml").write_text(text)
    return folder


def test_curves_grow_with_the_metrics(tmp_path):
    run = begun(tmp_path / "young")
    assert answers.curves([tmp_path])["runs"][0]["points"] == []
    with (run / "metrics.jsonl").open("a") as metrics:
        first = {"kind": "step", "epoch": 1, "step": 5, "train_perplexity": 70.0}
        metrics.write(json.dumps(first) + "\n")
        for step, valid in ((10, 50.5), (20, "nan")):
            row = {"kind": "epoch", "epoch": step // 10, "step": step, "valid_perplexity": valid}
            metrics.write(json.dumps(row) + "\n")
    (shown,) = answers.curves([tmp_path])["runs"]
    assert (shown["name"], shown["finished"], shown["best"]) == ("young", False, 50.5)
    assert shown["points"] == [(10, 50.5), (20, None)]
    assert shown["train"] == [(5, 70.0)]


def test_curves_of_given_runs_are_of_their_corpus(tmp_path):
    for name, corpus in (("a", "ptb"), ("b", "bible"), ("c", "ptb")):
        begun(tmp_path / name, corpus)
    found = answers.curves([tmp_path], [tmp_path / "c"])["runs"]
    assert [run["name"] for run in found] == ["c", "a"]
    assert len(answers.curves([tmp_path])["runs"]) == 3


def test_curves_show_each_run_of_a_folder_once(workspace):
    found = answers.curves([workspace / "runs", workspace / "runs"])["runs"]
    assert sorted(each["name"] for each in found) == ["tied", "tiny"]
    assert all(each["finished"] and each["points"] for each in found)
