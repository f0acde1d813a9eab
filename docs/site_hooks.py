"""Hooks of `mkdocs build`: generated pages, links out of docs/, equations as MathML.

The files of docs/ are written for GitHub. Whatever they link to outside of docs/ becomes a page
under repository/; learning curves are drawn from results/, the API pages (api.toml) from
docstrings.
"""

import logging
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from drill.report.study.page import stage_figures, study_markdown
from drill.report.study.plan import TRAINING, read_plan
from drill.report.study.states import States

LOG = logging.getLogger("mkdocs.hooks")  # --strict stops at warnings
ROOT = Path(__file__).parents[1]
PLOTS = ROOT / "src/drill/report/page"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
NO_SEARCH = "---\nsearch: { exclude: true }\n---\n\n"
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")  # of the navigation

# -- the API --------------------------------------------------------------------------------------


def api_page(title: str, summary: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", summary, *(f"::: {name}" for name in names)])


# -- learning curves ------------------------------------------------------------------------------


def curves_page() -> Iterator[str]:
    """Tables and curves of every study with a ledger, drawn as in `drill study --report --html`."""
    yield "---\nhide: [toc]\n---\n\n# Learning curves\n"
    yield "Drawn from `results/*.jsonl` when this site was built. How: [studies](studies.md).\n"
    for plan in sorted(ROOT.glob("studies/*.toml")):
        ledger = ROOT / f"results/{plan.stem}.jsonl"
        if ledger.exists():
            states = States(read_plan(plan), ledger, None)
            text = study_markdown(states)
            yield text.replace(r"\<", "&lt;")  # Python-Markdown has no such escape
            for figure in (each for stage in TRAINING for each in stage_figures(states, stage)):
                yield f'<div class="curves">{figure.html()}</div>\n'


def plots_css() -> str:
    """The style of the report's plots, for elements inside .curves only."""
    colors, plots = ((PLOTS / name).read_text("utf-8") for name in ("colors.css", "plots.css"))
    return f"{colors}\n.md-typeset .curves {{\n{plots}}}\n"


# -- files of the repository ----------------------------------------------------------------------


def repository_page(path: str) -> str:
    """A Markdown file as it is, another one as code, of a folder the recipes, plans or ledgers."""
    where = ROOT / path
    if path.endswith(".md"):
        return where.read_text("utf-8")
    if where.is_file():
        language = where.suffix.removeprefix(".")
        return f"{NO_SEARCH}# {path}\n\n````{language}\n{where.read_text('utf-8')}````\n"
    lines = [
        f"{NO_SEARCH}# {path}",
        *(f"- `{each.name}`" for each in sorted(where.glob("*.jsonl"))),
    ]
    for each in sorted(where.glob("*.toml")):
        lines.append(f"## {each.name}\n\n```toml\n{each.read_text('utf-8')}```")
    return "\n\n".join(lines)


def linked_path(link: str, page: str) -> str:
    """What a page of the site links to, as a path in the repository."""
    source = page.removeprefix("repository/") if page.startswith("repository/") else f"docs/{page}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def page_of(path: str) -> str:
    """The page of the site for a path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path.removesuffix('.md')}.md"


# -- hooks ----------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> None:
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "math", "class": "math", "format": mathml}]
    }
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")  # anchors as GitHub makes them


def mathml(source: str, *_: Any, **__: Any) -> str:
    found = convert(source.strip(), display="block")
    if re.search(r"<mi>(&<|\\)", found):  # a command or an environment that it does not know
        LOG.warning("latex2mathml does not know all of %s", source)
    return f'<div class="math">{found}</div>'


def on_files(files: Files, config: MkDocsConfig) -> None:
    def add(uri: str, content: str) -> None:
        files.append(File.generated(config, uri, content=content))

    for name, page in tomllib.loads((ROOT / "docs/api.toml").read_text("utf-8")).items():
        add(f"api/{name}.md", api_page(**page))
    add("curves.md", "\n".join(curves_page()))
    add("plots.css", plots_css())
    add("plots.js", (PLOTS / "plots.js").read_text("utf-8"))
    outside = {*PAGES}
    for file in files.documentation_pages():
        if file.generated_by is None:
            links = LINK.findall(file.content_string)
            outside |= {linked_path(link, file.src_uri) for link in links}
    for path in sorted(outside):
        if not path.startswith("docs/") and (ROOT / path).exists():
            add(page_of(path), repository_page(path))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links out of docs/, and from there back, lead to pages of the site."""
    here = page.file.src_uri
    if page.file.generated_by and not here.startswith("repository/"):
        return markdown

    def in_site(match: re.Match[str]) -> str:
        uri = page_of(linked_path(match[1], here))
        return posixpath.relpath(uri, posixpath.dirname(here) or ".")

    return LINK.sub(in_site, markdown)
