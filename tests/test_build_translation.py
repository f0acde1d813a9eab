"""From a translation recipe to a run folder and back, and the commands around it."""

import gzip
import io
import json
import logging
import lzma
import shutil
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from drill import build_translation, cli, translation
from drill.analysis.translation_bands import subword_bands, word_bands
from drill.build import finetuning, load_run, train_run
from drill.build_translation import load_translation, translator
from drill.cli.evaluate_translation import accuracy_bands
from drill.config import TRANSLATION, Settings, recipe, saved
from drill.data import DataError, Subwords
from drill.provenance import has_ended
from drill.recipes import SettingsError, recipe_names
from drill.report.ledger import read as read_ledger
from drill.report.runs import read_run
from drill.run_folder import RunFolder, RunFolderError
from drill.steps import TRAINING_LOG
from drill.translation import Search, Translation, translate
from drill.translation_training import NothingTrained
from tests.tiny_place import typed
from tests.tiny_runs import all_of, interrupted_after, unlike
from tests.tiny_translations import text

SMALL = [
    "data.pairs=none", "subwords.size=262", "subwords.single_digits=false", "encoder.width=8",
    "encoder.layers=1", "encoder.heads=2", "encoder.feedforward=16", "training.epochs=2",
    "training.max_tokens=60", "training.beam=2", "training.average=2", "optimizer.lr=0.02",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with pairs and a trained run of them."""
    folder = tmp_path_factory.mktemp("place")
    write_pairs(folder / "pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert train_run(small(), "runs/tiny", device="cpu").finished
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    return place


@pytest.fixture
def drill(here, monkeypatch, capfd):
    return typed(here, monkeypatch, capfd)


def write_pairs(folder) -> None:
    folder.mkdir()
    for split, pairs in text()._asdict().items():
        for language, lines in (("en", pairs.source), ("de", pairs.target)):
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")


def small(*changes: str, name: str = "mt-demo") -> Settings:
    return recipe(name, ["data.corpus=pairs", *SMALL, *changes])


# -- recipes --------------------------------------------------------------------------------------

TRANSLATIONS = [name for name in recipe_names() if recipe(name).task == TRANSLATION]


def test_there_is_a_recipe_for_every_corpus_and_layer():
    wanted = {
        f"{c}-{k}" for c in ("wmt14", "europarl", "multi30k") for k in ("tied", "dual", "drill")
    }
    assert set(TRANSLATIONS) == wanted | {"mt-demo", "mt-demo-tied"}


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_recipes_of_one_corpus_differ_in_their_layer_alone(name):
    corpus, _, _ = name.rpartition("-")
    settings = recipe(name)
    if corpus in ("wmt14", "europarl", "multi30k"):
        differing = recipe(f"{corpus}-tied").differences(settings)
        assert all(each.startswith("layer.") for each in differing)
    assert settings.data["corpus"] in ("wmt14", "europarl", "multi30k", "numbers")


@pytest.mark.parametrize("corpus", ["wmt14", "europarl", "multi30k"])
def test_the_dual_layer_is_as_strong_as_ours(corpus):
    """What it is compared with decides what a comparison says."""
    dual, ours = (recipe(f"{corpus}-{each}").layer for each in ("dual", "drill"))
    assert (dual["activation"], dual["residual"]) == (ours["activation"], True)


def test_the_papers_model_has_the_papers_size():
    """Encoder and decoder as published; 79.4M parameters mean about 68.9K rows of embeddings."""
    counts = {}
    for name in ("wmt14-tied", "wmt14-drill"):
        with torch.device("meta"):
            model = translator(recipe(name), 34_450, list, "meta")
        assert model.transformer.source_embedding is not model.transformer.target_embedding
        assert model.layer.label_weight is model.transformer.target_embedding.weight
        counts[name] = model.parameter_count()
    assert counts["wmt14-drill"] - counts["wmt14-tied"] == 525_312
    assert counts["wmt14-tied"] == 44_140_544 + 2 * 34_450 * 512 + 34_450
    rate = recipe("wmt14-drill").optimizer
    assert rate["lr"] == pytest.approx(2 * (512 * 8000) ** -0.5, rel=1e-4)


def test_the_page_names_every_setting_of_training():
    page = (Path(__file__).parents[1] / "docs" / "translation.md").read_text()
    assert [key for key in recipe("mt-demo").training if f"`{key}`" not in page] == []


def test_settings_survive_their_file(here):
    assert saved(here / "runs/tiny/recipe.toml") == small()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("task=translating", "task: there is no 'translating'; did you mean translation?"),
        ("encoder.preset=tinny", "encoder.preset: there is no 'tinny'; did you mean tiny?"),
        ("encoder.shared=1", "encoder.shared: is true or false, not 1"),
        ("encoder.width=none", "encoder.width: is a whole number, not 'none'"),
        ("subwords.sice=10", "subwords.sice: is no setting; did you mean size?"),
        ("filters.ratio=0.5", "[filters]: Filters: ratio is at least 1, not 0.5"),
        ("training.epoch=3", "training.epoch: is no setting; did you mean epochs?"),
        ("training.average=0", "[training]: average is at least 1, not 0"),
        ("training.bptt=3", "training.bptt: is no setting"),
    ],
)
def test_what_no_recipe_can_hold_is_named(change, fault):
    with pytest.raises(SettingsError) as caught:
        recipe("mt-demo", [change])
    assert str(caught.value).startswith(fault)


def test_a_table_of_translation_is_none_of_a_language_model():
    with pytest.raises(SettingsError, match="subwords: is no table of a recipe"):
        recipe("demo-drill", ["subwords.size=300"])


def test_a_model_that_cannot_be_built_names_the_recipe(here):
    with pytest.raises(SettingsError, match=r"the recipe mt-demo makes no model: .*heads"):
        train_run(small("encoder.heads=3"), "runs/none", device="cpu")


# -- a run and back -------------------------------------------------------------------------------


def test_a_run_comes_back_as_it_was(here):
    run = load_translation("runs/tiny", device="cpu")
    assert run.subwords == Subwords.load("runs/tiny/subwords.json")
    assert not run.model.training
    assert run.model.layer.label_weight is run.model.transformer.target_embedding.weight
    test = [row for row in run.folder.rows() if row["kind"] == "test"][-1]
    assert run.weights == test["weights"]
    found = translate(run.model, run.subwords, run.data.text.test.source, Search(beam=2))
    exact = [t[0].text == r for t, r in zip(found, run.data.text.test.target, strict=True)]
    assert sum(exact) / len(exact) == test["test_exact"]
    told = json.loads((here / "runs/tiny/environment.json").read_text())
    assert told["pairs"] == run.data.checksum
    assert told["vocabulary_size"] == len(run.subwords) == 262
    attention, *ways = told["ways"]
    assert attention.startswith("attention ")
    assert ways == [
        "residuals and norms reference (made for CUDA devices, not cpu)",
        "labels reference (the labels are on cpu)",
        "loss reference (the logits take only 0.1 MiB)",
        "batches launched one by one: CUDA graphs need an NVIDIA GPU, not cpu",
        "beam search launched one by one: CUDA graphs need an NVIDIA GPU, not cpu",
    ]


def test_what_is_trained_is_said_in_short_lines_before_it_is(here, tmp_path):
    said: list[str] = []
    train_run(small("training.updates=1"), tmp_path / "run", device="cpu", opened=said.append)
    (first, third), (second,) = (each.splitlines() for each in said)
    assert first == f"training mt-demo in {tmp_path / 'run'}: deep-residual (depth 2)"
    run = load_translation(tmp_path / "run", device="cpu")
    own = 2 * (8 * 8 + 8) + 262  # two maps and the bias
    assert second == (
        f"  {run.model.parameter_count():,} parameters, {own} of them the layer's own; "
        f"pairs: {len(run.data.train)} pairs, 262 subwords"
    )
    assert third.startswith("  cpu (")
    assert third.endswith("), float32")


def test_either_weights_on_request(here):
    assert load_translation("runs/tiny", "last", "cpu").weights == "last"
    assert load_translation("runs/tiny", "best", "cpu").weights == "best"


def test_a_counted_layer_gets_the_counts_of_the_targets(here):
    wrapped = ["layer.name=sampled", "layer.samples=20", "training.epochs=1"]
    with pytest.raises(SettingsError, match="a sampled layer does not compute; set it to 0"):
        train_run(small(*wrapped, "training.label_smoothing=0.1"), "runs/sampled", device="cpu")
    train_run(small(*wrapped, "training.label_smoothing=0"), "runs/sampled", device="cpu")
    run = load_translation("runs/sampled", device="cpu")
    assert run.model.layer.vocabulary_size == 262
    assert json.loads(run.folder.target_counts.read_text()) == run.data.target_counts().tolist()


def test_a_counted_layer_translates_without_the_training_text(here, drill, tmp_path):
    shutil.copytree("pairs", tmp_path / "pairs")
    counted = ["layer.name=adaptive", "layer.cutoffs=[50,150]", "training.epochs=1"]
    run = tmp_path / "run"
    train_run(small(*counted, f"data.corpus={tmp_path / 'pairs'}"), run, device="cpu")
    shutil.rmtree(tmp_path / "pairs")
    words = ("translate", str(run), "--device", "cpu")
    code, out, err = drill(*words, stdin="abc\n")
    assert (code, out.count("\n")) == (0, 1), err
    (run / "target_counts.json").write_text("[1, 2]")
    _, _, err = drill(*words, stdin="abc\n")
    assert "target_counts.json: does not hold a count for each of 262 subwords; restore" in err
    (run / "target_counts.json").unlink()
    _, _, err = drill(*words, stdin="abc\n")
    assert err.startswith(f"drill: {run}: the text it was trained on is gone from ")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["encoder.heads=3"], "heads"),
        (
            ["layer.name=sampled", "training.label_smoothing=0.1"],
            "a sampled layer does not compute",
        ),
        (["layer.name=adaptive", "layer.cutoffs=[50,500]"], "cutoffs"),
        (["optimizer.lr=-1"], r"\[optimizer\]"),
    ],
)
def test_faults_of_settings_show_before_a_text_is_read(here, monkeypatch, changes, fault):
    monkeypatch.setattr(build_translation, "read_parallel_corpus", None)
    with pytest.raises(SettingsError, match=fault):
        train_run(small(*changes), "runs/none", device="cpu")


def test_all_packages_that_are_missing_are_named_at_once(drill, monkeypatch):
    for name in ("tokenizers", "sacrebleu", "num2words", "babel"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = drill("train", "mt-demo", "--name", "bare", "--device", "cpu")
    assert (code, err) == (
        1,
        "drill: the recipe mt-demo needs the packages tokenizers, sacrebleu, num2words and babel; "
        "install them with pip install tokenizers sacrebleu num2words babel\n",
    )
    both = "needs the packages tokenizers and sacrebleu; install them with pip install tokenizers s"
    assert f"drill: evaluating runs/tiny {both}" in drill("evaluate", "runs/tiny")[2]  # own pairs
    one = "needs the package tokenizers; install it with pip install tokenizers\n"
    assert drill("report", "runs/tiny", "--bands", "-o", "b.html")[2].endswith(one)


@pytest.mark.parametrize(
    ("limit", "more"),
    [
        ("training.epochs=2", "training.epochs=3"),
        ("training.updates=3", "training.updates=4"),
    ],
)
def test_a_finished_run_stays_as_it_is(here, limit, more):
    folder = here / limit

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    first = train_run(small(limit), folder, device="cpu")
    before, first_step = contents(), RunFolder(folder).last_numbers()["step"]
    again = train_run(small(limit), folder, device="cpu")
    assert contents() == before
    assert again.test.scores == first.test.scores
    assert again.test.hypotheses == ()
    for mine, theirs in ((again.valid, first.valid), (again.test.fit, first.test.fit)):
        assert (mine.tokens, mine.loss) == (theirs.tokens, pytest.approx(theirs.loss, rel=1e-12))
    assert replace(again, valid=first.valid, test=first.test) == first
    assert train_run(small(more), folder, device="cpu").finished
    assert saved(folder / "recipe.toml") == small(more)
    assert RunFolder(folder).last_numbers()["step"] > first_step


@pytest.mark.parametrize(
    ("limits", "ended"),
    [
        (["training.epochs=1"], True),
        (["training.epochs=3"], False),
        (["training.epochs=3", "training.updates=1"], True),
        (["training.epochs=3", "training.updates=999"], False),
        (["training.epochs=3", "training.max_minutes=1e-6"], True),
        (["training.epochs=3", "training.max_minutes=999"], False),
    ],
)
def test_the_limit_that_comes_first_ends_a_run(here, limits, ended):
    assert has_ended(RunFolder("runs/tiny"), small(*limits)) is ended


def test_no_time_at_all_is_told(drill):
    changes = ["data.corpus=pairs", *SMALL, "training.max_minutes=1e-9"]
    words = [word for change in changes for word in ("--set", change)]
    code, out, err = drill("train", "mt-demo", *words, "--name", "short", "--device", "cpu", "-q")
    assert (code, out) == (1, "")
    assert err == (
        "drill: runs/short: training.max_minutes ends it before its first update, so there are no "
        "weights to test; set a larger one, or none\n"
    )
    words[-1] = "training.max_minutes=none"
    assert drill("train", "mt-demo", *words, "--name", "short", "--device", "cpu", "-q")[0] == 0


def test_a_run_of_updates_that_ends_by_the_clock_names_them(drill, monkeypatch):
    module = sys.modules["drill.cli.train"]
    real = module.train_run
    monkeypatch.setattr(
        module, "train_run", lambda *held, **more: replace(real(*held, **more), out_of_time=True)
    )
    changes = ["data.corpus=pairs", *SMALL, "training.updates=2000"]
    words = [word for change in changes for word in ("--set", change)]
    err = drill("train", "mt-demo", *words, "--name", "clock", "--device", "cpu")[2]
    assert err.splitlines()[-1] == (
        "ended by training.max_minutes in epoch 2, before update 2,000; set a larger "
        "training.max_minutes to continue"
    )


def test_limits_that_end_a_run_before_its_first_validation_are_told(here, tmp_path, monkeypatch):
    real, folder = build_translation.rule, tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(build_translation, "rule", lambda held: interrupted_after(2, real(held)))
        assert not train_run(small(), folder, device="cpu").finished
    before = RunFolder(folder).last.read_bytes()
    for limit in ("updates=1", "max_minutes=1e-9"):
        name = limit.partition("=")[0]
        with pytest.raises(NothingTrained, match=f"training.{name} ends it before its first valid"):
            train_run(small(f"training.{limit}"), folder, device="cpu")
    assert RunFolder(folder).last.read_bytes() == before
    assert train_run(small(), folder, device="cpu").finished


def test_the_same_command_resumes(here, monkeypatch):
    real = build_translation.rule
    with monkeypatch.context() as patch:
        patch.setattr(build_translation, "rule", lambda held: interrupted_after(4, real(held)))
        assert not train_run(small(), "runs/again", device="cpu").finished
    torch.manual_seed(99)
    assert train_run(small(), "runs/again", device="cpu").finished
    assert unlike(all_of("runs/again"), all_of("runs/tiny")) == []


def test_other_settings_need_another_name(here):
    with pytest.raises(RunFolderError, match=r"subwords.size: 262 -> 270"):
        train_run(small("subwords.size=270"), "runs/tiny", device="cpu")


def test_a_run_that_is_to_be_longer_is_told_of_its_schedule(here, tmp_path, caplog):
    """The schedule of mt-demo ends with the run."""
    shutil.copytree("runs/tiny", tmp_path / "run")
    train_run(small("training.max_minutes=5"), tmp_path / "run", device="cpu")
    assert caplog.text == ""  # it has ended, whatever its time
    train_run(small("training.epochs=3", "training.max_minutes=5"), tmp_path / "run", device="cpu")
    assert "training.epochs 2 -> 3 changes its cosine schedule too" in caplog.text
    train_run(small("training.epochs=4"), tmp_path / "run", device="cpu")
    assert (
        "training.max_minutes 5.0 -> none changes its cosine schedule too: the learning rate "
        in (caplog.text)
    )
    assert "None" not in caplog.text


def test_a_changed_text_is_refused(here, tmp_path):
    shutil.copytree("pairs", tmp_path / "pairs")
    settings = small(f"data.corpus={tmp_path / 'pairs'}")
    train_run(settings, tmp_path / "run", device="cpu")
    for language in ("en", "de"):
        path = tmp_path / "pairs" / f"test.{language}"
        path.write_text(path.read_text() + "a\n")
    with pytest.raises(RunFolderError, match="the texts have changed"):
        train_run(settings, tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match="was trained on other texts"):
        _ = load_translation(tmp_path / "run", device="cpu").data


@pytest.mark.gpu
def test_a_gpu_run_finds_and_says_once_in_which_ways_it_is_trained(
    here, tmp_path, caplog, monkeypatch
):
    found = []
    real = build_translation.translation_ways
    monkeypatch.setattr(
        build_translation, "translation_ways", lambda *a: found.append(real(*a)) or found[-1]
    )
    with caplog.at_level(logging.INFO, TRAINING_LOG):
        train_run(small(), tmp_path / "run", device="cuda")
    (ways,) = found
    (told,) = [line for line in caplog.messages if line.startswith("training on cuda")]
    assert told.endswith(": " + "; ".join(ways))


def test_each_task_has_its_own_loader(here):
    with pytest.raises(RunFolderError, match="holds a translator, not a language model"):
        load_run("runs/tiny")
    with pytest.raises(RunFolderError, match="holds no run"):
        load_translation("runs/nothing")
    with pytest.raises(SettingsError, match="finetuning is for language models"):
        finetuning("runs/tiny")


# -- commands -------------------------------------------------------------------------------------


def test_train_prints_bleu_and_resumes(drill):
    changes = [word for change in ["data.corpus=pairs", *SMALL] for word in ("--set", change)]
    code, out, err = drill("train", "mt-demo", *changes, "--name", "tiny", "--device", "cpu")
    assert code == 0
    assert "runs/tiny: valid perplexity " in out
    assert "  test BLEU " in out
    assert "already trained: mt-demo" in err


def test_translate_keeps_the_number_and_the_order_of_lines(drill):
    lines = ["abc", "", "ed", " ", "世界", "a\r"]
    code, out, _ = drill("translate", "runs/tiny", "--device", "cpu", stdin="\n".join(lines))
    assert code == 0
    found = out.split("\n")
    assert len(found) == len(lines) + 1
    assert (found[1], found[3], found[-1]) == ("", "", "")
    run = load_translation("runs/tiny", device="cpu")
    clean = [line.rstrip("\r") for line in lines]
    expected = translate(run.model, run.subwords, clean, Search(beam=2))
    assert found[:-1] == [each[0].text for each in expected]


def test_translate_reads_files_and_a_dash(drill, tmp_path):
    (tmp_path / "in.txt").write_text("abc\nde\n")
    from_file = drill("translate", "runs/tiny", str(tmp_path / "in.txt"), "--device", "cpu")
    piped = drill("translate", "runs/tiny", "-", "--device", "cpu", stdin="abc\nde\n")
    assert from_file == piped
    assert drill("translate", "runs/tiny", "--device", "cpu", stdin="")[:2] == (0, "")


def test_translate_reads_packed_files_and_leaves_a_byte_order_mark_out(drill, tmp_path):
    words = ("translate", "runs/tiny", "--device", "cpu")
    raw = b"\xef\xbb\xbfabc\nde\n"
    plain = drill(*words, stdin="abc\nde\n")
    assert drill(*words, stdin=raw) == plain
    for name, packed in (("in.gz", gzip.compress(raw, mtime=0)), ("in.xz", lzma.compress(raw))):
        (tmp_path / name).write_bytes(packed)
        assert drill(*words, str(tmp_path / name)) == plain
        (tmp_path / name).write_bytes(packed[:-9])
        code, _, err = drill(*words, str(tmp_path / name))
        assert code == 1
        assert f"{name}: cannot be read" in err


def test_translate_writes_utf8_whatever_the_terminal_says(here, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    monkeypatch.setattr(sys, "argv", ["drill", "translate", "runs/tiny", "--device", "cpu"])
    found = [[[Translation("Ä", 0.0, 0.0)]]]
    monkeypatch.setattr(sys.modules["drill.cli.translate"], "translate_blocks", lambda *_: found)
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert written.getvalue().decode("utf-8") == "Ä\n"


def test_what_has_come_is_translated_before_more_is_awaited(here, monkeypatch, capfd):
    seen: list[str] = []

    class Slow:
        """A pipe into which somebody types; a line may come in two pieces."""

        pieces = iter([b"abc\nd", b"e\n", b"e"])

        def read1(self, most: int) -> bytes:
            seen.append(capfd.readouterr().out)
            return next(self.pieces, b"")

    monkeypatch.setattr(sys, "argv", ["drill", "translate", "runs/tiny", "--device", "cpu"])
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=Slow()))
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    seen.append(capfd.readouterr().out)
    assert [out.count("\n") for out in seen] == [0, 1, 1, 0, 1]


def test_n_best_lists_scores_by_line(drill):
    words = ("translate", "runs/tiny", "--n-best", "2", "--device", "cpu")
    _, out, _ = drill(*words, stdin="abc\n\nde\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[2] == ["2", "0.0000", ""]
    _, out, _ = drill(*words, "--json", stdin="abc\n\nde\n")
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["line"] for each in found] == [1, 2, 3]
    assert [len(each["translations"]) for each in found] == [2, 1, 2]
    texts = [each["text"] for row in found for each in row["translations"]]
    assert texts == [row[2] for row in rows]


def test_greedy_and_samples(drill):
    words = ("translate", "runs/tiny", "--device", "cpu")
    _, greedy, _ = drill(*words, "--greedy", stdin="abc\n")
    assert greedy == drill(*words, "--beam", "1", stdin="abc\n")[1]
    sampled = ("--sample", "--seed", "3", "--n-best", "2", "--top-k", "9")
    assert drill(*words, *sampled, stdin="abc\n") == drill(*words, *sampled, stdin="abc\n")


def test_a_line_too_long_is_cut_with_a_word(drill, caplog):
    words = ("translate", "runs/tiny", "--device", "cpu", "--max-source", "16", "--greedy")
    code, out, _ = drill(*words, stdin="ab " * 10_000 + "\nabc\n")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "line 1 has" in caplog.text


@pytest.mark.parametrize(
    ("words", "stdin", "fault"),
    [
        (["--greedy", "--sample"], "a", "--greedy: has one place"),
        (["--greedy", "--length-penalty", "5"], "a", "leave out --beam, --n-best, --l"),
        (["--beam", "2", "--n-best", "4"], "a", "--n-best 4: a beam of 2 places has 2"),
        (["--sample", "--beam", "3"], "a", "--sample: has no beam"),
        (["--seed", "3"], "a", "--seed: says something about --sample"),
        (["--temperature", "0.5"], "a", "--temperature: says something about --sample"),
        (["--length-penalty", "nan"], "a", "length_penalty is finite, not nan"),
        (["--sample", "--temperature", "0"], "a", "temperature is a finite number above 0"),
        (["nowhere.txt"], "a", "nowhere.txt: cannot be read"),
        ([], b"abc\n\xff\n", "standard input: line 2 is not UTF-8"),
    ],
)
def test_a_mistake_ends_in_one_sentence(drill, words, stdin, fault):
    code, _, err = drill("translate", "runs/tiny", *words, "--device", "cpu", stdin=stdin)
    assert code == 1
    assert fault in err
    assert "Traceback" not in err


def test_a_line_with_nul_is_translated_as_any(drill):
    code, out, err = drill("translate", "runs/tiny", "--device", "cpu", stdin=b"abc\na\0b\nabc\n")
    assert (code, len(out.splitlines()), err) == (0, 3, "")


def test_no_lines_are_translated_into_none_and_told_of(drill):
    """As it should be in a pipe; a path that was meant otherwise is named."""
    words = ("translate", "runs/tiny", "--device", "cpu")
    said = "standard input: holds no line to translate\n"
    assert drill(*words, stdin=b"") == (0, "", said)


def test_lines_before_one_that_cannot_be_read_are_translated(drill):
    words = ("translate", "runs/tiny", "--device", "cpu")
    code, out, err = drill(*words, stdin=b"abc\nde\n\xff\nabc\n")
    assert code == 1
    assert "line 3 is not UTF-8" in err
    assert out == drill(*words, stdin="abc\nde\n")[1]


def test_a_search_without_memory_for_it_is_told_of_its_own_option(drill, monkeypatch, caplog):
    """Not of training.max_tokens, which no search reads."""

    def searched(model, sources, decoding, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nmore")

    monkeypatch.setattr(translation, "beam_search", searched)
    for words in (["translate", "runs/tiny"], ["evaluate", "runs/tiny", "-q"]):
        code, _, err = drill(*words, "--device", "cpu", "--batch-tokens", "2", stdin="abc\n")
        assert code == 1
        assert "runs/tiny: the GPU's memory is too small (CUDA out of memory. Tried);" in err
        assert "take a smaller --batch-tokens or --beam" in err
        assert "max_tokens" not in err
    assert "for 2 subwords at a time, so they are 1 from now on" in caplog.text


def test_evaluate_gives_bleu_and_keeps_it(drill, here):
    code, out, _ = drill("evaluate", "runs/tiny", "--device", "cpu", "--json", "-q")
    assert code == 0
    valid, test = map(json.loads, out.splitlines())
    assert (valid["split"], test["split"]) == ("valid", "test")
    tested = [row for row in load_translation("runs/tiny", device="cpu").folder.rows()
              if row["kind"] == "test"][-1]  # fmt: skip
    assert test["bleu"] == pytest.approx(tested["test_bleu"])
    assert test["perplexity"] == pytest.approx(tested["test_perplexity"], rel=1e-5)
    kept = (here / "runs/tiny/evaluations.jsonl").read_text().splitlines()
    assert json.loads(kept[-1]) == test
    _, out, _ = drill("evaluate", "runs/tiny", "--split", "test", "--beam", "1", "--device", "cpu")
    assert out.startswith("translation test   BLEU")


def test_evaluate_tells_which_words_are_right_and_keeps_the_translations(drill, here):
    words = ("evaluate", "runs/tiny", "--split", "valid", "--device", "cpu", "--words", "-q")
    code, out, err = drill(*words)
    assert code == 0, err
    assert "| training count | types | wanted | words F1 |" in out
    of_words, of_subwords = out.split("| training count |")[1:]
    assert "subwords F1" in of_subwords
    for table, unit in ((of_words, "word"), (of_subwords, "subword")):
        assert f"Target {unit}s found again in the translation of the same sentence" in table
        assert f"by how often a {unit} occurs in the target side of the training text" in table
        assert f"distinct {unit}s of the references" in table
    _, out, _ = drill(*words, "--json")
    row = json.loads(out)
    run = load_translation("runs/tiny", device="cpu")
    kept = (here / "runs/tiny/valid.de.hyp").read_text().splitlines()
    text, data = run.data.text, run.data
    trained, pairs = run.split("train")
    assert (len(trained), len(pairs)) == (60, len(data.train))
    by_hand = word_bands(kept, text.valid.target, trained.target, "de")
    assert row["word_bands"] == [asdict(band) for band in by_hand]
    by_hand = subword_bands(kept, text.valid.target, run.subwords, data.target_counts())
    assert row["subword_bands"] == [asdict(band) for band in by_hand]
    wanted = sum(len(run.subwords.encode(line)) for line in text.valid.target)
    assert sum(band["wanted"] for band in row["subword_bands"]) == wanted


def test_a_split_is_scored_without_the_training_text(drill, here, tmp_path):
    pairs, run = tmp_path / "pairs", str(tmp_path / "run")
    shutil.copytree("pairs", pairs)
    changes = (f"data.corpus={pairs}", "training.updates=2")
    train_run(small(*changes), run, device="cpu")
    for language in ("en", "de"):
        (pairs / f"train.{language}").unlink()
    words = ("evaluate", run, "--split", "test", "--device", "cpu", "--json", "-q")
    code, out, err = drill(*words)
    assert code == 0, err
    assert json.loads(out)["bleu"] == pytest.approx(read_run(run).bleu)
    code, _, err = drill(*words, "--words")  # which counts words there
    assert code == 1
    assert "train.en is missing" in err
    told = json.loads((tmp_path / "run/environment.json").read_text())
    del told["pairs_of"]  # as runs of old
    (tmp_path / "run/environment.json").write_text(json.dumps(told))
    assert "train.en is missing" in drill(*words)[2]


def test_a_changed_split_is_refused(here, tmp_path):
    pairs = tmp_path / "pairs"
    shutil.copytree("pairs", pairs)
    train_run(small(f"data.corpus={pairs}", "training.updates=1"), tmp_path / "run", device="cpu")
    run = load_translation(tmp_path / "run", device="cpu")
    text, ids = run.split("test")
    assert (text, len(ids)) == (run.data.text.test, len(text))
    (pairs / "test.de").write_text("x\n" * len(text))
    run.split("valid")
    with pytest.raises(DataError, match=r"was trained on other texts than .* holds now"):
        run.split("test")


def test_a_text_of_ones_own_is_scored(drill, here, tmp_path):
    hypotheses = here / "runs/tiny/test.de.hyp"
    before = hypotheses.read_bytes()
    own = {"source": tmp_path / "test.en", "reference": tmp_path / "ours.de"}
    shutil.copy("pairs/valid.en", own["source"])
    shutil.copy("pairs/valid.de", own["reference"])
    files = [word for name, path in own.items() for word in (f"--{name}", str(path))]
    words = ("evaluate", "runs/tiny", "--device", "cpu", "--json", "-q", "--words")
    code, out, err = drill(*words, *files)
    assert code == 0, err
    row, wanted = json.loads(out), json.loads(drill(*words, "--split", "valid")[1])
    assert (row["split"], row["source"], row["reference"]) == ("files", *map(str, own.values()))
    for key in ("lines", "bleu", "chrf", "perplexity", "word_bands", "subword_bands"):
        assert row[key] == wanted[key]
    assert hypotheses.read_bytes() == before  # which are of the run's own test


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--source", "pairs/test.en"], "--source: is one of two texts that belong together; add "),
        (["--reference", "pairs/test.de"], "add --source"),
        (
            ["--source", "pairs/test.en", "--reference", "pairs/test.de", "--split", "test"],
            "--split: is of the run's own corpus; leave it or --source out",
        ),
        (
            ["--source", "pairs/test.en", "--reference", "pairs/valid.de"],
            "pairs/test.en has 6 lines but pairs/valid.de has 8",
        ),
        (["--source", "one.en", "--reference", "pairs/valid.de"], "one.en has 1 line but pairs/"),
        (["--source", "one.en", "--reference", "blank.de"], "blank.de: holds no words to trans"),
        (["--source", "blank.de", "--reference", "one.en"], "blank.de: holds no words to trans"),
    ],
)
def test_a_text_without_its_reference_is_refused(drill, here, words, fault):
    (here / "one.en").write_text("abc\n")
    (here / "blank.de").write_text(" \n")
    code, _, err = drill("evaluate", "runs/tiny", *words, "--device", "cpu")
    assert code == 1
    assert fault in err


def test_a_single_line_is_one_line(drill, here):
    (here / "one.en").write_text("abc\n")
    words = ("evaluate", "runs/tiny", "--source", "one.en", "--reference", "one.en")
    code, out, err = drill(*words, "--device", "cpu", "-q")
    assert (code, "  1 line  " in out) == (0, True), err


def test_words_of_a_language_without_rules_are_left_out_with_a_word(drill, here):
    pairs = here / "french"
    shutil.copytree("pairs", pairs)
    for path in pairs.glob("*.de"):
        path.rename(path.with_suffix(".fr"))
    changes = (f"data.corpus={pairs}", "data.target=fr", "training.updates=1")
    train_run(small(*changes), "runs/french", device="cpu")
    run = load_translation("runs/french", device="cpu")
    assert list(accuracy_bands(run, target := run.data.text.test.target, target)) == ["subword"]


def test_a_report_shows_the_words_that_translators_get_right(drill, tmp_path):
    page = tmp_path / "page.html"
    code, _, err = drill("report", "runs/tiny", "--bands", "--out", str(page), "--device", "cpu")
    assert code == 0, err
    assert "Subwords that translators get right" in page.read_text()
    code, _, err = drill("report", "runs/tiny", "--samples", "1", "--out", str(page))
    assert (code, "--samples: runs/tiny holds a translator, which writes" in err) == (1, True)
    shutil.copytree("runs/tiny", tmp_path / "run")
    (tmp_path / "run/test.de.hyp").unlink()
    code, _, err = drill("report", str(tmp_path / "run"), "--bands", "--out", str(page))
    assert code == 1
    assert "make it with `drill evaluate" in err


@pytest.mark.parametrize(
    ("changes", "kind"), [([], "PegasusForConditionalGeneration"), (["post"], "MarianMTModel")]
)
def test_export_writes_what_the_norms_say(drill, here, tmp_path, changes, kind):
    run = "runs/tiny"
    if changes:
        run = str(tmp_path / "run")
        train_run(small("encoder.norm=post", "training.updates=3"), run, device="cpu")
    code, out, err = drill("export", run, str(tmp_path / "out"), "--positions", "64")
    assert code == 0, err
    assert f"wrote {tmp_path / 'out'}: a {kind[:6]}" in out
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [kind]
    assert config["max_position_embeddings"] == 64


def test_what_cannot_be_exported_is_named(drill, here, tmp_path):
    train_run(small("layer.name=dual", "training.updates=1"), tmp_path / "run", device="cpu")
    code, _, err = drill("export", str(tmp_path / "run"), str(tmp_path / "out"))
    assert code == 1
    assert "Marian has no place for that" in err
    assert not (tmp_path / "out").exists()


def test_data_counts_parallel_corpora(drill, here, monkeypatch):
    (here / "data" / "multi30k").mkdir(parents=True, exist_ok=True)
    parts = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    for split, name in parts.items():
        for language in ("en", "de"):
            target = here / "data" / "multi30k" / f"{name}.{language}"
            shutil.copy(here / "pairs" / f"{split}.{language}", target)
    monkeypatch.setenv("DRILL_DATA", str(here / "data"))
    code, out, err = drill("data", "multi30k")
    assert code == 0, err
    expected = "multi30k: pairs train 60  valid 8  test 6; words to train on source 60  target 60"
    assert out.split() == expected.split()
    assert "multi30k" in drill("data")[1]
    assert "cut into subwords" in drill("data", "multi30k", "--minimum-count", "2")[2]


@pytest.mark.parametrize("option", [["--dynamic"], ["--cache"], ["--text", "pairs/test.en"]])
def test_what_is_for_language_models_says_so(drill, option):
    code, _, err = drill("evaluate", "runs/tiny", *option)
    assert code == 1
    assert f"{option[0]}: is for language models" in err
    assert ("--source and --reference read other pairs" in err) is (option[0] == "--text")


def test_a_run_is_recorded_with_its_words_where_neither_weights_nor_texts_are(
    drill, here, tmp_path
):
    words = ("evaluate", "runs/tiny", "--split", "test", "--words", "--device", "cpu", "-q")
    assert drill(*words)[0] == 0
    assert drill(*words[:4], "--device", "cpu", "-q")[0] == 0  # without them, later
    home = tmp_path / "tiny"
    home.mkdir()
    kept = ("metrics.jsonl", "environment.json", "recipe.toml", "evaluations.jsonl", "test.de.hyp")
    for name in kept:
        shutil.copy(here / "runs/tiny" / name, home / name)
    code, _, err = drill("record", str(home), "--ledger", str(tmp_path / "ledger.jsonl"))
    assert (code, err) == (0, "")
    (row,) = read_ledger(tmp_path / "ledger.jsonl")
    (found,) = (each for each in row.evaluations if each["split"] == "test")
    run = load_translation("runs/tiny", device="cpu")
    hypotheses = (home / "test.de.hyp").read_text().splitlines()
    for kind, bands in accuracy_bands(run, run.data.text.test.target, hypotheses).items():
        assert found[f"{kind}_bands"] == [asdict(band) for band in bands]
    assert "training.beam: 4 -> 2" in row.changes


def test_a_file_called_test_is_not_recorded_as_the_test(drill, here, tmp_path):
    words = ("evaluate", "runs/tiny", "--words", "--device", "cpu", "-q")
    assert drill(*words, "--split", "test")[0] == 0
    for name, path in (("test", "pairs/valid.en"), ("reference", "pairs/valid.de")):
        shutil.copy(path, here / name)
    code, out, err = drill(*words, "--source", "test", "--reference", "reference")
    assert code == 0, err
    assert out.startswith("translation test   BLEU")  # the file, by its name
    code, _, err = drill("record", "runs/tiny", "--ledger", str(tmp_path / "ledger.jsonl"))
    assert code == 0, err
    (row,) = read_ledger(tmp_path / "ledger.jsonl")
    assert all("reference" not in each for each in row.evaluations)
    (test,) = (each for each in row.evaluations if each["split"] == "test")
    run = load_translation("runs/tiny", device="cpu")
    assert test["lines"] == len(run.data.text.test) != len(run.data.text.valid)
    assert test["run"] == row.name == "tiny"  # not the path


def test_reports_and_ledgers_take_translators(drill, here, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    code, out, err = drill("record", "runs/tiny", "--ledger", str(ledger))
    assert code == 0, err
    row = read_ledger(ledger)[0]
    run = read_run("runs/tiny")
    assert out == (
        f"{ledger}: tiny, valid perplexity {run.valid:.2f}, test perplexity {run.test:.2f}, test "
        f"BLEU {run.bleu:.2f}\n"
    )
    assert row.test == run.test
    assert row.extra["bleu"] == run.bleu
    tested = [r for r in load_translation("runs/tiny", device="cpu").folder.rows()
              if r["kind"] == "test"][-1]  # fmt: skip
    for key in ("tokenised_bleu", "chrf", "exact"):
        assert row.extra[key] == tested[f"test_{key}"]
    assert (row.extra["beam"], row.extra["length_penalty"]) == (2, 0.6)
    assert row.extra["weights"] == tested["weights"]
    assert row.extra["signatures"]["chrf_signature"] == tested["chrf_signature"]
    assert run.bleu == pytest.approx(
        [r for r in load_translation("runs/tiny", device="cpu").folder.rows()
         if r["kind"] == "test"][-1]["test_bleu"]
    )  # fmt: skip
    page = tmp_path / "page.html"
    code, _, err = drill("report", "runs/tiny", "--ledger", str(ledger), "--out", str(page))
    assert code == 0, err
    assert "BLEU" in page.read_text()
    _, out, _ = drill("report", "runs/tiny", "--markdown")
    assert "bleu" in out.lower()


def test_an_export_into_the_folder_of_a_run_is_refused(drill, here):
    before = sorted(path.name for path in (here / "runs/tiny").iterdir())
    code, _, err = drill("export", "runs/tiny", "runs/tiny")
    assert code == 1
    assert "runs/tiny: holds what is no export" in err
    assert sorted(path.name for path in (here / "runs/tiny").iterdir()) == before
