"""The plan of a study, a TOML file: rows of settings, each with seeds and stages.

docs/studies.md has an example with every key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from drill.errors import SettingsError, nearest
from drill.language_modeling.build import derive_finetune_settings
from drill.recipes.reader import NAME, apply_overrides, parsed
from drill.report.results.runs import SEED, digest, without
from drill.report.tables.result_tables import paper_figures
from drill.training.schema import with_defaults
from drill.training.settings import (
    FILES_ONLY,
    KERNELS,
    TRANSLATION,
    Settings,
    recipe,
    resolve_settings,
)

TRAIN, FINETUNE, DYNAMIC, CACHE, BLEU = "train", "finetune", "dynamic", "cache", "bleu"
WORDS, ANALYSE = "words", "analyse"
TRAINING = (TRAIN, FINETUNE)  # stages that write a run folder; the others evaluate one
OF_LANGUAGE_MODELS = (TRAIN, FINETUNE, DYNAMIC, CACHE, WORDS, ANALYSE)
OF_TRANSLATORS = (TRAIN, BLEU)
STAGES = (*OF_LANGUAGE_MODELS, BLEU)


@dataclass(frozen=True)
class PlanRow:
    """One line of the table, a [[row]] of the file: settings that are trained once per seed."""

    name: str
    recipe: str
    seeds: Sequence[int] = (1,)
    stages: Sequence[str] = (TRAIN,)
    set: Sequence[str] = ()
    finetune_set: Sequence[str] = ()
    paper: str | None = None
    """The recipe whose published figures are shown next to this row; its own by default."""

    def run(self, seed: int, stage: str) -> str:
        """The name of the run folder that a stage writes or evaluates."""
        name = f"{self.name}-seed-{seed}"
        return name if self.trained_by(stage) == TRAIN else f"{name}-finetune"

    def trained_by(self, stage: str) -> str:
        """The stage itself, or the last training stage before it."""
        return FINETUNE if FINETUNE in self.stages[: self.stages.index(stage) + 1] else TRAIN


@dataclass(frozen=True)
class Job:
    """One stage of one run."""

    row: PlanRow
    seed: int
    stage: str

    @property
    def run(self) -> str:
        return self.row.run(self.seed, self.stage)

    @property
    def trains(self) -> bool:
        return self.stage in TRAINING

    @property
    def source(self) -> "Job | None":
        """The job whose weights this one starts from or evaluates."""
        if self.stage == TRAIN:
            return None
        stage = TRAIN if self.stage == FINETUNE else self.row.trained_by(self.stage)
        return Job(self.row, self.seed, stage)

    @property
    def settings(self) -> Settings:
        """The settings of the run that is trained or evaluated."""
        return row_settings(self.row, self.seed, self.row.trained_by(self.stage))

    def __str__(self) -> str:
        return f"{self.row.name}-seed-{self.seed} {self.stage}"


@dataclass(frozen=True)
class Plan:
    name: str
    ledger: str  # a file of results/ without .jsonl; plans may share one
    rows: tuple[PlanRow, ...]
    baseline: str | None = None
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Evaluation stage -> further words of its command line, such as --search."""

    @property
    def stages(self) -> list[str]:
        """The stages that any row has, in order."""
        return [stage for stage in STAGES if any(stage in row.stages for row in self.rows)]

    def only(self, names: Sequence[str]) -> "Plan":
        """The plan with these rows alone."""
        known = [row.name for row in self.rows]
        if missing := [name for name in names if name not in known]:
            near = nearest(missing[0], known)
            raise SettingsError(f"{missing[0]} is not in the plan{near}", key="--row")
        baseline = self.baseline if self.baseline in names else None
        rows = tuple(row for row in self.rows if row.name in names)
        return replace(self, rows=rows, baseline=baseline)

    def jobs(self) -> list[Job]:
        """All jobs, most informative first: every row with its first seed, then the next."""
        rounds = zip_longest(*([(row, seed) for seed in row.seeds] for row in self.rows))
        return [
            Job(row, seed, stage)
            for pairs in rounds
            for row, seed in filter(None, pairs)
            for stage in row.stages
        ]


@cache
def row_settings(row: PlanRow, seed: int, stage: str = TRAIN) -> Settings:
    """What the run of a training stage is trained with."""
    settings = recipe(row.recipe, [*row.set, f"training.seed={seed}"])
    if stage == TRAIN:
        return settings
    tuned = derive_finetune_settings(settings, row.run(seed, TRAIN))
    return resolve_settings(apply_overrides(tuned.to_dict(), row.finetune_set))


