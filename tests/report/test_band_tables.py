"""Tables of losses by word frequency."""

import math

import pytest

from drill.analysis.frequency import Band, BandChange
from drill.report.band_tables import bands_table, changes_table
from drill.report.runs import ReportError

BANDS = [Band(0, 1, 0, 0, 0.0), Band(1, 50, 2, 4, 20.0), Band(50, None, 3, 100, 300.0)]
OTHER = [Band(0, 1, 0, 0, 0.0), Band(1, 50, 2, 4, 22.0), Band(50, None, 3, 100, 297.0)]


def test_bands_beside_one_another_with_the_change_over_tokens():
    table = bands_table({"drill": BANDS, "tied": OTHER})
    assert [column.heading for column in table.columns] == [
        "training count", "types", "tokens", "drill", "tied", "tied, %",
    ]  # fmt: skip
    assert [list(row) for row in table.rows] == [
        ["1 to 49", "2", "4", "5.000", "5.500", "+10.00"],
        ["50 and more", "3", "100", "3.000", "2.970", "-1.00"],
        ["all", "5", "104", "3.077", "3.067", "-0.31"],
    ]
    assert "drill" in table.notes[0]


def test_models_that_read_other_words_are_not_compared():
    other = [Band(0, 1, 0, 0, 0.0), Band(1, 50, 2, 5, 22.0), Band(50, None, 3, 100, 297.0)]
    table = bands_table({"drill": BANDS, "tied": other})
    assert "tied, %" not in [column.heading for column in table.columns]
    assert any("tied read other tokens" in note for note in table.notes)


def test_a_model_with_other_bands_is_refused():
    with pytest.raises(
        ReportError, match="tied has bands that start at 0, 1 and drill at 0, 1, 50"
    ):
        bands_table({"drill": BANDS, "tied": BANDS[:2]})
    assert bands_table({}).rows == []


def test_changes_both_ways():
    changes = [
        BandChange(0, 1, 0, 0, math.nan, math.nan),
        BandChange(1, 50, 4116, 9000, 17.55, 2.29),
        BandChange(50, None, 861, 7000, -0.004, math.inf),
    ]
    table = changes_table({"tied": changes})
    assert [column.heading for column in table.columns] == [
        "training count", "types", "tokens", "tied by types, %", "tied by tokens, %",
    ]  # fmt: skip
    assert [list(row) for row in table.rows] == [
        ["1 to 49", "4,116", "9,000", "+17.55", "+2.29"],
        ["50 and more", "861", "7,000", "0.00", "+inf"],
    ]
