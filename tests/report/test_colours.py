"""The colours of the page: distinct for every reader, in both colour schemes."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from drill.report.page.figures import COLOURS, DASHES

STYLE = Path(__file__).parents[2] / "src" / "drill" / "report" / "page" / "colors.css"

# Linear sRGB as seen without the cones for red and for green: Machado, Oliveira & Fernandes (2009)
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868],
                            [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968],
                              [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip


def schemes():
    """The colours of the style sheet by name: the light scheme, then the dark one."""
    light, dark = STYLE.read_text(encoding="utf-8").split("prefers-color-scheme: dark")
    found = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part)) for part in (light, dark)]
    return [
        pytest.param(each, id=name) for name, each in zip(["light", "dark"], found, strict=True)
    ]


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    light, dark = sorted(
        (float(linear(each) @ [0.2126, 0.7152, 0.0722]) + 0.05 for each in (one, other)),
        reverse=True,
    )
    return light / dark


def oklab(rgb: np.ndarray) -> np.ndarray:
    cones = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                      [0.2119034982, 0.6806995451, 0.1073969566],
                      [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
    axes = np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                     [1.9779984951, -2.4285922050, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
    return axes @ np.cbrt(cones @ np.clip(rgb, 0.0, 1.0))


@pytest.mark.parametrize("colours", schemes())
def test_colours_keep_apart_for_every_reader(colours):
    lines = [colours[f"c{n}"] for n in range(COLOURS)]
    for one, other in combinations(lines, 2):
        for sight in SIGHT.values():
            distance = np.linalg.norm(oklab(sight @ linear(one)) - oklab(sight @ linear(other)))
            assert distance > 0.12, (one, other)


@pytest.mark.parametrize("colours", schemes())
def test_everything_stands_out_from_the_paper(colours):
    for line in (f"c{n}" for n in range(COLOURS)):
        assert contrast(colours[line], colours["paper"]) >= 3.0
    for text in ("ink", "soft", "warn"):
        assert contrast(colours[text], colours["paper"]) >= 4.5


def test_every_colour_and_dash_has_its_style():
    style = STYLE.with_name("plots.css").read_text(encoding="utf-8")
    for n in range(COLOURS):
        assert f".c{n} {{ --c: var(--c{n}); }}" in style
    for n in range(1, DASHES):
        assert re.search(rf"\.d{n} path {{ stroke-dasharray: [\d ]+; }}", style)
