"""Settings: every shipped recipe resolves, and a wrong one answers with a sentence."""

import inspect
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from drill.data import EOS, Vocabulary
from drill.errors import SettingsError
from drill.language_modeling.build import language_model
from drill.layers import LAYERS, TiedSoftmax
from drill.recipes.reader import NAME, recipe_names
from drill.training.build import build_optimizer
from drill.training.optim import Sgd
from drill.training.options import LanguageModelOptions, TranslationOptions
from drill.training.schema import with_new_names
from drill.training.settings import (
    LANGUAGE_MODEL,
    read_settings,
    recipe,
    resolve_settings,
)

SIZES = {"elife": 32_000, "ptb": 10_000, "wikitext-2": 33_278, "bible": 10_000}

# Of the released code. The paper truncates them; its layers' maps have biases, which it leaves out.
PUBLISHED = {
    "ptb-tied": 24_221_600, "ptb-bilinear": 24_382_000, "ptb-dual": 24_542_400,
    "ptb-drill-1": 24_382_000, "ptb-drill-2": 24_542_400, "ptb-drill-3": 24_702_800,
    "ptb-drill-4": 24_863_200, "ptb-drill-4-between": 24_863_200, "ptb-full": 43_827_600,
    "ptb-mos": 21_500_620, "ptb-zaremba-medium-full": 19_780_400,
    "ptb-zaremba-large-full": 66_034_000, "ptb-rhn-tied": 23_482_400, "wt2-tied": 33_556_078,
    "wt2-drill-4": 34_197_678, "wt2-mos": 34_909_528,
}  # fmt: skip

every_recipe = pytest.mark.parametrize("name", recipe_names())


def vocabulary(size: int) -> Vocabulary:
    return Vocabulary([EOS, *map(str, range(size - 1))], np.arange(size, 0, -1).tolist())


def fault(*changes: str, name: str = "ptb-drill-4") -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        recipe(name, changes)
    return caught.value


def refused(*changes: str, name: str = "ptb-drill-4") -> str:
    return str(fault(*changes, name=name))


# -- the shipped ones -----------------------------------------------------------------------------


@every_recipe
def test_a_recipe_comes_back_from_the_file_of_its_run(name, tmp_path):
    found = recipe(name)
    assert found.recipe == name
    (tmp_path / "recipe.toml").write_text(found.to_toml(), encoding="utf-8")
    assert read_settings(tmp_path / "recipe.toml") == found
    assert found.differences(read_settings(tmp_path / "recipe.toml")) == []
    again = recipe(str(tmp_path / "recipe.toml"))  # a run's file is a recipe of its own
    assert again.tables() == found.tables()


@pytest.mark.parametrize(
    "name", [name for name in recipe_names() if recipe(name).task == LANGUAGE_MODEL]
)
def test_a_recipe_builds_a_model_of_the_published_size(name):
    found = recipe(name)
    if name not in PUBLISHED and found.encoder[NAME] == "hf":
        pytest.skip("a Transformer takes seconds; its own tests build it")
    with torch.device("meta"):
        model = language_model(found, vocabulary(SIZES.get(found.data["corpus"], 1000)), "meta")
    assert build_optimizer(found).lr == found.optimizer["lr"]
    if name in PUBLISHED:
        assert model.parameter_count() == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "table", "expected"),
    [
        ("ptb-tied", "training", {"epochs": 500, "batch_size": 20, "bptt": 70, "seed": 141}),
        ("ptb-tied", "optimizer", {"lr": 30.0, "max_grad_norm": 0.25, "weight_decay": 1.2e-6}),
        ("ptb-tied", "encoder", {"dropout_input": 0.4, "dropout_hidden": 0.25, "layers": 3}),
        ("ptb-drill-4", "training", {"epochs": 1000, "seed": 28, "ar_weight": 2.0}),
        ("ptb-drill-4", "layer", {"depth": 4, "dropout": 0.6, "locked": True}),
        ("ptb-zaremba-medium-full", "training", {"epochs": 39, "bptt": 35, "batch_size": 20}),
        ("ptb-zaremba-large-tied", "optimizer", {"lr": 35.0, "lr_decay": 1.15}),
        ("ptb-variational-drill", "encoder", {"dropout_state": 0.3}),
        ("ptb-variational-drill", "encoder", {"dropout_masks": "variational"}),
        ("ptb-melis-tied", "optimizer", {"beta1": 0.0, "decoupled": False, "average_patience": 50}),
        ("ptb-rhn-drill", "encoder", {"depth": 10, "hidden_size": 830, "dropout_state": 0.25}),
        ("wt2-tied", "training", {"epochs": 750, "batch_size": 80, "seed": 1882}),
        ("wt2-tied", "encoder", {"dropout_input": 0.65, "dropout_hidden": 0.2}),
        ("wt2-drill-4", "layer", {"activation": "relu", "dropout": 0.6, "locked": False}),
        ("ptb-mos", "training", {"batch_size": 12, "length_cap": 110, "seed": 28}),
        ("ptb-mos", "optimizer", {"lr": 20.0}),
        ("ptb-mos", "layer", {"experts": 15, "dropout": 0.29}),
        ("wt2-mos", "training", {"batch_size": 15, "length_cap": 90, "seed": 1882}),
        ("wt2-mos", "optimizer", {"lr": 15.0}),
        ("wt2-mos", "encoder", {"embedding_dim": 300, "output_size": 650, "dropout_input": 0.55}),
    ],
)
def test_the_published_commands(name, table, expected):
    assert expected.items() <= getattr(recipe(name), table).items()


