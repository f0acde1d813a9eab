"""The page: complete, self-contained, reproducible, and safe from markup in names."""

import base64
import hashlib
import json
import math
import re
from datetime import UTC, datetime

import pytest

from drill.language_modeling.evaluation.frequency_bands import Band
from drill.report import TextBands, markdown, record_run, write_report
from drill.report.page.figures import (
    COLOURS,
    DASHES,
    Curve,
    best_so_far,
    css_classes,
    mean_and_range,
    time_figure,
)
from drill.report.tables.markup import markdown_text
from tests.report.folders import perplexities, text_bands, write_evaluations, write_run
from tests.report.page_reader import Page, figures

NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='alert(1)",
    "&lt;b&gt;", "</style></title></svg>", "]]>--><!--", "a | b\n| c", "\x00\x1b[31m\x7f", "\ud800",
    "\u202etxt.exe", "{{7*7}} ${x}",
]  # fmt: skip


def written(tmp_path, runs, **more) -> tuple[str, Page]:
    text = write_report(runs, tmp_path / "page.html", now=NOW, **more).read_text(encoding="utf-8")
    page = Page(text)
    identifiers = [each["id"] for _, each in page.elements if "id" in each]
    assert len(identifiers) == len(set(identifiers))
    for _, attributes in page.elements:  # what is referred to is there
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in identifiers
        if (link := attributes.get("href")) is not None and not link.startswith("data:text/csv"):
            assert link.removeprefix("#") in identifiers
    return text, page


def section(text: str, key: str) -> str:
    return text.split(f'<section id="{key}"')[1].split("</section>")[0]


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
    return text_bands({"tied": 1.1, "drill-1": 1.0, "elsewhere": 0.9}, "tied", "drill-1")


# -- content --------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "runs.jsonl"


def test_a_page_has_what_the_runs_have(tmp_path, ledger, runs, words):
    record_run(runs[0], ledger, "the baseline", now=NOW)
    more = {"samples": {"tied": ["the lamp is lit\nthe boat is late"]}, "title": "Three runs"}
    text, page = written(tmp_path, runs, ledgers=[ledger], texts=[words], **more)
    headings = [said for tag, said in page.said if tag == "h2"]
    assert headings == [
        "Results", "Learning curves", "Time to a perplexity", "Rare and frequent words", "Samples",
        "Ledgers", "Settings and environment",
    ]  # fmt: skip
    assert (len(figures(text)), len(figures(text, "bars"))) == (2, 2)
    assert ("h1", "Three runs") in page.said
    for shown in (
        "3 runs, 1 ledger, written 2026-11-15 09:30 UTC",
        "60.7 / 58.8",
        "the baseline",
        "the lamp is lit\nthe boat is late",
    ):
        assert shown in page.text
    assert ("dt", "depth") in page.said
    assert ("caption", "Settings that differ") in page.said
    settings = section(text, "settings").split("</table>")[0]
    assert re.findall(r"<bdi>([\w.]+)</bdi></th>", settings)[1:] == [
        "recipe",
        "layer.name",
        "training.seed",
    ]
    assert ("dd", "NVIDIA H200") in page.said
    _, page = written(tmp_path, [], ledgers=[ledger])
    assert [said for tag, said in page.said if tag == "h2"] == ["Ledgers"]
    assert "1 ledger, written" in page.text
    text, page = written(tmp_path, [])
    assert page.all("figure") == page.all("section") == []