def identity(settings: Settings) -> str:
    """Equal for runs of one experiment: seeds, kernels and where the text is may differ."""
    tables = without(settings.to_dict(), ("recipe", SEED, *FILES_ONLY, *KERNELS))
    tables["init_from"] = settings.init_from is not None  # each seed has its own
    tables["data"]["corpus"] = Path(tables["data"]["corpus"]).name
    return digest(tables)


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    """Evaluation stage -> further words of its command line."""

    dynamic: Sequence[str] = ()
    cache: Sequence[str] = ()
    words: Sequence[str] = ()
    bleu: Sequence[str] = ()


PLAN_KEYS = ("ledger", "baseline", "options", "row")


def read_plan(path: Path | str) -> Plan:
    """Read and check a plan.

    Args:
        path: a TOML file, see docs/studies.md.

    Returns:
        The plan; every row's settings are resolved.
    """
    path = Path(path)
    try:
        return _plan(parsed(path), path.stem)
    except SettingsError as error:
        at = "" if str(path) in str(error) else f"{path}: "
        raise SettingsError(f"{at}{error}") from None


def _plan(tables: dict[str, Any], name: str) -> Plan:
    shared = {key: value for key, value in tables.items() if key not in ("name", *PLAN_KEYS)}
    array = tables.get("row")
    if not isinstance(array, list) or not array or not all(isinstance(row, dict) for row in array):
        raise SettingsError("has no rows; add [[row]] with a name and a recipe")
    name, options = tables.get("name", name), tables.get("options", {})
    ledger = tables.get("ledger", name)
    if not isinstance(name, str) or not isinstance(ledger, str) or not isinstance(options, dict):
        raise SettingsError("name and ledger must be strings, and options a table")
    with_defaults("plan", {"name": "-", "recipe": "-", **shared}, PlanRow, also=PLAN_KEYS)
    rows = tuple(_row(f"row {n}", shared, table) for n, table in enumerate(array, start=1))
    names = [row.name for row in rows]
    for row_name in names:
        if names.count(row_name) > 1:
            raise SettingsError(f"{names.count(row_name)} rows are named {row_name}; rename one")
    if len({row_settings(row, row.seeds[0]).task for row in rows}) > 1:
        raise SettingsError("rows are of different tasks; make a plan for each task")
    baseline = tables.get("baseline")
    if baseline is not None and baseline not in names:
        near = nearest(str(baseline), names)
        raise SettingsError(f"no row is named {baseline!r}{near}", key="baseline")
    return Plan(name, ledger, rows, baseline, with_defaults("options", options, _Options))


def _row(where: str, shared: dict[str, Any], table: dict[str, Any]) -> PlanRow:
    """A row on top of what all have; lists of changes come one after the other."""
    filled = with_defaults(where, table, PlanRow)
    filled |= {key: value for key, value in shared.items() if key not in table}
    for key in ("set", "finetune_set"):
        filled[key] = [*shared.get(key, ()), *table.get(key, ())]
    lists = {key: tuple(filled[key]) for key in ("seeds", "stages", "set", "finetune_set")}
    row = PlanRow(**(filled | lists))
    if not row.name.strip() or "/" in row.name:
        raise SettingsError(f"{where}: name: names run folders, so it cannot be {row.name!r}")
    for key, values in (("seeds", row.seeds), ("stages", row.stages)):
        if not values or len(set(values)) < len(values):
            raise SettingsError(f"{where}: {key}: names each once, not {list(values)}")
    if row.paper is not None and not paper_figures(row.paper):
        raise SettingsError(f"{where}: paper: there are no figures of {row.paper!r}")
    try:
        _check_stages(row, row_settings(row, row.seeds[0]))
        if FINETUNE in row.stages:
            row_settings(row, row.seeds[0], FINETUNE)
    except SettingsError as error:
        raise SettingsError(f"{where} ({row.name}): {error}") from None
    return row


def _check_stages(row: PlanRow, settings: Settings) -> None:
    allowed = OF_TRANSLATORS if settings.task == TRANSLATION else OF_LANGUAGE_MODELS
    for stage in row.stages:
        if stage not in allowed:
            raise SettingsError(f"stages: {stage} is not one of {', '.join(allowed)}")
    if row.stages[0] != TRAIN:
        raise SettingsError(f"stages: the first is {TRAIN}, not {row.stages[0]}")
    if WORDS in row.stages and not settings.data["held_out"]:
        raise SettingsError(f"stages: {WORDS} needs data.held_out")
    if FINETUNE in row.stages and settings.optimizer[NAME] in ("adamw", "muon"):
        raise SettingsError(
            f"stages: runs of {settings.optimizer[NAME]} cannot be finetuned; leave out finetune"
        )