@pytest.mark.parametrize("layer", ["tied", "drill-4", "mos"])
@pytest.mark.parametrize("corpus", ["ptb", "wt2"])
def test_the_fast_recipes_train_the_models_of_the_paper_otherwise(corpus, layer):
    fast, published = recipe(f"{corpus}-fast-{layer}"), recipe(f"{corpus}-{layer}")
    for table in ("data", "layer"):
        assert getattr(fast, table) == getattr(published, table)
    changed = {k for k, v in fast.encoder.items() if v != published.encoder[k]}
    assert changed <= {"dropout_hidden", "dropout_output"}
    assert fast.optimizer[NAME] == "sgd"
    assert fast.training["max_minutes"] is not None


# -- what answers with the nearest ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key", "hint"),
    [
        ("trainig.epochs=3", "trainig", "did you mean training?"),
        ("epochs=2", "epochs", "did you mean training.epochs?"),
        ("taks=translation", "taks", "did you mean task?"),
        ("task=translate", "task", "did you mean translation?"),
        ("xyzzy.a=1", "xyzzy", "known are data, encoder, labels"),
        ("name=tied", "name", "did you mean encoder.name or layer.name or optimizer.name?"),
        ("layer.dept=3", "layer.dept", "did you mean layer.depth"),
        ("training.lr=3", "training.lr", "did you mean optimizer.lr?"),
        ("optimizer.epochs=3", "optimizer.epochs", "did you mean training.epochs?"),  # not eps
        ("layer.encoder=reference", "layer.encoder", "it is now layer."),
        ("layer.name=deep-residul", "layer.name", "did you mean deep-"),
        ("layer.name=[1]", "layer.name", "known are full, tied, "),
        ("encoder.name=awd-lsmt", "encoder.name", "did you mean awd-lstm?"),
        ("layer.experts=2", "layer.experts", "unknown setting of deep-residual; known are"),
        ("recipe=mine", "recipe", "cannot be changed"),
        ("training.name=sgd", "training.name", "unknown setting; "),
        ("layer.inner.name=tied", "layer.inner", "deep-residual wraps no other layer"),
        ("layer=3", "layer", "must be a table, got 3; write [layer]"),
        ("layer.name=tied layer=3", "layer", "must be a table, got 3"),
        ("epochs=2 layer.depth=x", "epochs", "did you mean"),  # one fault hides no other
        ("training.epochs.x=1", "training.epochs", "must be an integer, got {'x': 1}"),
        ("layer.name=adaptive", "layer.cutoffs", "such as [100, 1000]"),
        ("layer.name=adaptive layer.cutoffs=[1,2.5]", "layer.cutoffs", "a list of integers"),
        ("layer.name=mixture layer.inner=tied", "layer.inner", "must be a table"),
        ("layer.name=mixture layer.inner.name=sampled", "layer.inner.name", "a layer of one"),
        ("layer.name=mixture layer.inner.depth=2", "layer.inner.depth", "unknown setting of tied"),
        ("layer.name=mixture layer.bias=true", "layer.bias", "did you mean layer.inner.bias?"),
        (  # not encoder.init_range
            "layer.name=softcap layer.inner.name=deep-residual layer.init_range=1.0",
            "layer.init_range",
            "did you mean layer.inner.init_range?",
        ),
    ],
)
def test_an_error_has_a_key_and_a_hint(changes, key, hint):
    error = fault(*changes.split())
    assert error.key == key
    assert hint in str(error)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ptb-tide", "did you mean ptb-tied?"),
        ("ptb-drill", "did you mean ptb-drill-4?"),
        *((name, "") for name in ["", "/", "..", "../ptb-tied", "p" * 300, "a\0b", "xyz"]),
    ],
)
def test_an_unknown_recipe_answers_with_the_nearest(name, hint):
    assert refused(name=name).startswith(f"{name}: is neither a recipe nor a file")
    assert refused(name=name).endswith(hint)


