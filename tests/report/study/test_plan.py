"""Plans: what they say, the order of their jobs, and which are errors."""

from pathlib import Path

import pytest

from drill.errors import SettingsError
from drill.language_modeling.build import finetune_settings
from drill.report.study.plan import FINETUNE, identity, read_plan, row_settings
from drill.training.settings import recipe
from tests.report.study.fake_drill import PLAN

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("workspace")


def test_some_rows_alone(workspace):
    plan = workspace.plan()
    assert [job.row.name for job in plan.only(["b"]).jobs()] == ["b", "b"]
    assert (plan.only(["a"]).baseline, plan.only(["b"]).baseline) == ("a", None)
    for name, hint in (("c", "known are a, b"), ("aa", "did you mean a")):
        with pytest.raises(SettingsError, match=hint) as error:
            plan.only(["a", name])
        assert error.value.key == "--row"


def test_a_row_has_its_own_seeds_stages_and_settings(workspace):
    own = 'seeds = [5]\nstages = ["train", "finetune", "dynamic"]\n'
    plan = workspace.plan('set = ["optimizer.lr=7"]' + PLAN + own)
    a, b = plan.rows
    assert (a.seeds, a.stages, b.seeds) == ((1, 2), ("train",), (5,))
    assert row_settings(b, 5).optimizer["lr"] == 7
    assert row_settings(b, 5).layer["depth"] == 1
    runs = [job.run for job in plan.jobs() if job.row == b]
    assert runs == ["b-seed-5", *["b-seed-5-finetune"] * 2]  # the finetuned run is evaluated


def test_settings_of_finetuning_are_those_of_the_command(workspace):
    plan = workspace.plan(PLAN + 'stages = ["train", "finetune"]\n')
    row = plan.rows[1]
    folder = Path("runs/b-seed-2")
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(row_settings(row, 2).to_toml())
    assert identity(row_settings(row, 2, FINETUNE)) == identity(finetune_settings(folder))
    changed = workspace.plan('finetune_set = ["training.patience=2"]' + PLAN).rows[1]
    assert row_settings(changed, 2, FINETUNE).training["patience"] == 2


def test_the_identity_of_settings_leaves_out_seeds_and_kernels():
    def of(*changes):
        return identity(recipe("tiny.toml", changes))

    assert of("training.seed=3", "training.cuda_graphs=false", "encoder.impl=reference") == of()
    assert of("training.max_minutes=3") != of()
    assert of("data.corpus=elsewhere/text") == of()
    assert of("init_from=runs/x") == of("init_from=runs/y") != of()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('baseline = "a"', 'baseline = "c"', "baseline: no row is named 'c'"),
        ('name = "b"', 'name = "a"', "2 rows are named a"),
        ('name = "b"', 'name = "b/c"', "row 2: name"),
        ("set =", "sett =", "row 2.sett"),
        ("seeds = [1, 2]", "seed = [1, 2]", "did you mean plan.seeds"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "row 1: seeds"),
        ("seeds = [1, 2]", 'stages = ["fine"]', "stages: fine"),
        ("seeds = [1, 2]", 'stages = ["cache"]', "stages: the first is train"),
        ("seeds = [1, 2]", 'stages = ["train", "bleu"]', "stages: bleu"),
        ("seeds = [1, 2]", 'stages = ["train", "words"]', "data.held_out"),
        ("seeds = [1, 2]", "options = {train = []}", "options.train"),
        ("seeds = [1, 2]", "options = 5", "options a table"),
        ('recipe = "tiny.toml"', 'recipe = "tinny"', "row 1 (a): tinny: is neither a recipe"),
        ("set =", 'paper = "ptb-fast-tied"\nset =', "row 2: paper: there are no figures of"),
        ("layer.depth=1", "layer.dept=1", "row 2 (b): layer.dept"),
        ("layer.depth=1", "optimizer.name=adamw\", \"optimizer.lr=1", "cannot be finetuned"),
        ('name = "b"\nrecipe = "tiny.toml"', 'name = "b"\nrecipe = "mt-demo"', "different tasks"),
        ("[[row]]", "[row]", "has no rows"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_an_error(old, new, fault):
    text = PLAN.replace(old, new) if old != "[[row]]" else PLAN.split("[[row]]")[0] + new
    if "finetuned" in fault:
        text += 'stages = ["train", "finetune"]\n'
    Path("plan.toml").write_text(text)
    with pytest.raises(SettingsError) as error:
        read_plan("plan.toml")
    assert fault in str(error.value)
    assert "plan.toml" in str(error.value)


@pytest.mark.parametrize("path", sorted(ROOT.glob("studies/*.toml")), ids=lambda path: path.stem)
def test_shipped_plans_can_be_read(path):
    assert read_plan(path).jobs()
