"""Checks of HTML and SVG: well formed, no NaN, every coordinate inside the view box."""

import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
ACROSS = ("x", "x1", "x2", "cx")
DOWN = ("y", "y1", "y2", "cy")


VOID = {"meta"}


class Page(HTMLParser):
    """Elements in order; fails on a tag that is not closed where it was opened."""

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


def checked(svg: str) -> ElementTree.Element:
    """The parsed drawing, after the checks."""
    root = ElementTree.fromstring(svg)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (left, top) == (0.0, 0.0)

    def inside(x: float, y: float) -> None:
        assert math.isfinite(x)
        assert math.isfinite(y)
        assert 0.0 <= x <= width, (x, width)
        assert 0.0 <= y <= height, (y, height)

    for element in root.iter():
        for name, value in element.attrib.items():
            assert not re.search(r"\b(nan|inf)\b", value, re.IGNORECASE), (name, value)
            if name in ACROSS:
                inside(float(value), 0.0)
            elif name in DOWN:
                inside(0.0, float(value))
            elif name in ("width", "height", "r") and element is not root:
                assert float(value) >= 0.0
        if "d" in element.attrib:
            assert re.fullmatch(r"(M[-\d. ]+(L[-\d. ]+)*)+", element.attrib["d"])
            values = [float(each) for each in NUMBER.findall(element.attrib["d"])]
            for x, y in zip(values[::2], values[1::2], strict=True):
                inside(x, y)
        if element.tag == "rect":
            at = {key: float(element.attrib[key]) for key in ("x", "y", "width", "height")}
            inside(at["x"] + at["width"], at["y"] + at["height"])
    return root


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    """What the elements of a class say."""
    return [
        "".join(each.itertext()) for each in root.iter() if kind in each.get("class", "").split()
    ]


def paths(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The corners of every line, in its order."""
    return _corners(root, bands=False)


def areas(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The corners of every band."""
    return _corners(root, bands=True)


def _corners(root: ElementTree.Element, bands: bool) -> list[list[tuple[float, float]]]:
    found = []
    for element in root.iter("path"):
        if ("band" in element.get("class", "")) == bands:
            for piece in element.attrib["d"].split("M")[1:]:
                values = [float(each) for each in NUMBER.findall(piece)]
                found.append(list(zip(values[::2], values[1::2], strict=True)))
    return found