# -- kinds ----------------------------------------------------------------------------------------


WRONG = [
    "training.epochs=3.5", "training.epochs=true", "training.epochs=many", "training.epochs=none",
    "training.epochs=", "training.epochs=0", "training.validate_first=1", "training.micro_batch=x",
    "training.micro_batch=0", "training.precision=fp8", "training.checkpoint_seconds=nan",
    "training.checkpoint_seconds=-1", "training.test_batch_size=-1", "training.seed=4294967296",
    "training.length_seed=-1", "training.patience=-1", "optimizer.lr=inf",
    "optimizer.lr=1979-05-27", "encoder.embedding_dim=0", "encoder.embedding_dim=true",
    "encoder.hidden_size=1000000000", "layer.depth=1000000000", "encoder.output_size=[1]",
    "data.corpus=3", "init_from=3", "training.validate_every=0",
    "training.log_every=0", "training.max_minutes=0", "training.max_minutes=nan",
    "training.adversarial=-0.1", "training.adversarial=nan", "training.state_reset=1",
]  # fmt: skip


@pytest.mark.parametrize(
    "change", [*WRONG, f"optimizer.lr={'9' * 400}", f"optimizer.lr={'9' * 5000}"]
)
def test_a_value_of_the_wrong_type_or_range_names_the_setting(change):
    with pytest.raises(SettingsError, match=r"must be .*, got") as caught:
        recipe("ptb-drill-4", [change])
    assert caught.value.key == change.partition("=")[0]


INNER = "layer.name=mixture layer.inner.name=deep-residual layer.inner.depth=-1"


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ("layer.activation=swish", "layer.activation: "),
        ("layer.dropout=2", "layer.dropout: "),
        ("encoder.weight_drop=1", "encoder.weight_drop: "),
        (INNER, "layer.inner.depth: "),
        ("layer.gate_count=50.0", "layer.gate_count: "),
        ("layer.gate=frequency layer.depth=0", "layer.gate: "),
        ("encoder.output_size=24", "encoder.output_size: "),
        ("layer.name=dual layer.residual=true layer.joint_size=9", "layer.joint_size: "),
        ("layer.depth=0 encoder.output_size=24", "encoder.output_size: "),
        ("encoder.output_layers=2", "encoder.output_layers: "),
    ],
)
def test_values_that_only_a_model_can_refuse_name_the_key_or_the_recipe(changes, start):
    with pytest.raises(SettingsError) as caught:
        language_model(recipe("ptb-drill-4", changes.split()), vocabulary(50))
    assert str(caught.value).startswith(start)


