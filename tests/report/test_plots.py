"""The plots of a page, as plots.js draws them in headless Chromium."""

import csv
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from drill.language_modeling.evaluation.calibration import Calibration, ReliabilityBin
from drill.report import write_report
from drill.report.analysis.label_vectors import NormBand
from drill.report.page.figures import Curve, css_classes, epochs_figure
from drill.report.page.page import Section, write_page
from tests.report.folders import perplexities, text_bands, write_run

pytestmark = [pytest.mark.slow, pytest.mark.browser]
ODD = "</script><script>alert(1)</script>,\"'\n"

# Every coordinate of a plot, after all transforms, against the box of its plot
OUTSIDE = """() => [...document.querySelectorAll("svg.plot")].flatMap((plot) => {
  const box = plot.getBoundingClientRect();
  const bad = (each) => each.left < box.left - 1 || each.right > box.right + 1
    || each.top < box.top - 1 || each.bottom > box.bottom + 1;
  return [...plot.querySelectorAll("text, rect, line")]
    .filter((each) => bad(each.getBoundingClientRect())).map((each) => each.outerHTML);
})"""


def numbers_in(page):
    """The attributes of shapes: none may be NaN or infinite."""
    texts = page.locator("svg.plot").evaluate_all("plots => plots.map(plot => plot.outerHTML)")
    assert texts
    assert not re.search(r"NaN|Infinity|undefined", "".join(texts))


def ticks(plot, anchor):
    found = plot.locator(f"text.tick.{anchor}").all_text_contents()
    return [float(each.replace(",", "")) for each in found]


@pytest.fixture
def address(tmp_path):
    """A page with two runs of 40 epochs, and losses by frequency."""
    runs = [
        write_run(tmp_path / "tied", valid=perplexities(330, 62, 40)),
        write_run(tmp_path / "drill", recipe="ptb-drill-4", valid=perplexities(310, 60, 40)),
    ]
    bins = ReliabilityBin(0.0, 0.5, 10, 0.2, 0.0), ReliabilityBin(0.5, 1.0, 5, 0.7, 0.9)
    norms = {"drill": [NormBand(1, 50, 3, 2.0, 9.0)]}
    text = text_bands({"tied": 1.1, "drill": 1.0}, "drill", "tied")
    text = replace(text, calibration={"drill": Calibration(bins)}, norms=norms)
    page = write_report(runs, tmp_path / "page.html", texts=[text])
    return page.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])
def test_plots_fill_the_page_and_stay_inside(open_page, address, width, scheme):
    page = open_page(address, width, scheme)
    page.locator("svg.plot rect").first.wait_for()
    assert page.locator("svg.plot").count() == 7
    diagram = page.locator("#calibration svg.plot")
    assert ticks(diagram, "last")[0] == 0.0
    assert max(ticks(diagram, "last")) == 1.0  # linear, and nothing is cut off
    assert diagram.locator("text.end").all_text_contents() == ["0.90", "1.00"]
    assert page.evaluate(OUTSIDE) == []
    numbers_in(page)
    content = page.locator("main").bounding_box()["width"]
    for plot in page.locator("svg.plot").all():
        box = plot.bounding_box()
        assert box["width"] == pytest.approx(content, abs=1)
        assert box["height"] >= 280
    ends = page.locator("svg.plot").first.locator("text.end").all_text_contents()
    assert ends == ["60.41", "58.45"]
    size = page.evaluate("getComputedStyle(document.querySelector('svg.plot text')).fontSize")
    assert size == "13px"
    page.locator(".bars rect").first.hover()
    assert page.get_by_text(re.compile(r"^tied, never: \d")).is_visible()


def test_a_curve_is_read_zoomed_compared_and_downloaded(open_page, address):
    page = open_page(address, 1000)
    figure = page.locator("figure.lines").first
    plot = figure.locator("svg.plot")
    values = figure.locator(".legend output")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 64 + (box["width"] - 64 - 58) * 0.5, box["y"] + 100)
    assert plot.locator("text.value").text_content() == "epoch 20"
    assert [float(each) for each in values.all_text_contents()] == pytest.approx(
        [perplexities(*ends, 40)[19] for ends in ((330, 62), (310, 60))], abs=0.006
    )

    assert ticks(plot, "middle")[-1] == 40
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 58, box["y"] + 100)
    page.mouse.up()
    assert ticks(plot, "middle")[0] >= 20
    plot.dblclick()
    assert ticks(plot, "middle")[0] == 0
    plot.focus()
    page.keyboard.press("ArrowLeft")
    assert plot.locator("text.value").count() == 1
    page.keyboard.press("+")
    assert ticks(plot, "middle")[0] >= 10
    page.keyboard.press("0")
    figure.get_by_role("button", name="Zoom in").click()
    assert ticks(plot, "middle")[0] > 10
    figure.get_by_role("button", name="Show all").click()

    figure.get_by_label("log x").check()
    assert ticks(plot, "middle")[:2] == [1, 3]
    figure.get_by_label("log y").uncheck()
    spaces = np.diff(
        [
            float(y)
            for y in plot.locator("line.grid").evaluate_all(
                "lines => lines.map(line => line.getAttribute('y1'))"
            )
        ]
    )
    assert spaces == pytest.approx([spaces[0]] * len(spaces))
    numbers_in(page)

    page.mouse.move(0, 0)
    figure.get_by_label("difference to").select_option("tied")
    last = [100 * (58.45 / 60.41 - 1), 0.0]
    found = [float(each.strip("+%")) for each in values.all_text_contents()]
    assert sorted(found) == pytest.approx(sorted(last), abs=0.05)
    figure.locator(".legend input").first.uncheck()
    assert plot.locator("g.line").count() == 1

    with page.expect_download() as download:
        figure.get_by_role("link", name="Data as CSV").click()
    assert download.value.suggested_filename == "validation-perplexity-by-epoch.csv"
    rows = list(csv.reader(io.StringIO(download.value.path().read_text())))
    assert rows[0] == ["run", "epoch", "validation perplexity"]
    assert len(rows) == 81


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 50.0)],
        [(1.0, 50.0), (2.0, 50.0)],
        [(1.0, math.nan), (2.0, 60.0), (3.0, math.inf), (4.0, 40.0)],
        [(0.0, 1e300), (1.0, 5e-324), (2.0, 57.0), (3.0, 57.0000001)],
        [(n / 7, 1e6 / (n + 1) ** 3) for n in range(500)],
    ],
)
def test_odd_values_and_names_are_drawn(open_page, tmp_path, points):
    curves = {ODD: [Curve(points, [])], "other": [Curve([(9.0, 55.0)], [])]}
    figure = epochs_figure(curves, css_classes(curves))
    sections = [Section("curves", "Curves", [figure])]
    page = open_page(write_page(tmp_path / "odd.html", "Odd", "", sections).as_uri())
    assert page.locator("svg.plot g.line").count() == 2
    for label in ("log x", "log y"):
        numbers_in(page)
        assert page.evaluate(OUTSIDE) == []
        page.get_by_label(label).click()
    page.get_by_label("difference to").select_option("other")
    numbers_in(page)
    for box in page.locator(".legend input").all():
        box.uncheck()
    page.locator("svg.plot").focus()
    for key in ("ArrowLeft", "+", "-", "0"):
        page.keyboard.press(key)
    page.locator("svg.plot").hover()
    assert page.locator("svg.plot").text_content() == "nothing to show"
    assert page.locator(".legend bdi").first.inner_text().startswith("</script>")
