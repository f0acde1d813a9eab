"""Writes docs/play.png: the page of `drill play` for two language models.

python docs/play_screenshot.py runs/demo-tied runs/demo-drill

Needs Debian's chromium and `pip install playwright`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

command = [sys.executable, "-m", "drill", "play", *sys.argv[1:], "--port", "0"]
with (
    subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    sync_playwright() as tools,
):
    assert server.stdout is not None
    url = server.stdout.readline().split()[0]
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=options)
    page = browser.new_page(viewport={"width": 1000, "height": 640})
    page.goto(url)
    page.locator("#next-words button").first.wait_for()
    with page.expect_response(lambda answer: "Moses" in (answer.request.post_data or "")):
        page.locator("#prefix").fill("And Moses said to the")
    page.wait_for_timeout(500)
    page.screenshot(path=Path(__file__).with_name("play.png"))
    browser.close()
    server.terminate()