# -- none, changes, bases -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("training.epochs=3", 3), ("training.epochs = 3", 3), (" training . epochs =3 ", 3),
        ("optimizer.lr=1e-3", 0.001), ("optimizer.lr=15", 15.0),
        ("training.checkpoint_seconds=1_000", 1000.0), ("training.validate_first=true", True),
        ("data.corpus=texts/mine", "texts/mine"), ('data.corpus="texts/mine"', "texts/mine"),
        ("data.corpus='a = b'", "a = b"), ("data.corpus=a=b.c", "a=b.c"),
        ('data.corpus="none"', "none"), ('data.corpus="3"', "3"),
        (r"data.corpus='C:\texts'", r"C:\texts"), ("data.corpus=my # text", "my # text"),
        ("data.corpus=Größe \U0001f600", "Größe \U0001f600"), ("data.max_vocab_size=none", None),
        ("optimizer.max_grad_norm=none", None), ("layer.activation=none", "none"),
    ],
)  # fmt: skip
def test_a_change_is_toml_or_a_text(change, value):
    found = recipe("ptb-drill-4", [change])
    table, key = (name.strip() for name in change.partition("=")[0].split("."))
    changed = getattr(found, table)[key]
    assert (changed, type(changed)) == (value, type(value))
    assert resolve_settings(tomllib.loads(found.to_toml())) == found


@pytest.mark.parametrize("change", ["epochs", "=3", "training.=3", ".epochs=3", "a..b=1", ""])
def test_a_change_of_another_form_is_refused(change):
    assert f"{change!r}: a change has the form table.key=value" in refused(change)


def test_a_table_with_another_name_starts_from_defaults():
    """The rate of SGD would be the end of AdamW."""
    found = recipe("ptb-drill-4", ["optimizer.name=adamw"])
    assert found.optimizer == resolve_settings({"optimizer": {"name": "adamw"}}).optimizer
    assert found.optimizer["lr"] < recipe("ptb-drill-4").optimizer["lr"]
    same = recipe("ptb-drill-4", ["optimizer.name=nt-asgd", "optimizer.patience=3"])
    assert same.optimizer == {**recipe("ptb-drill-4").optimizer, "patience": 3}


def test_the_order_of_changes_makes_no_difference():
    changes = ["optimizer.lr=0.002", "optimizer.name=adamw", "training.epochs=2"]
    forth, back = recipe("ptb-tied", changes), recipe("ptb-tied", changes[::-1])
    assert forth == back
    assert forth.optimizer["lr"] == 0.002
    assert recipe("ptb-tied", ["training.epochs=2", "training.epochs=3"]).training["epochs"] == 3


def test_changes_that_contradict_each_other_are_refused():
    for changes in (["layer=3", "layer.name=tied"], ["layer.inner=3", "layer.inner.name=tied"]):
        assert "another change has made" in refused(*changes)


def test_changes_are_a_text_or_several():
    one = "training.epochs=3"
    assert recipe("demo-drill", one) == recipe("demo-drill", [one])
    with pytest.raises(SettingsError) as raised:
        recipe("demo-drill", {"training.epochs": 3})
    assert raised.value.key == "changes"


def test_a_base_is_a_recipe_or_a_file_next_to_it(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "first.toml").write_text('base = "ptb-drill-4"\n[layer]\ndepth = 2\n')
    own = "[training]\nepochs = 7\n[layer]\ndropout = 0\n"
    (tmp_path / "second.toml").write_text(f'base = "sub/first.toml"\n{own}')
    monkeypatch.chdir(tmp_path)
    found = recipe("second.toml", ["training.seed=5"])
    changes = "layer.depth=2 layer.dropout=0.0 training.epochs=7 training.seed=5"
    assert found.tables() == recipe("ptb-drill-4", changes.split()).tables()
    assert found.recipe == "second"
    monkeypatch.chdir("/")
    assert recipe(str(tmp_path / "second.toml")).layer == found.layer


@pytest.mark.parametrize("bases", [["a"], ["b", "a"], ["b", "c", "b"]])
def test_a_recipe_that_starts_from_itself_is_refused(tmp_path, bases):
    for name, base in zip("abc", bases, strict=False):
        (tmp_path / f"{name}.toml").write_text(f'base = "{base}.toml"\n')
    assert "starts from itself" in refused(name=str(tmp_path / "a.toml"))


