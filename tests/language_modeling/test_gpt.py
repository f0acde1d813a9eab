"""Language models of subwords with an encoder of transformers: from a text to bits per byte."""

import json
import math
import random

import numpy as np
import pytest
import torch

from drill import load
from drill.cli.app import app
from drill.data import DataError, SubwordVocabulary, Vocabulary, load_vocabulary, read_corpus
from drill.data.text.corpora import encode_text
from drill.language_modeling.build import language_model
from drill.language_modeling.evaluation.frequency_bands import SUBWORD_EDGES
from drill.report.results.ledger import record_run
from drill.training.device import meta_init
from drill.training.settings import recipe
from tests.helpers.workspaces import inside

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

RECIPE = """
base = "gpt-demo"

[data]
corpus = "text"
tokenizer = 290

[encoder]
embedding_dim = 16
layers = 2
heads = 2
intermediate_size = 32
context_length = 16

[optimizer]
lr = 0.01

[training]
epochs = 2
bptt = 12
batch_size = 4
"""
WORDS = ["lamp", "boat,", "sea", "Ähre", "is", "lit.", "日"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    from typer.testing import CliRunner

    folder = tmp_path_factory.mktemp("gpt")
    die = random.Random(0)
    (folder / "text").mkdir()
    for split, lines in {"train": 200, "valid": 20, "test": 20}.items():
        text = "\n".join(" ".join(die.choices(WORDS, k=5)) for _ in range(lines)) + "\n"
        (folder / "text" / f"{split}.txt").write_text(text, encoding="utf-8")
    (folder / "gpt.toml").write_text(RECIPE)
    with inside(folder):
        result = CliRunner().invoke(app, ["train", "gpt.toml", "--device", "cpu"])
        assert result.exit_code == 0, result.output
        assert "bits per byte" in result.output
    return folder


@pytest.fixture
def run(in_workspace):
    return load("runs/gpt", device="cpu")


def test_subwords_count_bytes_and_bring_the_text_back(workspace, run):
    vocabulary = run.vocabulary
    assert isinstance(vocabulary, SubwordVocabulary)
    text = (workspace / "text" / "test.txt").read_text("utf-8") + "x  \t🎉 <unk>\n\n"
    ids = encode_text(text, vocabulary)
    assert vocabulary.words[ids[0]] == "<eos>"
    assert "\n".join(vocabulary.decode(ids[1:])) + "\n" == text
    assert vocabulary.token_bytes[ids[1:]].sum() == len(text.encode())
    decode = vocabulary.writer(0)
    assert "".join(decode(each) for each in ids[1:]) == text
    train = (workspace / "text" / "train.txt").read_text("utf-8")
    assert (vocabulary.counts * vocabulary.token_bytes).sum() == len(train.encode())


def test_vocabulary_is_saved_in_the_run(workspace, run, tmp_path):
    assert load_vocabulary(workspace / "runs" / "gpt" / "vocabulary.json") == run.vocabulary
    file = tmp_path / "subwords.json"
    run.vocabulary.subwords.save(file)
    _, again = read_corpus("text", tokenizer=str(file))
    assert again == run.vocabulary
    words = Vocabulary(["<eos>", "a"], [1, 1])
    words.save(file)
    assert load_vocabulary(file) == words
    file.write_text('{"tokenizer": {}, "counts": []}')
    with pytest.raises(DataError, match=r"subwords\.json"):
        load_vocabulary(file)


# -- evaluation ------------------------------------------------------------------------------------


def test_bits_per_byte_by_hand(cli_output, workspace, run):
    out = cli_output("evaluate", "runs/gpt", "--split", "test", "--json", "--device", "cpu")
    row = json.loads(out)
    text = (workspace / "text" / "test.txt").read_text("utf-8")
    ids = torch.from_numpy(encode_text(text, run.vocabulary).astype(np.int64))
    nll = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 12):
            window = ids[start : start + 13]
            log_probs, _ = run.model.log_probs(window[:-1, None])
            nll -= float(log_probs[:, 0].gather(-1, window[1:, None]).sum(dtype=torch.float64))
    assert row["tokens"] == len(ids) - 1
    assert row["loss"] == pytest.approx(nll / (len(ids) - 1), rel=1e-5)
    assert row["bits_per_byte"] == pytest.approx(nll / math.log(2) / len(text.encode()), rel=1e-5)
    tested = run.folder.rows()[-1]
    assert tested["test_bits_per_byte"] == pytest.approx(row["bits_per_byte"], rel=1e-6)
    assert run.perplexity().bits_per_byte == pytest.approx(row["bits_per_byte"], rel=1e-6)
    out = cli_output("evaluate", "runs/gpt", "--text", "text/test.txt", "--device", "cpu")
    assert f"{row['bits_per_byte']:.4f} bits per byte" in out