def test_a_page_is_self_contained_and_accessible(tmp_path, runs, words):
    text, page = written(tmp_path, runs, texts=[words])
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"link", "img", "iframe", "object", "embed", "base", "form"})
    assert not any(word in text for word in ("url(", "@import"))
    assert set(re.findall(r"https?://[^/\"]*", text)) == {"http://www.w3.org"}  # namespaces
    (script,) = re.findall(r"<script>(.*)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [each["content"] for each in page.all("meta") if "http-equiv" in each]
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" == policy
    for _, attributes in page.elements:
        assert not {"src", "srcset", "style", "xlink:href"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert all(each["data-title"] for each in page.all("figure"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in each for each in page.all("th"))
    assert all(each["aria-hidden"] == "true" for each in page.all("svg"))


def test_runs_on_different_texts_have_their_own_plots(tmp_path, runs):
    other = write_run(tmp_path / "wt2", recipe="wt2-tied", valid=perplexities(600.0, 70.0, 20))
    recipe = other / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"ptb"', '"wikitext-2"'))
    text, page = written(tmp_path, [*runs, other])
    assert len(figures(text)) == 4
    assert [said for tag, said in page.said if tag == "h3"] == ["ptb", "wikitext-2"] * 2


def test_the_same_input_gives_the_same_bytes(tmp_path, runs, words):
    first = write_report(runs, tmp_path / "a.html", now=NOW, texts=[words]).read_bytes()
    assert write_report(runs, tmp_path / "b.html", now=NOW, texts=[words]).read_bytes() == first


def test_a_name_has_a_colour_and_then_a_dash():
    names = [f"{n}" for n in range(COLOURS * DASHES)]
    found = css_classes(["a", "b", "a", *names])
    assert (found["a"], found["b"], found["4"]) == ("c0 d0", "c1 d0", "c0 d1")
    assert len(set(css_classes(names).values())) == len(names)  # no two look alike


def test_the_best_so_far_never_rises():
    values = [(10.0, math.nan), (20.0, 90.0), (None, 85.0), (30.0, 95.0), (40.0, 80.0)]
    assert best_so_far(values) == [(10.0, math.inf), (20.0, 90.0), (30.0, 85.0), (40.0, 80.0)]


def test_mean_and_range_of_curves():
    one = [(0.0, 10.0), (2.0, 6.0), (4.0, 4.0)]
    two = [(1.0, 10.0), (2.0, 8.0), (3.0, 7.0)]
    assert mean_and_range([one, two, [(1.0, math.nan)]]) == [
        (1.0, 9.0, 8.0, 10.0),
        (2.0, 7.0, 6.0, 8.0),
        (3.0, 6.0, 5.0, 7.0),
    ]
    assert mean_and_range([[], [(1.0, math.inf)]]) == []


def test_a_fast_seed_keeps_its_lowest_until_the_slowest_ends():
    fast, slow = [(10.0, 90.0), (20.0, 50.0)], [(10.0, 90.0), (40.0, 60.0)]
    curves = {"both": [Curve([], fast), Curve([], slow)], "one": [Curve([], fast)]}
    figure = time_figure(curves, css_classes(curves))
    rows = [row for row in figure.rows if row[0] == "both"]
    assert rows[-1] == ["both", "40", "55", "50", "60"]
    assert figure.rows[-1][:3] == ["one", "20", "50"]
    assert "both reaches 55.00" in figure.title


# -- edges ----------------------------------------------------------------------------------------


def test_one_epoch_is_a_dot_and_no_time_to_a_perplexity(tmp_path, runs):
    short = write_run(tmp_path / "short", valid=[300.0], test=290.0)
    text, page = written(tmp_path, [short])
    assert "1 run, written" in page.text
    assert [rows[1:] for rows in figures(text)] == [[["short", "1", "300"]]]
    assert 'id="time"' not in text
    text, _ = written(tmp_path, [*runs, short])
    assert len(figures(text)) == 2
    assert "short" not in section(text, "time")


def test_a_run_that_diverged_is_not_drawn(tmp_path):
    gone = write_run(tmp_path / "gone", valid=["nan", "inf", "nan"], test=None)
    text, _ = written(tmp_path, [gone])
    assert 'id="curves"' not in text
    back = write_run(tmp_path / "back", valid=[300.0, "inf", 200.0, 180.0], test=None)
    text, _ = written(tmp_path, [gone, back])
    rows = figures(text)[0][1:]
    assert [row[2] for row in rows if row[0] == "back"] == ["300", "inf", "200", "180"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_stay_words(tmp_path, ledger, text):
    folder = tmp_path / re.sub(r"[/\x00\ud800]", "-", text)
    run = write_run(folder, valid=[90.0, 80.0], device=text, commit=text, **{text: text})
    recipe = f"recipe = {json.dumps(text)}\n[layer]\nname = {json.dumps(text)}\n"
    if "\ud800" not in text and "\x7f" not in text:
        (run / "recipe.toml").write_text(recipe, encoding="utf-8")
    record_run(run, ledger, "note" if "\ud800" in text else text)
    texts = [TextBands({text: [Band(1, None, 1, 10, 20.0)]})]
    _, page = written(
        tmp_path, [run], ledgers=[ledger], texts=texts, samples={text: [text]}, title=text
    )
    _, plain = written(tmp_path, [write_run(tmp_path / "plain", valid=[90.0, 80.0])])
    allowed = {tag for tag, _ in plain.elements} | {"rect", "tspan", "ul", "li", "h3"}
    assert {tag for tag, _ in page.elements} <= allowed
    shown = text.replace("\ud800", "?")
    assert ("h1", shown) in page.said
    assert shown in page.text
    markdown([run], [ledger]).encode("utf-8")


# -- files ----------------------------------------------------------------------------------------


def test_markdown_has_the_tables(ledger, runs):
    record_run(runs[0], ledger)
    write_evaluations(runs[2], [{"kind": "cache", "split": "test", "perplexity": 53.75}])
    text = markdown(runs, [ledger])
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert titles == [
        "## Results",
        "## Ledgers",
        f"### {markdown_text(ledger)}",
        "## Settings and environment",  # those that differ
        "## Warnings",
    ]
    assert "| drill-2 | deep-residual 4 |" in text
    assert "evaluations.jsonl: left out 1 of other weights" in text
    assert markdown([], [ledger]).startswith("## Ledgers")