WRONG_BASES = [b"3", b"''", b"['ptb-tied']", b"'ptb-tide'", b"'none.toml'"]
NO_TOML = [b"[layer", b"a = 1\na = 2", b"x = " + b"[" * 10**5]


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        *((b"base = " + base, "is neither a recipe|cannot be read") for base in WRONG_BASES),
        *((raw, r"^\S+a\.toml: is not TOML \(") for raw in NO_TOML),
        ("a = 1".encode("utf-16"), r"a\.toml: line 1 is not UTF-8"),
    ],
)
def test_a_wrong_base_and_what_is_no_toml_are_named(tmp_path, raw, fault):
    (tmp_path / "a.toml").write_bytes(raw)
    assert re.search(fault, refused(name=str(tmp_path / "a.toml")))


def test_differences_name_what_two_runs_may_not_differ_in():
    mine = recipe("ptb-drill-4")
    assert mine.differences(mine.changed(training={"epochs": 3, "checkpoint_seconds": 9.0})) == []
    theirs = mine.changed(training={"seed": 5}, layer={"depth": 2})
    assert mine.differences(theirs) == ["layer.depth: 4 -> 2", "training.seed: 28 -> 5"]
    assert mine.differences(recipe("ptb-drill-4", ["init_from=runs/x"])) == [
        "init_from: None -> 'runs/x'"
    ]
    over = recipe("ptb-mos").differences(recipe("ptb-mos-drill"))
    assert "layer.inner.name: 'tied' -> 'deep-residual'" in over
    assert "layer.inner.depth: None -> 4" in over


# -- older versions -------------------------------------------------------------------------------


def test_settings_of_an_older_version_are_read_from_ledgers_alone(tmp_path):
    text = recipe("demo-tied").to_toml()
    old = text.replace("embedding_dim", "width").replace("max_grad_norm", "clip")
    (tmp_path / "recipe.toml").write_text(old)
    with pytest.raises(SettingsError, match=r"it is now encoder\.embedding_dim"):
        read_settings(tmp_path / "recipe.toml")
    assert with_new_names(tomllib.loads(old)) == tomllib.loads(text)


def test_settings_that_were_removed_are_read_where_they_change_nothing():
    settings = recipe("gpt-demo")
    tables = settings.to_dict()
    tables["optimizer"] |= {"average": "tail", "ema_decay": 0.999}
    tables["training"] |= {"past_decode": 0.0}
    assert resolve_settings(tables) == settings
    with pytest.raises(SettingsError, match=r"optimizer\.average: unknown setting"):
        recipe("gpt-demo", ["optimizer.average=ema"])


# -- the docs -------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"
BY_OTHERS = {"`seed`": None}  # a default that another setting gives


@pytest.mark.parametrize(
    ("page", "head", "of"),
    [
        ("language-models.md", "setting", LanguageModelOptions),
        ("language-models.md", "setting of `sgd`", Sgd),
        ("translation.md", "setting", TranslationOptions),
    ],
    ids=["language model", "sgd", "translator"],
)
def test_settings_and_their_defaults_are_those_of_the_docs(page, head, of):
    text = (DOCS / page).read_text()
    table = text.split(f"| {head} | default | meaning |\n|---|---|---|\n")[1]
    documented = {}
    for line in table.split("\n\n")[0].splitlines():
        names, defaults, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        values = [value.strip() for value in defaults.split(",")]
        documented |= dict(zip(re.findall(r"`(\w+)`", names), values, strict=True))
    wanted = {name: option.default for name, option in inspect.signature(of).parameters.items()}
    assert documented.keys() == wanted.keys()
    for name, default in documented.items():
        found = wanted[name]
        expected = "none" if found is None else str(found).lower()
        if isinstance(found, float):
            assert float(default) == found, name
        elif default in BY_OTHERS:
            assert found is BY_OTHERS[default], name
        else:
            assert default.strip("`") == expected, name


def test_an_argument_of_ones_own_layer_needs_an_annotation(monkeypatch):
    class Unannotated(TiedSoftmax):
        def __init__(self, embedding, scale):
            super().__init__(embedding)

    monkeypatch.setitem(LAYERS, "own", Unannotated)
    with pytest.raises(SettingsError, match="scale"):
        recipe("demo-tied", ["layer.name=own"])
