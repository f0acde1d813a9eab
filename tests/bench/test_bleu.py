"""Translators are compared where they differ by their layer alone."""

from dataclasses import replace
from functools import cache

import pytest

from drill.report import Row, read
from tests.bench.scripts import ROOT, script


@pytest.fixture
def bleu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import bleu

    return bleu


@cache
def ledger() -> list[Row]:
    """Read once, since it grows with every run that is recorded."""
    return read(ROOT / "results/runs.jsonl")


def made(
    layer: str,
    seed: int,
    score: float,
    minute: int = 0,
    *,
    lr: float | None = 1e-3,
    width: int = 8,
    **more: object,
) -> Row:
    """A row of the ledger; without ``lr`` an older one, which holds no settings."""
    row = next(row for row in ledger() if row.recipe == "multi30k-tied")
    settings = {
        "recipe": f"multi30k-{layer}",
        "data": {"corpus": "multi30k"},
        "layer": {"name": layer, "width": width},
        "optimizer": {"lr": lr},
        "training": {"seed": seed},
    }
    return replace(
        row,
        recipe=f"multi30k-{layer}",
        layer=layer,
        seed=seed,
        settings={} if lr is None else settings,
        settings_digest=f"{layer} {lr} {width}",
        recorded=f"2026-01-01T00:{minute:02}:00+00:00",
        extra={"bleu": score, "beam": 4, "length_penalty": 0.6},
        **more,
    )


