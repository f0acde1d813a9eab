"""Tables of losses by word frequency."""

import math
from dataclasses import asdict

from drill.language_modeling.evaluation.frequency_bands import Band, BandChange
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.tables.band_tables import (
    TextBands,
    accuracy_table,
    bands_table,
    changes_table,
    saved_accuracy,
)

BANDS = [Band(0, 1, 0, 0, 0.0), Band(1, 50, 2, 4, 20.0), Band(50, None, 3, 100, 300.0)]
OTHER = [Band(0, 1, 0, 0, 0.0), Band(1, 50, 2, 4, 22.0), Band(50, None, 3, 100, 297.0)]


def test_bands_table_of_two_models():
    table = bands_table(TextBands({"drill": BANDS, "tied": OTHER}))
    assert table.headings == [
        "training count", "types", "tokens", "drill", "tied", "tied, %",
    ]  # fmt: skip
    assert [list(row) for row in table.rows] == [
        ["1 to 49", "2", "4", "5.000", "5.500", "+10.00"],
        ["50 and more", "3", "100", "3.000", "2.970", "-1.00"],
        ["all", "5", "104", "3.077", "3.067", "-0.31"],
    ]
    assert "drill" in table.notes[0]


def test_changes_both_ways():
    changes = [
        BandChange(0, 1, 0, 0, math.nan, math.nan),
        BandChange(1, 50, 4116, 9000, 17.55, 2.29, 0.1234, sure=41),
        BandChange(50, 100, 861, 7000, -0.004, math.inf, 0.0001),
    ]
    table = changes_table(TextBands({"drill": BANDS}, {"tied": changes}))
    assert table.notes[0].startswith("Change of loss against drill, negative is better: ")
    assert table.headings == [
        "training count", "types", "tokens", "tied, nats", "tied by types, %", "tied by tokens, %",
    ]  # fmt: skip
    assert [list(row) for row in table.rows] == [
        ["1 to 49", "4,116", "9,000", "+0.123", "+17.55", "+2.29"],
        ["50 to 99", "861", "7,000", "0.000", "0.00", "+inf"],
    ]
    assert "left out" not in table.notes[0]
    # Ratios to words that are all but certain are left out, and the note says so.
    changes.append(BandChange(100, None, 20, 90, 1203.22, 2.0, 0.004, sure=15))
    table = changes_table(TextBands({"drill": BANDS}, {"tied": changes}))
    assert [*table.rows[-1]] == ["100 and more", "20", "90", "+0.004", "", "+2.00"]
    assert "left out" in table.notes[0]
    assert "(100 and more: 15 of 20 words)" in table.notes[0]


ACCURACY = [AccuracyBand(0, 1, 0, 0, 0, 0), AccuracyBand(1, 5, 2, 4, 4, 1)]
BETTER = [AccuracyBand(0, 1, 0, 0, 1, 0), AccuracyBand(1, 5, 2, 4, 4, 2)]


def test_accuracy_of_one_model_with_its_parts():
    table = accuracy_table({"tied": [ACCURACY[0], AccuracyBand(1, 5, 2, 4, 2, 1)]})
    assert table.headings == [
        "training count", "types", "wanted", "tied F1", "precision", "recall",
    ]  # fmt: skip
    row = ["2", "4", "33.33", "50.00", "25.00"]
    assert [list(each) for each in table.rows] == [["1 to 4", *row], ["all", *row]]


def test_accuracy_of_several_models_against_the_first():
    table = accuracy_table({"tied": ACCURACY, "drill": BETTER})
    assert [list(row) for row in table.rows] == [
        ["never", "0", "0", "", "0.00", ""],
        ["1 to 4", "2", "4", "25.00", "50.00", "+25.00"],
        ["all", "2", "4", "25.00", "44.44", "+19.44"],
    ]
    assert table.notes[0].endswith("Points: F1 above that of tied.")


def test_saved_accuracy_is_of_the_test_and_the_last_with_a_search():
    def row(bands, **changes):
        saved = {"subword_bands": [asdict(band) for band in bands]}
        return {"split": "test", "beam": 4, "length_penalty": 0.6, **saved, **changes}

    rows = [
        row(ACCURACY, precision="float32"),
        row(BETTER, precision="bfloat16"),
        row(ACCURACY, beam=1),
        row(ACCURACY, split="valid"),
        {"split": "test", "kind": "cache"},
    ]
    assert saved_accuracy(rows) == {
        ("subword", "beam 4, length penalty 0.6"): BETTER,
        ("subword", "beam 1, length penalty 0.6"): ACCURACY,
    }
