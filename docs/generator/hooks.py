"""MkDocs hooks: bring linked source files and diagrams into the site.

A link that leads out of docs/ (to code, jobs, examples) works where the repository is browsed; in the site it leads to
a page with that file, so that the site needs no network and no repository beside it.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
log = logging.getLogger("mkdocs.hooks.mpifl")

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *(`{3,}).*?^ *\1 *$", re.S | re.M)
SVG = re.compile(r"!\[[^\]]*\]\((assets/[\w-]+\.svg)\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sbatch": "sh", ".sh": "sh", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for every file or folder outside docs/ that a page links to."""
    found: set[str] = set()
    for file in files.documentation_pages():
        text = FENCE.sub("", file.content_string)
        found |= {path for _, target in LINK.findall(text) if (path := _outside(file.src_uri, target))}
    for path in sorted(found):  # the files of a linked folder as well
        if (ROOT / path).is_dir():
            found |= {posixpath.join(path, child) for child in _children(path) if (ROOT / path / child).is_file()}
    for path in sorted(found):
        if not (ROOT / path).exists():
            log.warning("a page links to %s, which does not exist", path)
            continue
        page = File.generated(config, _page_of(path), content=_source(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Puts diagrams into the page, and turns links out of docs/ to the pages made by `on_files`."""
    text = SVG.sub(lambda match: _inline(match[1]) or match[0], markdown)
    pieces, last = [], 0
    for fence in FENCE.finditer(text):
        pieces += [_relinked(text[last : fence.start()], page.file.src_uri), fence[0]]
        last = fence.end()
    return "".join([*pieces, _relinked(text[last:], page.file.src_uri)])


def _inline(path: str) -> str:
    """A diagram as part of the page, so that it takes the page's colours; "" for another picture."""
    text = (ROOT / "docs" / path).read_text(encoding="utf-8").strip()
    return f'<div class="diagram-scroll">{text}</div>' if text.startswith('<svg class="diagram"') else ""


def _relinked(text: str, page: str) -> str:
    def replace(match: re.Match[str]) -> str:
        path = _outside(page, match[2])
        if not path:
            return match[0]
        target = posixpath.relpath(_page_of(path), posixpath.dirname(page) or ".")
        return f"[{match[1]}]({target})"

    return LINK.sub(replace, text)


def _outside(page: str, target: str) -> str:
    """The path in the repository that a page's link leads to, if it lies outside docs/; else an empty text."""
    if re.match(r"[a-z]+:|#", target) or page.startswith("source/"):
        return ""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))
    return "" if path == "docs" or path.startswith("docs/") else path


def _page_of(path: str) -> str:
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def _children(path: str) -> list[str]:
    return [name for name in sorted(os.listdir(ROOT / path)) if not name.startswith((".", "__pycache__"))]


def _source(path: str) -> str:
    """A page that shows one file, or lists one folder."""
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# `{path}`\n\n"
    if (ROOT / path).is_dir():
        rows = [
            f"- [`{name}`]({name}.md)" if (ROOT / path / name).is_file() else f"- `{name}/`" for name in _children(path)
        ]
        return head + "\n".join(rows) + "\n"
    if path.endswith((".ipynb", ".gz")):
        kind = "A notebook" if path.endswith(".ipynb") else "A compressed file"
        return f"{head}{kind}, in the repository at this path.\n"
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"{head}``````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text.rstrip()}\n``````\n"
