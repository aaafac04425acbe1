"""The documentation site: it builds without a warning, it is whole, a browser shows it without errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
import yaml

from tests.analysis.test_page import browse, in_a_browser
from tests.docs.pages import ROOT

pytest.importorskip("material", reason="the site's generator is not installed: pip install -e .[docs]")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: with warnings as errors, such as a link or an anchor that leads nowhere,
    and a page that is not in the navigation."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


# Elements of HTML and SVG that the theme and the pages use.
TAGS = (
    "a|abbr|article|aside|body|button|circle|code|dd|defs|details|dialog|div|dl|dt|em|figcaption|figure|footer|form|g|"
    "h[1-6]|head|header|hr|html|iframe|img|input|label|li|line|link|main|marker|meta|nav|ol|p|path|pre|rect|script|"
    "section|small|span|strong|style|summary|sub|sup|svg|table|tbody|td|text|th|thead|title|tr|tspan|ul|br|polygon"
)


class Page(HTMLParser):
    """The tags of a page, and its images without a text for those who do not see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.unnamed = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.unnamed += tag == "img" and not dict(attrs).get("alt")


@pytest.fixture(scope="session")
def pages(site: Path) -> list[Path]:
    found = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    assert len(found) > 40
    return found


@pytest.mark.long
def test_no_formula_is_taken_for_a_tag_and_images_have_a_text(site: Path, pages: list[Path]) -> None:
    """An inner product <u, v> outside backticks would vanish from the page. Style sheets load nothing from outside."""
    for path in pages:
        page = Page(path)
        assert not [tag for tag in page.tags if not re.fullmatch(TAGS, tag)] and not page.unnamed, path
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?https?:|@import", sheet.read_text(encoding="utf-8")), sheet


def test_everything_public_is_documented() -> None:
    import mpifl

    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- generate: api mpifl\.(\w+) -->$", text, re.M)
    assert sorted(shown) == sorted(set(mpifl.__all__) - {"__version__"})


@pytest.mark.long
def test_generated_pages_have_every_key_command_and_method(site: Path) -> None:
    """The reference is made from the definitions, so nothing of them is missing."""
    from mpifl import algorithms
    from mpifl.cli import COMMANDS
    from mpifl.config.registry import FAMILIES
    from mpifl.runfile.tables import ATTRIBUTES, TABLES

    def shown(page: str) -> set[str]:
        return set(re.findall(r"<code>([^<]*)</code>", (site / page).read_text(encoding="utf-8")))

    assert {f"mpifl {command}" for command in COMMANDS} <= shown("reference/cli.html")
    assert set(algorithms.names()) <= shown("reference/algorithm-options.html")
    columns = {f"/{name}/{column}" for name, table in TABLES.items() for column in table.columns}
    assert columns | set(ATTRIBUTES) <= shown("reference/run-file.html")
    job = shown("reference/job-file.html")
    for family in ("data", "partition", "model", "init", "delay", "availability"):
        assert set(FAMILIES[family].names()) <= job
    assert {"problem.l2", "stop.time", "faults.lost", "checkpoint.every", "clock.mode"} <= job


def test_generated_pages_and_diagrams_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold what their scripts make from the definitions: `make reference` and docs/generator/diagrams.py."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "generator")
    import diagrams
    import reference

    for page in reference.PAGES.glob("*.md"):
        assert reference.filled(page) == page.read_text(encoding="utf-8"), f"{page.name}: run make reference"
    for file, draw in diagrams.DIAGRAMS.items():
        assert (ROOT / "docs" / "assets" / file).read_text(encoding="utf-8") == draw(), "run docs/generator/diagrams.py"
    hidden = ("_", "py.", "jobs")
    packages = {path.stem for path in (ROOT / "mpifl").iterdir() if not path.name.startswith(hidden)}
    assert packages <= set(re.findall(r"\w+", diagrams.packages()))


def test_the_citation_names_every_paper() -> None:
    """CITATION.cff has the fields that its format requires, and each arXiv number that a method's file names."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "references"} <= set(cited)
    for reference in cited["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        assert all(("family-names" in author) != ("name" in author) for author in reference["authors"])
    methods = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "mpifl" / "algorithms").rglob("*.py"))
    assert set(re.findall(r"arXiv (\d{4}\.\d{4,5})", methods)) <= set(re.findall(r"\d{4}\.\d{4,5}", json.dumps(cited)))


# -- in a browser, from the file system --------------------------------------------------------------------------------
LOOK = """<script>addEventListener('load', () => {
  const broken = [...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src);
  const page = document.documentElement, wide = page.scrollWidth - page.clientWidth;
  page.setAttribute('data-check', JSON.stringify({broken, wide: Math.max(0, wide)}));
})</script>"""
SEARCH = """<script>addEventListener('load', () => setTimeout(() => {
  const field = document.querySelector('.md-search__input');
  field.focus(); field.value = 'replay';
  for (const type of ['input', 'keyup']) field.dispatchEvent(new Event(type, {bubbles: true}));
}, 500))</script>"""


@in_a_browser
@pytest.mark.timeout(1800)
def test_a_browser_shows_every_page_without_errors(site: Path, pages: list[Path], tmp_path: Path) -> None:
    """No console error, no request, all images drawn, no page wider than the window. Of the source pages one is
    opened, since they are alike."""
    opened = [p for p in pages if "source" not in p.relative_to(site).parts]
    opened.append(next((site / "source").rglob("*.html")))

    def look(case: tuple[int, Path, int]) -> None:
        k, page, width = case
        copy = page.with_name(f"{page.stem}-{width}.html")
        copy.write_text(page.read_text(encoding="utf-8").replace("</head>", f"{LOOK}</head>"), encoding="utf-8")
        (folder := tmp_path / f"{k}").mkdir()
        assert browse(copy, folder, width)[1] == {"broken": [], "wide": 0}, copy
        copy.unlink()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(look, ((k, *case) for k, case in enumerate(product(opened, (1400, 390))))))


@in_a_browser
def test_search_works_without_a_server(site: Path, tmp_path: Path) -> None:
    """The index is loaded, and a query finds the page on replays."""
    copy = site / "search-checked.html"
    copy.write_text((site / "index.html").read_text(encoding="utf-8").replace("</head>", f"{SEARCH}</head>"))
    document, _ = browse(copy, tmp_path, 1400)
    copy.unlink()
    assert re.search(r'href="[^"]*replay\.html[^"]*" class="md-search-result__link', document)
