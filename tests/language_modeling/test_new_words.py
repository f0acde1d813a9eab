"""Label sources in runs: train, resume, load, fold; new and held-out words."""

import math

import numpy as np
import pytest
import torch

from drill.data import UNK
from drill.errors import DataError, SettingsError
from drill.language_modeling.build import finetune_settings
from drill.language_modeling.evaluation.held_out import held_out_run, score_held_out
from drill.language_modeling.run import LanguageModelRun, load_language_model
from drill.layers.label_source import label_vectors
from drill.tasks import train
from drill.training.run.folder import RunFolder
from tests.helpers import wordnet
from tests.helpers.language_models import small_settings, weights

STEMS = ("lamp", "boat", "sea", "light", "walk", "rope", "sand", "wind")
WORDS = [*STEMS, *(f"{stem}s" for stem in STEMS), "in", "the"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    dice = np.random.default_rng(0)
    (folder / "text").mkdir()
    for split, lines in {"train": 60, "valid": 20, "test": 20}.items():
        text = "".join(" ".join(dice.choice(WORDS, 6)) + "\n" for _ in range(lines))
        (folder / "text" / f"{split}.txt").write_text(text)
    wordnet.write(folder / "wordnet")
    return folder


@pytest.fixture(autouse=True)
def surroundings(workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("DRILL_WORDNET", str(workspace / "wordnet"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settings(workspace, *changes, name="ptb-drill-2"):
    changes = ("training.epochs=1", "optimizer.lr=1", *changes)
    return small_settings(workspace / "text", *changes, name=name)


def trained(workspace, *changes, **options) -> LanguageModelRun:
    folder = workspace / "-".join(["run", *changes])
    if not folder.exists():
        train(settings(workspace, *changes, **options), folder, device="cpu", quiet=True)
    return load_language_model(folder, device="cpu")


BOTH = ("labels.source=characters+gloss",)
SOURCES = [
    ("labels.source=characters",),
    ("labels.source=gloss", "labels.free_row=true"),
    BOTH,
    (*BOTH, "training.augmented=0.1"),
]
MIXTAPE = (*BOTH, "layer.name=mixtape", "layer.inner.name=tied")  # has gates for every word


@pytest.mark.parametrize("changes", SOURCES, ids=str)
def test_a_run_with_a_label_source_is_loaded_and_folded(workspace, changes):
    run = trained(workspace, *changes)
    assert run.model.encoder.embedding is run.model.layer.embedding
    assert math.isfinite(run.perplexity("test").loss)
    assert run.generate("the", max_new_tokens=3, seed=1)
    hidden = torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(run.model.layer.fold()(hidden), run.model.layer.logits(hidden))


def test_more_epochs_need_no_dictionary(workspace, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("whole", "parts")]
    train(settings(workspace, *BOTH, "training.epochs=2"), folders[0], device="cpu", quiet=True)
    train(settings(workspace, *BOTH), folders[1], device="cpu", quiet=True)
    monkeypatch.setenv("DRILL_WORDNET", "/nowhere")
    train(settings(workspace, *BOTH, "training.epochs=2"), folders[1], device="cpu", quiet=True)
    whole, parts = (weights(RunFolder(folder).best) for folder in folders)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    tuned = finetune_settings(folders[0])
    assert train(tuned, tmp_path / "tuned", device="cpu", quiet=True).finished


@pytest.mark.parametrize("changes", [*SOURCES, MIXTAPE], ids=str)
def test_a_new_word_gets_a_vector_and_is_saved(workspace, changes, tmp_path):
    run = trained(workspace, *changes)
    before = label_vectors(run.model.encoder.embedding).detach()
    words = {"boating": "ride in a small vessel", "lamplight": "visible light"}
    if "gloss" not in changes[0]:
        with pytest.raises(SettingsError, match="descriptions"):  # which it cannot read
            run.add_words(words)
        words = dict.fromkeys(words, "")
    added = run.add_words(words)
    vectors = label_vectors(added.model.encoder.embedding).detach()
    assert torch.equal(vectors[:-2], before)
    assert vectors[-2:].abs().sum(1).min() > 0
    assert len(run.vocabulary) == len(added.vocabulary) - 2 == len(before)
    added.save(tmp_path / "added")
    loaded = load_language_model(tmp_path / "added", device="cpu")
    torch.testing.assert_close(label_vectors(loaded.model.encoder.embedding), vectors)
    line = "the boating lamplight"
    assert loaded.score([line]) == added.score([line])
    assert not loaded.score([line])[0].unknown
    assert math.isfinite(loaded.perplexity("test").loss)


def test_words_that_cannot_be_added(workspace):
    with pytest.raises(SettingsError, match=r"labels\.source"):
        trained(workspace).add_words({"boating": ""})
    with pytest.raises(SettingsError, match="FullSoftmax"):
        trained(workspace, "layer.name=full", *BOTH, name="ptb-tied").add_words({"boating": ""})
    run = trained(workspace, *BOTH)
    with pytest.raises(DataError, match="boat"):
        run.add_words({"boat": ""})
    with pytest.raises(DataError, match="zyx"):
        run.add_words({"zyx": "qwrt"})
    with pytest.raises(DataError, match="two words"):
        run.add_words({"two words": "no word of a text"})


@pytest.mark.parametrize("changes", [(), BOTH], ids=str)
def test_scores_of_held_out_words(workspace, changes):
    held_out = ("data.held_out=3", "data.held_out_min_count=1", "data.held_out_max_count=1000")
    run = trained(workspace, *held_out, *changes)
    words = run.vocabulary.held_out
    assert len(words) == 3
    added = held_out_run(run)
    ids = torch.from_numpy(added.ids.test.astype(np.int64))
    found = score_held_out(run, added, ids, batch_size=1)
    with torch.no_grad():
        log_probs = added.model.log_probs(ids[:-1, None])[0][:, 0]
        unknown, base = run.vocabulary.ids[UNK], len(run.vocabulary)
        read = ids.where(ids < base, unknown)
        backoff = run.model.log_probs(read[:-1, None])[0][:, 0, unknown] - math.log(3)
    new = ids[1:] >= base
    losses = -log_probs.gather(1, ids[1:, None])[:, 0]
    ranks = (log_probs > -losses[:, None]).sum(1) + ((log_probs == -losses[:, None]).sum(1) + 1) / 2
    assert found.labels.tokens == new.sum() > 5
    for value, expected in (
        (found.labels.loss, losses[new].mean()),
        (found.labels.rank, ranks[new].double().mean()),
        (found.labels.mass, log_probs[new, base:].exp().sum(1).mean()),
        (found.mass_elsewhere, log_probs[~new, base:].exp().sum(1).mean()),
        (found.text.loss, losses.mean()),
        (found.labels.among, (log_probs[new, base:].logsumexp(1) + losses[new]).mean()),
        (found.backoff.among, torch.tensor(3.0).log()),
        (found.backoff.loss, -backoff[new].mean()),
        (found.backoff.mass, backoff[new].exp().mean() * 3),
    ):
        assert value == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(SettingsError, match="held"):
        held_out_run(trained(workspace))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (("labels.free_row=true",), "labels.free_row"),
        (("labels.source=pictures",), "labels.source"),
    ],
)
def test_wrong_settings(workspace, changes, key):
    with pytest.raises(SettingsError) as error:
        settings(workspace, *changes)
    assert error.value.key == key