def test_loss_by_frequency_of_subwords(cli_output, run):
    """In the test of training, `drill evaluate`, `drill analyse` and a ledger."""
    out = cli_output(
        "evaluate", "runs/gpt", "--split", "test", "--bands", "--json", "--device", "cpu"
    )
    row, tested = json.loads(out), run.folder.rows()[-1]
    assert [band["high"] for band in row["bands"]] == [*SUBWORD_EDGES, None]
    losses = run.token_losses(run.ids.test).double()
    targets, counts = run.ids.test[1:], run.vocabulary.counts
    for band, trained in zip(row["bands"], tested["test_bands"], strict=True):
        of = counts[targets]
        inside = (of >= band["low"]) & (of < (band["high"] or math.inf))
        inside &= targets != run.vocabulary.ids["<eos>"]
        assert band["tokens"] == inside.sum()
        assert band["loss"] == pytest.approx(float(losses[inside].sum()), rel=1e-5)
        assert trained == {**band, "loss": pytest.approx(band["loss"], rel=1e-5)}
    out = cli_output("analyse", "runs/gpt", "--no-rank", "--json", "--device", "cpu")
    (analysed,) = json.loads(out)["texts"]
    assert [band["high"] for band in analysed["losses"]["gpt"]] == [*SUBWORD_EDGES, None]
    bits = pytest.approx(row["bits_per_byte"], rel=0.05)  # B is 20
    assert analysed["bits_per_byte"] == {"gpt": bits}
    recorded = record_run(run.folder.path, "runs/ledger.jsonl").extra
    assert recorded["test_bands"] == tested["test_bands"]
    assert recorded["test_bits_per_byte"] == tested["test_bits_per_byte"]


@pytest.mark.parametrize("command", ["dynamic", "cache"])
def test_evaluations_of_recurrent_models_raise(cli_error, command):
    cli_error(command, "runs/gpt", "--device", "cpu", key="carries a state")


# -- generation and scores -------------------------------------------------------------------------


def test_scores_are_those_of_the_model(cli_output, run):
    lines = ["lamp is lit.", "日 🎉", "", "sea " * 30]  # the last is longer than the context
    together, alone = run.score(lines), [run.score([line])[0] for line in lines]
    for line, mine, own in zip(lines, together, alone, strict=True):
        assert mine.log_prob == pytest.approx(own.log_prob, rel=1e-5)
        assert mine.words[-1] == "<eos>"
        assert mine.unknown == ()
        if line.isascii():
            assert "".join(mine.words[:-1]) == line
        ids = run.vocabulary.encode([line]).tolist()
        assert len(mine.words) == mine.tokens == len(ids)
        if len(ids) < 16:
            read = torch.tensor([run.vocabulary.ids["<eos>"], *ids])
            with torch.no_grad():
                log_probs, _ = run.model.log_probs(read[:-1, None])
            wanted = log_probs[:, 0].gather(-1, read[1:, None]).sum()
            assert mine.log_prob == pytest.approx(float(wanted), rel=1e-4)
    out = cli_output("score", "runs/gpt", "--device", "cpu", stdin="lamp is <unk>\n")
    assert float(out.split("\t")[0]) < 0


def test_generation_with_a_cache_is_that_without(run, monkeypatch):
    options = {"max_new_tokens": 40, "temperature": 0.5, "seed": 3, "samples": 2}
    cached = run.generate("boat, is", **options)
    monkeypatch.setattr(run.model.encoder.body, "_is_stateful", True)
    assert run.generate("boat, is", **options) == cached


def test_run_that_was_untied_is_loaded_and_starts_no_other(cli_output, cli_error, workspace):
    words = ("train", "gpt.toml", "--name", "untied", "--device", "cpu")
    cli_output(*words, "--set", "training.untie_at=0.7")
    found = load("runs/untied", device="cpu")
    assert type(found.model.layer).__name__ == "FullSoftmax"
    assert found.perplexity().loss == pytest.approx(found.folder.rows()[-1]["test_loss"], rel=1e-6)
    words = ("train", "gpt.toml", "--name", "more", "--device", "cpu")
    cli_error(*words, "--set", "init_from=runs/untied", key="untie_at")


@pytest.mark.parametrize(("name", "millions"), [("gpt-drill", 14), ("gpt-medium-drill", 50)])
def test_sizes_of_recipes(name, millions):
    with meta_init():
        body = language_model(recipe(name), Vocabulary(["<eos>"], [1]), "meta").encoder.body
    assert round(sum(p.numel() for p in body.parameters()) / 1e6) == millions
