"""The page: whole, self-contained, the same twice, and deaf to what names try to say."""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest

from drill.report import (
    LedgerError,
    ReportError,
    RunError,
    TextBands,
    markdown,
    record,
    write_report,
)
from drill.report.analysis.frequency_bands import Band, compare_bands, frequency_bands
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.page.figures import best_so_far, looks
from drill.report.page.svg_plot import COLOURS, DASHES
from drill.report.results.runs import read_run, read_runs
from tests.report.drawing import checked, paths
from tests.report.folders import (
    epoch_row,
    of_weights,
    perplexities,
    write_evaluations,
    write_metrics,
    write_run,
)
from tests.report.hostile import HOSTILE

NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
VOID = {"meta"}


class Page(HTMLParser):
    """Elements in order; fails on any tag that is not closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[tuple[str, str]] = []  # (innermost element, text)
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "".join(text for tag, text in self.said if tag != "style")

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def written(tmp_path, runs, **more) -> tuple[str, Page]:
    text = write_report(runs, tmp_path / "page.html", now=NOW, **more).read_text(encoding="utf-8")
    page = Page(text)
    identifiers = [each["id"] for _, each in page.elements if "id" in each]
    assert len(identifiers) == len(set(identifiers))
    for _, attributes in page.elements:  # what is referred to is there
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in identifiers
        if (link := attributes.get("href")) is not None:
            assert link.removeprefix("#") in identifiers
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        checked(svg)
    return text, page


def plots(text: str) -> list[str]:
    return re.findall(r'<svg class="plot".*?</svg>', text, re.DOTALL)


@pytest.fixture
def runs(tmp_path):
    drill = {"recipe": "ptb-drill-4", "layer": "deep-residual", "options": "depth = 4\n"}
    first, second, third = (perplexities(*ends, 40) for ends in [(330, 62), (310, 60), (305, 60.4)])
    return [
        write_run(tmp_path / "tied", valid=first, test=59.0),
        write_run(tmp_path / "drill-1", seed=1, valid=second, test=57.0, **drill),
        write_run(tmp_path / "drill-2", seed=2, valid=third, test=57.4, **drill),
    ]


@pytest.fixture
def words():
    """Losses of three models on one text."""
    generator = np.random.default_rng(0)
    counts = np.array([0, 10, 70, 200, 6000])
    targets = generator.integers(5, size=500)
    losses = {"tied": 1.1, "drill-1": 1.0, "elsewhere": 0.9}
    base = generator.exponential(4.0, 500)
    bands = {name: frequency_bands(base * f, targets, counts) for name, f in losses.items()}
    changes = {"tied": compare_bands(base, base * 1.1, targets, counts)}
    return TextBands(bands, changes)


# -- what is on it --------------------------------------------------------------------------------


def test_a_page_says_what_the_runs_say(tmp_path, runs, words):
    ledger = tmp_path / "runs.jsonl"
    record(runs[0], ledger, "the baseline", now=NOW)
    samples = {"tied": ["the lamp is lit\nthe boat is late"]}
    text, page = written(
        tmp_path, runs, ledgers=[ledger], samples=samples, title="Three runs", texts=[words]
    )
    headings = [said for tag, said in page.said if tag == "h2"]
    assert headings == [
        "Results",
        "Learning curves",
        "Time to a perplexity",
        "Rare and frequent words",
        "Samples",
        "Ledgers",
        "Settings and environment",
    ]
    assert len(plots(text)) == 4
    assert ("h1", "Three runs") in page.said
    assert "3 runs, 1 ledger, written 2026-11-15 09:30 UTC" in page.text
    assert "Lowest test perplexity on ptb: 57.00, by drill-1" in page.text
    assert "57.20 ± 0.20" in page.text
    assert "60.7 / 58.8" in page.text
    assert "the baseline" in page.text
    assert "the lamp is lit\nthe boat is late" in page.text
    assert ("dt", "depth") in page.said
    assert ("dd", "NVIDIA H200") in page.said


def test_a_page_says_which_words_its_bands_leave_out(tmp_path, runs, words):
    assert "Without" not in written(tmp_path, runs, texts=[words])[1].text
    words = replace(words, left_out=["<eos>"])
    _, page = written(tmp_path, runs, texts=[words])
    assert page.text.count("Without <eos>") == 2


def test_every_text_says_what_it_leaves_out_and_what_is_held_against_what(tmp_path, runs, words):
    """Also where two texts have equally many words in every band."""
    other = TextBands({"drill-2": words.losses["tied"]}, left_out=["<eos>", "<unk>"])
    text, page = written(tmp_path, runs, texts=[replace(words, left_out=["<eos>"]), other])
    section = text.split('<section id="bands"')[1].split("</section>")[0]
    assert section.count(">Loss by training count<") == 2
    assert "Loss against tied" in page.text
    assert page.text.count("Without <eos> and <unk>") == 1


def test_translators_of_different_texts_share_a_page(tmp_path, runs):
    far = [AccuracyBand(1, None, 2, 5, 4, 1)]
    accuracy = {"word": {"tied": [AccuracyBand(1, None, 2, 4, 4, 1)], "drill-1": far}}
    _, page = written(tmp_path, runs, accuracy=accuracy)
    assert "Words that translators get right (ptb: tied)" in page.text
    assert "Words that translators get right (ptb: drill-1)" in page.text


def test_one_epoch_gives_no_time_to_a_perplexity(tmp_path, runs):
    short = write_run(tmp_path / "short", valid=[300.0])
    text, page = written(tmp_path, [short])
    assert "Not shown, since one epoch has one time only: short." in page.text
    assert len(plots(text)) == 1
    assert "at or below a perplexity" not in page.text
    text, page = written(tmp_path, [*runs, short])
    assert "one time only: short." in page.text
    assert len(plots(text)) == 2
    section = text.split('<section id="time"')[1].split("</section>")[0]
    assert section.count("short") == 1
    assert "one time only" not in written(tmp_path, runs)[1].text


def test_a_page_needs_nothing_from_elsewhere(tmp_path, runs, words):
    text, page = written(tmp_path, runs, texts=[words])
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form"})
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in text
    for _, attributes in page.elements:
        assert not {"src", "srcset", "style", "xlink:href"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]


def test_a_page_can_be_read_without_seeing_it(tmp_path, runs, words):
    text, page = written(tmp_path, runs, texts=[words])
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    for svg in plots(text):
        root = checked(svg)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-labelledby"].count(" ") == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in each for each in page.all("th"))
    legend = [each for tag, each in page.elements if tag == "svg" and "plot" not in each["class"]]
    assert all(each["aria-hidden"] == "true" for each in legend)


def test_the_same_input_gives_the_same_bytes(tmp_path, runs, words):
    first = write_report(runs, tmp_path / "a.html", now=NOW, texts=[words]).read_bytes()
    assert write_report(runs, tmp_path / "b.html", now=NOW, texts=[words]).read_bytes() == first
    other = write_report(runs, tmp_path / "b.html", now=NOW.replace(minute=31), texts=[words])
    assert other.read_bytes() != first


def test_runs_on_different_texts_are_not_drawn_together(tmp_path, runs):
    other = write_run(tmp_path / "wt2", recipe="wt2-tied", valid=perplexities(600.0, 70.0, 20))
    recipe = other / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"ptb"', '"wikitext-2"'))
    text, page = written(tmp_path, [*runs, other])
    assert len(plots(text)) == 4
    assert [said for tag, said in page.said if tag == "h3"] == ["ptb", "wikitext-2"] * 2
    assert page.text.count("Lowest test perplexity on") == 2


def test_every_text_has_its_own_bands(tmp_path, runs, words):
    other = write_run(tmp_path / "wt2", recipe="wt2-tied", valid=perplexities(600.0, 70.0, 20))
    recipe = other / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"ptb"', '"wikitext-2"'))
    far = frequency_bands([2.0, 3.0], [0, 1], [4, 60])
    text, page = written(tmp_path, [*runs, other], texts=[words, TextBands({"wt2": far})])
    section = text.split('<section id="bands"')[1].split("</section>")[0]
    headings = [said for tag, said in page.said if tag == "h3"]
    assert headings[-2:] == ["ptb: tied, drill-1, elsewhere", "wikitext-2: wt2"]
    first, second = section.split("wikitext-2: wt2")
    assert (first.count("<table"), second.count("<table")) == (2, 1)
    assert "wt2" not in first.replace(headings[-1], "")
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))


def test_colours_are_of_recipes_and_dashes_of_seeds(runs):
    found = looks(read_runs(runs), ["drill-1", "elsewhere"])
    assert found["drill-1"].colour == found["drill-2"].colour != found["tied"].colour
    assert found["drill-1"].dash != found["drill-2"].dash
    assert found["elsewhere"].colour not in (found["tied"].colour, found["drill-1"].colour)


def test_the_best_so_far_never_rises(tmp_path):
    run = read_run(write_run(tmp_path / "a", valid=["nan", 90.0, 95.0, 80.0], seconds=10.0))
    assert best_so_far(run) == [(10.0, math.inf), (20.0, 90.0), (30.0, 90.0), (40.0, 80.0)]


# -- edges ----------------------------------------------------------------------------------------


def test_no_runs_make_a_page_too(tmp_path):
    text, page = written(tmp_path, [])
    assert "No runs were given." in page.text
    assert "0 runs, written" in page.text
    assert plots(text) == []


def test_a_page_of_a_ledger_has_no_empty_section_of_runs(tmp_path):
    run = write_run(tmp_path / "one", valid=[300.0], test=290.0)
    record(run, tmp_path / "ledger.jsonl")
    _, page = written(tmp_path, [], ledgers=[tmp_path / "ledger.jsonl"])
    assert "1 ledger, written" in page.text
    assert "Results" not in page.text
    assert "No runs" not in page.text
    _, page = written(tmp_path, [run], ledgers=[tmp_path / "ledger.jsonl"])
    assert "1 run, 1 ledger, written" in page.text
    assert "Results" in page.text


def test_one_epoch_is_a_dot_and_a_row(tmp_path):
    text, page = written(tmp_path, [write_run(tmp_path / "one", valid=[300.0], test=290.0)])
    assert "one reaches 300.00 in 1 epoch." in text
    assert len(plots(text)) == 1
    assert paths(checked(plots(text)[0])) == []
    assert "1 run, written" in page.text
    assert "300.00" in page.text


def test_a_run_that_diverged_is_told_and_not_drawn(tmp_path):
    gone = write_run(tmp_path / "gone", valid=["nan", "inf", "nan"], test=None)
    text, page = written(tmp_path, [gone])
    assert plots(text) == []
    assert "No epoch has a finite perplexity." in page.text
    back = write_run(tmp_path / "back", valid=[300.0, "inf", 200.0, 180.0], test=None)
    text, _ = written(tmp_path, [gone, back])
    assert len(paths(checked(plots(text)[0]))) == 1


def test_epochs_without_times_have_no_plot_of_times(tmp_path):
    run = write_run(tmp_path / "a")
    write_metrics(run, [epoch_row(1, 90.0, elapsed=None), epoch_row(2, 80.0, elapsed=None)])
    text, page = written(tmp_path, [run])
    assert len(plots(text)) == 1
    assert "No epoch has a time and a finite perplexity." in page.text


def test_thirty_runs_fit(tmp_path):
    folders = [
        write_run(
            tmp_path / f"run-{n}",
            recipe=f"recipe-{n // 3}",
            seed=n,
            valid=perplexities(300, 60 + n, 9),
        )
        for n in range(30)
    ]
    text, page = written(tmp_path, folders)
    assert len(page.all("details")) == 30
    groups = re.findall(r'<g class="line (c\d d\d)">', plots(text)[0])
    assert len(groups) == 30
    assert len(set(groups)) == 30  # no two look alike
    assert COLOURS * DASHES >= 30


def test_equal_names_in_different_folders_stay_apart(tmp_path):
    folders = [write_run(tmp_path / place / "tied") for place in ("monday", "tuesday")]
    _, page = written(tmp_path, folders)
    assert ("bdi", "monday/tied") in page.said
    assert ("bdi", "tuesday/tied") in page.said


def test_a_long_name_is_there_in_full(tmp_path):
    name = "x" * 200
    _, page = written(tmp_path, [write_run(tmp_path / name)])
    assert ("bdi", name) in page.said


def test_damage_is_named_on_the_page(tmp_path, runs):
    (runs[0] / "environment.json").write_text("{")
    _, page = written(tmp_path, runs)
    assert f"{runs[0]}/environment.json: is not JSON" in page.text
    assert ("h2", "Read with care") in page.said


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_stay_words(tmp_path, text):
    folder = tmp_path / re.sub(r"[/\x00\ud800]", "-", text)
    run = write_run(folder, valid=[90.0, 80.0], device=text, commit=text, **{text: text})
    recipe = f"recipe = {json.dumps(text)}\n[layer]\nname = {json.dumps(text)}\n"
    if "\ud800" not in text and "\x7f" not in text:
        (run / "recipe.toml").write_text(recipe, encoding="utf-8")
    ledger = tmp_path / "runs.jsonl"
    record(run, ledger, "note" if "\ud800" in text else text)
    texts = [TextBands({text: [Band(1, None, 1, 10, 20.0)]})]
    page_text, page = written(
        tmp_path, [run], ledgers=[ledger], texts=texts, samples={text: [text]}, title=text
    )
    plain, plain_page = written(tmp_path, [write_run(tmp_path / "plain", valid=[90.0, 80.0])])
    allowed = {tag for tag, _ in plain_page.elements} | {"rect", "tspan", "blockquote", "h3"}
    assert {tag for tag, _ in page.elements} <= allowed
    shown = text.replace("\ud800", "\ufffd").replace("\u202e", "\ufffd")
    shown = re.sub(r"[\x00\x1b\x7f]", "\ufffd", shown)
    assert ("h1", shown) in page.said
    assert shown in page.text
    assert "\x00" not in page_text
    assert plain != page_text
    markdown([run], [ledger]).encode("utf-8")


# -- files ----------------------------------------------------------------------------------------


def test_a_page_replaces_the_old_one_whole_and_leaves_nothing_else(tmp_path, runs):
    out = tmp_path / "new" / "page.html"
    write_report(runs, out, now=NOW)
    write_report(runs[:1], str(out), now=NOW)
    assert [each.name for each in out.parent.iterdir()] == ["page.html"]
    assert "1 run, written" in out.read_text(encoding="utf-8")


def test_what_cannot_be_read_or_written_is_named(tmp_path, runs):
    with pytest.raises(RunError, match="none: is no folder"):
        write_report([tmp_path / "none"], tmp_path / "page.html")
    with pytest.raises(LedgerError, match=r"none\.jsonl: cannot be read"):
        write_report(runs, tmp_path / "page.html", ledgers=[tmp_path / "none.jsonl"])
    assert not (tmp_path / "page.html").exists()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ReportError, match=r"folder: cannot be written \(Is a directory\)"):
        write_report(runs, tmp_path / "folder")
    bands = {"a": [Band(1, None, 1, 1, 1.0)], "b": [Band(50, None, 1, 1, 1.0)]}
    with pytest.raises(ReportError, match="bands: b has bands that start at 50 and a at 1"):
        write_report(runs, tmp_path / "page.html", texts=[TextBands(bands)])


def test_the_time_needs_its_zone(tmp_path):
    with pytest.raises(ValueError, match="write_report: now needs a time zone"):
        write_report([], tmp_path / "page.html", now=NOW.replace(tzinfo=None))


def test_markdown_holds_the_tables(tmp_path, runs):
    ledger = tmp_path / "runs.jsonl"
    record(runs[0], ledger)
    (runs[2] / "environment.json").unlink()
    text = markdown(runs, [ledger])
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[:2] == ["## Runs", "## By recipe"]
    assert titles[2].endswith("runs.jsonl")
    assert titles[3] == "## Read with care"
    assert "| ptb-drill-4 | deep-residual 4 |" in text
    assert "environment.json: is missing" in text
    assert markdown([]) == "## Runs\n\nNo runs were given.\n"
    assert markdown([], [ledger]).startswith("## ")


def test_evaluations_have_their_section_where_there_are_any(tmp_path, runs):
    found = {"kind": "dynamic", "split": "test", "perplexity": 51.25}
    write_evaluations(runs[0], [{**found, **of_weights(runs[0])}])
    _, page = written(tmp_path, runs)
    assert ("h2", "Learning from the text") in page.said
    assert "51.25" in page.text
    assert "| tied | tied | dynamic | 51.25 |" in markdown(runs)
    ledger = tmp_path / "runs.jsonl"
    record(runs[0], ledger)
    _, page = written(tmp_path, [], ledgers=[ledger])
    assert "51.25" in page.text
    assert "| tied | tied | dynamic | 51.25 |" in markdown([], [ledger])


def test_the_environment_of_every_life_is_shown(tmp_path):
    life = {"commit": "def5678", "device": "a laptop"}
    _, page = written(tmp_path, [write_run(tmp_path / "run", resumed=[life])])
    assert [text for kind, text in page.said if kind == "h4"][-2:] == [
        "environment",
        "environment, resumed 1",
    ]
    assert "NVIDIA H200, then a laptop" in page.text


def test_evaluations_of_other_weights_are_to_be_read_with_care(tmp_path, runs):
    write_evaluations(runs[0], [{"kind": "dynamic", "split": "test", "perplexity": 51.25}])
    _, page = written(tmp_path, runs)
    assert ("h2", "Learning from the text") not in page.said
    assert "51.25" not in page.text
    assert "line 1 is left out, since no weights are named there" in page.text
    assert "line 1 is left out, since no weights are named there" in markdown(runs)


def test_markdown_of_runs_without_seeds_has_one_table(runs):
    assert "## By recipe" not in markdown(runs[:2])
