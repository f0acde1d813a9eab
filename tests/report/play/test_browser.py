"""The page in headless Chromium, by keyboard; test_server.py has the server alone."""

import json
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def serve():
    """Starts `drill play` in a folder; gives the address of the page."""
    started = []

    def start(folder, *runs):
        command = [sys.executable, "-m", "drill", "play", *runs, "--port", "0"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        started.append(server)
        return server.stdout.readline().split()[0]

    yield start
    for server in started:
        server.terminate()
        server.wait()
        server.stdout.close()


def test_a_language_model_by_keyboard(workspace, serve, open_page):
    page = open_page(serve(workspace, "runs/tied", "runs/tiny"))
    words = page.locator("#next-words button")
    words.first.wait_for()
    page.locator("#tab-write").focus()
    page.keyboard.press("Tab")
    with page.expect_response(lambda answer: "sea is" in (answer.request.post_data or "")):
        page.keyboard.type("sea is")
    with page.expect_response(re.compile("api/next")):
        page.keyboard.press("Alt+1")
    text = page.locator("#prefix").input_value()
    assert re.fullmatch(r"sea is(\n| (lamp|boat|sea|is|lit) )", text)

    page.locator("#prefix").fill("sea is\n ")
    page.locator("#sample-form [name=tokens]").fill("15")
    with page.expect_request(re.compile("api/sample")) as sent:
        page.keyboard.press("Enter")
    assert sent.value.post_data_json["text"] == "sea is\n"
    page.locator(".sample").nth(1).wait_for()
    page.locator("#stop:disabled").wait_for()
    assert all(len(each) > len("sea is\n") for each in page.locator(".sample").all_text_contents())

    page.locator("#tab-write").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.type("lamp <script>alert(1)</script> is <img src=x onerror=alert(2)>")
    page.keyboard.press("Control+Enter")
    page.locator("#scored span").first.wait_for()
    assert "<script>alert(1)</script>" in page.locator("#scored").inner_text()
    assert page.locator("#scored script, #scored img").count() == 0
    page.locator("#scored").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "<unk>" in page.locator("#score-detail").inner_text()
    page.locator("#score-bands button").first.focus()
    page.keyboard.press("Enter")
    assert 0 < page.locator("#scored .dim").count() < page.locator("#scored span").count()
    page.keyboard.press("Enter")
    assert page.locator("#scored .dim").count() == 0
    page.locator("#score-text").fill("sea")
    page.keyboard.press("Control+Enter")
    page.locator("#scored span").nth(2).wait_for(state="detached")
    assert page.locator("#score-detail").inner_text().startswith("Click a word")

    page.locator("#tab-score").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.type("boat")
    page.keyboard.press("Enter")
    page.locator("#word-result button").first.wait_for()
    page.locator("#word-result button").first.focus()
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == page.locator("#word-result button").nth(1).text_content()
    page.locator("#tab-word").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#plot circle").first.wait_for()
    assert page.locator("#plot g.line").count() == 2
    young = workspace / "runs" / "young"  # begins to train while the page is open
    young.mkdir()
    try:
        shutil.copy(next((workspace / "runs").glob("*/recipe.toml")), young)
        row = {"kind": "epoch", "epoch": 1, "step": 9, "valid_perplexity": 50.0}
        (young / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        page.locator("#plot g.line").nth(2).wait_for(state="attached")
    finally:
        shutil.rmtree(young)


def test_subwords_by_keyboard(subword_workspace, serve, open_page):
    page = open_page(serve(subword_workspace, "runs/subwords"))
    page.locator("#next-words button").first.wait_for()
    assert page.locator("#next-heading").inner_text() == "Next subword"
    with page.expect_response(lambda answer: "boat" in (answer.request.post_data or "")):
        page.locator("#prefix").fill("boat ")
    marked = page.locator("#next-words button:enabled", has_text="▁").first
    marked.wait_for()
    piece = marked.inner_text().splitlines()[0].rstrip("123456789")
    with page.expect_response(re.compile("api/next")):
        marked.press("Enter")
    assert page.locator("#prefix").input_value() == "boat" + piece.replace("▁", " ")
    page.locator("#prefix-note", has_text="Read as").wait_for()

    page.locator("#tab-score").click()
    page.locator("#score-text").fill("boats lamp")
    page.keyboard.press("Control+Enter")
    page.locator("#scored bdi").first.wait_for()
    words = page.locator("#scored bdi").all_text_contents()
    assert words == ["boats", "lamp", "⏎"]
    assert page.locator("#scored bdi").first.locator("span").count() > 1
    page.locator("#scored span").first.click()
    assert "the whole word boats" in page.locator("#score-detail").inner_text()

    page.locator("#tab-word").click()
    page.locator("#word-form [name=word]").fill("boats")
    page.keyboard.press("Enter")
    page.locator(".pieces button").last.click()
    page.locator("#word-result .pieces").wait_for(state="detached")
    page.locator("#word-result .words button").nth(2).press("Enter")
    page.wait_for_function("document.activeElement.closest('.words') !== null")


def test_a_translator_by_keyboard(translator_workspace, serve, open_page):
    page = open_page(serve(translator_workspace, "runs/tiny"))
    page.locator("#translate").wait_for()  # its panel opens when the runs are known
    page.locator("#tab-translate").focus()
    page.keyboard.press("Tab")
    page.keyboard.type("a b c")
    page.keyboard.press("Control+Enter")
    page.locator("#translations tbody tr").nth(2).wait_for()
    attention = "{source: ['a', 'b'], target: ['c'], weights: [[0.25, 0.75]]}"
    page.evaluate(f"$('translations').append(...heat_map({attention}))")  # tiny translates to ""
    page.locator(".attention td").last.click()
    page.locator("#translations .note", has_text="c ← b: 0.75").wait_for()
    page.locator("#tab-word").click()
    page.locator("#word-form input").fill("abcdefgh")
    page.keyboard.press("Enter")
    page.locator("#word-result li").first.wait_for()
    link = page.locator("#word-result li button").first
    label = link.text_content()
    link.press("Enter")
    page.locator("#word-result p", has_text=f"{label}: training count").wait_for()