def cells(lines: list[str]) -> list[list[str]]:
    """Rows of the first table, without its head."""
    rows = [line for line in lines if line.startswith("| multi30k")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def test_of_a_layer_its_latest_settings_and_of_a_seed_its_latest_run_stand_there(bleu):
    rows = [
        *(made("tied", seed, 40.0 + seed, seed) for seed in (1, 2)),
        *(made("dual", seed, 30.0, 3) for seed in (1, 2)),
        made("dual", 2, 41.0, 9, width=9),
        made("dual", 1, 11.0, 7, width=9),
        made("dual", 1, 43.0, 8, width=9),
    ]
    tied, dual = cells([*bleu.table(rows)])
    assert tied[3:5] == ["41.00, 42.00", "41.50"]
    assert dual[3:] == ["43.00, 41.00", "42.00", "+0.50 ± 1.12", "", ""]  # sqrt(0.25 + 1)


@pytest.mark.parametrize("lr", [1e-3, None])
def test_a_baseline_of_other_settings_is_none(bleu, lr):
    """One run of tied weights by another rate neither replaces the baseline nor is held to it."""
    rows = [
        *(made("tied", seed, 40.0, 1, lr=lr) for seed in (1, 2, 3)),
        *(made("dual", seed, 40.5, 2, lr=lr) for seed in (1, 2, 3)),
        made("tied", 1, 20.0, 9, lr=5e-4),
        made("drill", 1, 21.0, 9, lr=7e-4),
    ]
    found = cells([*bleu.table(rows)])
    assert [(row[0], row[1], row[4], row[5]) for row in found] == [
        ("multi30k (1)", "tied", "40.00", ""),
        ("multi30k (1)", "dual", "40.50", "+0.50 ± 0.00"),
        ("multi30k (2)", "tied", "20.00", ""),
        ("multi30k (3)", "drill", "21.00", ""),
    ]


def test_other_scores_stand_beside_bleu_with_how_sacrebleu_was_asked(bleu):
    told = {"tokenised_bleu": 41.0, "chrf": 60.5, "signatures": {"chrf_signature": "nc:6"}}
    rows = [made("tied", 1, 40.0), made("tied", 2, 40.0), made("dual", 1, 41.0)]
    rows[1:] = [replace(row, extra={**row.extra, **told}) for row in rows[1:]]
    lines = [*bleu.table(rows)]
    tied, dual = cells(lines)
    assert tied[6:] == ["", ""]  # the mean of one of two would compare with nothing
    assert dual[5:] == ["+1.00", "41.00", "60.50"]
    assert "chrF: `nc:6`" in lines


def test_what_was_made_again_with_as_many_seeds_stands_alone(bleu):
    old = [made(layer, seed, 9.0, 1, lr=None) for layer in ("tied", "dual") for seed in (1, 2)]
    new = [made(layer, seed, 14.0, 2) for layer in ("tied", "dual", "drill") for seed in (1, 2)]
    assert [row[0] for row in cells([*bleu.table([*old, *new[:-3]])])] == [
        *["multi30k (1)"] * 2,
        *["multi30k (2)"] * 2,
    ]
    assert [row[:2] for row in cells([*bleu.table([*old, *new])])] == [
        ["multi30k", layer] for layer in ("tied", "dual", "drill")
    ]


def test_changes_of_the_recipe_stand_below(bleu):
    lr, depth = "optimizer.lr: 0.002 -> 0.001", "layer.depth: 2 -> 4"
    rows = [
        made("tied", 1, 40.0, changes=[lr]),
        made("tied", 2, 40.0, changes=[lr]),
        made("drill", 1, 40.0, changes=[depth, lr]),
    ]
    *_, note = bleu.table(rows)
    assert note == f"Changed from the recipe to the runs of multi30k: {lr}; {depth} (drill)."
    *_, note = bleu.table([made("tied", 1, 40.0, lr=None)])
    assert "Rows of multi30k were recorded before rows held their settings" in note


def evaluation(matched: int, *, wanted: int = 10, beam: int = 4) -> dict[str, object]:
    counts = [(0, 1, 0, 0, 0), (1, 10, wanted, 10, matched), (10, None, 50, 50, 25)]
    keys = ("low", "high", "wanted", "written", "matched")
    bands = [{**dict(zip(keys, each, strict=True)), "types": 3} for each in counts]
    told = {"kind": "translation", "split": "test", "beam": beam, "length_penalty": 0.6}
    return {**told, "subword_bands": bands}


def test_labels_by_frequency_are_means_over_seeds_against_tied_weights(bleu):
    matches = {"tied": (4, 6), "dual": (7, 7), "drill": (8, 9)}
    rows = [
        made(layer, seed, 40.0, evaluations=[evaluation(matched), evaluation(1, beam=8)])
        for layer, each in matches.items()
        for seed, matched in enumerate(each, start=1)
    ]
    lines = [*bleu.table(rows)]
    assert lines[-4:] == [
        "| training count | types | wanted | tied | dual | drill | dual, points | drill, points |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        "| 1 to 9 | 3 | 10 | 50.0 ± 14.1 | 70.0 ± 0.0 | 85.0 ± 7.1 | +20.0 | +35.0 |",
        "| 10 and more | 3 | 50 | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 | +0.0 | +0.0 |",
    ]
    assert "Subwords of multi30k found again" in lines[-6]
    assert "mean of 2 seeds" in lines[-6]
    assert [*bleu.table(rows, kinds=("word",))][-1].startswith("± is the standard error")


def test_labels_of_a_file_called_test_are_not_those_of_the_test(bleu):
    own = {**evaluation(9, wanted=12), "reference": "ours.de"}
    rows = [made(layer, 1, 40.0, evaluations=[evaluation(4), own]) for layer in ("tied", "dual")]
    assert "| 1 to 9 | 3 | 10 | 40.0 | 40.0 | +0.0 |" in [*bleu.table(rows)]
    rows = [made(layer, 1, 40.0, evaluations=[own]) for layer in ("tied", "dual")]
    assert not any("training count" in line for line in bleu.table(rows))


def test_labels_of_other_references_are_not_compared(bleu):
    rows = [
        made("tied", 1, 40.0, evaluations=[evaluation(4)]),
        made("dual", 1, 40.0, evaluations=[evaluation(4, wanted=12)]),
    ]
    with pytest.raises(SystemExit, match="subwords of dual were held against other references"):
        [*bleu.table(rows)]


def test_all_of_a_ledger_is_printed_and_its_page_filled_with_its_own_corpora(tmp_path):
    """Bands of words and subwords too, of whatever corpus."""
    lines = (ROOT / "results/runs.jsonl").read_text().splitlines()
    lines = [line.replace("multi30k", "own") for line in lines if "multi30k" in line]
    ledger, page = tmp_path / "ledger.jsonl", tmp_path / "page.md"
    ledger.write_text("\n".join(lines) + "\n")
    found = script("bleu", ledger)
    assert found.returncode == 0, found.stderr
    assert "| own | tied |" in found.stdout
    assert "Subwords of own found again" in found.stdout
    assert "\nWords of own found again" in found.stdout
    page.write_text("<!-- from bench/bleu.py -->\nkept\n<!-- end of bleu -->\n")
    found = script("bleu", ledger, "--into", page)
    assert found.returncode == 1
    assert "about multi30k, europarl, of which no row is" in found.stderr
    assert "kept" in page.read_text()


def test_a_ledger_without_translators_is_refused(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text("")
    found = script("bleu", ledger)
    assert (found.returncode, found.stdout) == (1, "")
    assert "ledger.jsonl: holds no translator's BLEU" in found.stderr
