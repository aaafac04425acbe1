"""The tables and figures that `mpifl reproduce` knows: studies with a section `page`, in one folder for each paper."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpifl import algorithms, problems
from mpifl.config import read
from mpifl.config.packaged import JOBS
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader, dump
from mpifl.config.types import Config
from mpifl.errors import ConfigError
from mpifl.tools.analysis.options import METRICS
from mpifl.tools.analysis.trials import Group
from mpifl.tools.reproduce.published import FILE, Cell, read_published
from mpifl.tools.reproduce.spec import Page, read_page
from mpifl.tools.reproduce.values import axis_of, find
from mpifl.tools.studies.select import combinations_of
from mpifl.tools.studies.study import Study, load_study

PAPER = "paper.yaml"


@dataclass(frozen=True)
class PaperOptions(Config):
    """The file paper.yaml of a paper's folder."""

    title: str
    """heading of the page with all items of the paper"""
    about: str = ""
    """the paper, and what its items have in common; Markdown, without results"""
    missing: str = ""
    """what of the paper is not here, each with its reason, and why claims are not met; Markdown, without results"""
    summary: bool = False
    """whether the page begins with a table of all claims and their verdicts"""
    items: list[str] = field(default_factory=list)
    """the paper's tables and figures in the order of the page: names of study files without .yaml"""
    own_pages: list[str] = field(default_factory=list)
    """tables and figures with pages of their own, PAPER-ITEM.md: names of study files without .yaml"""


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper."""

    name: str
    """paper/item"""
    path: Path
    """the study file"""
    study: Study
    page: Page
    cells: list[Cell]
    """published numbers"""
    overrides: tuple[str, ...] = ()
    """`key=value` by which the study differs from its file"""

    @property
    def data(self) -> list[str]:
        """The data sets of the runs."""
        return list(dict.fromkeys(str(data_of(run.job)["name"]) for run in self.study.runs))


def load_items(name: str, overrides: Sequence[str] = ()) -> tuple[PaperOptions, list[Item]]:
    """The items of a name such as area/table3, of a whole paper such as area, or of a study file. Raises ConfigError.

    Args:
        name: The name, or the path of a study file or of a folder with a paper.yaml.
        overrides: `key=value` of the studies.
    """
    folder, wanted = find_paper(name)
    options, defaults = read_paper(folder)
    if wanted is None and not options.items:
        raise ConfigError("items", "[]", "empty", f"the names of at least one study file of {folder}, without .yaml")
    for key, value in map(read.parse_override, overrides) if wanted is None else ():
        if key == "output" and "${name}" not in str(value):
            raise ConfigError(key, value, "all studies of the paper would have the same folder", "one with ${name}")
    return options, [
        load_item(folder, each, defaults, overrides) for each in ([wanted] if wanted else item_names(options))
    ]


def find_paper(name: str) -> tuple[Path, str | None]:
    """The folder of a paper, and the item that the name means; None: all of them. Raises ConfigError."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or (path / PAPER).is_file():
        return (path, None) if path.is_dir() else (path.parent, path.stem)
    paper, _, item = name.partition("/")
    if paper not in papers() or (item and item not in item_names(read_paper(JOBS / paper)[0])):
        expected = "one that `mpifl reproduce` lists, or a STUDY.yaml"
        raise ConfigError("reproduce", name, "no such item or paper", expected)
    return JOBS / paper, item or None


def item_names(options: PaperOptions) -> list[str]:
    """All tables and figures of a paper: those of its page, and those with pages of their own."""
    return [*options.items, *options.own_pages]


def papers() -> list[str]:
    """The papers with a folder below `jobs`."""
    return sorted(path.parent.name for path in JOBS.glob(f"*/{PAPER}"))


def read_paper(folder: Path) -> tuple[PaperOptions, Any]:
    """The file paper.yaml of a folder, and the keys that its items' sections `page` have in common."""
    values = read.read_yaml(folder / PAPER, "paper")
    defaults = values.pop("page", None)
    return Reader(PaperOptions, values, {}).read(), defaults


def load_item(folder: Path, name: str, defaults: Any, overrides: Sequence[str] = ()) -> Item:
    """One item of a paper's folder. Raises ConfigError, also for a published cell that no run belongs to."""
    path = folder / f"{name}.yaml"
    study = load_study(path, overrides)
    page = read_page(study.page, defaults)
    full = f"{folder.resolve().name}/{name}"
    cells = read_published(folder.parent / FILE, folder.resolve().name, page.published) if page.published else []
    _check_cells(study, page, cells)
    return Item(full, path, study, page, cells, tuple(overrides))


def _check_cells(study: Study, page: Page, cells: Sequence[Cell]) -> None:
    """Every published cell is one combination of the axes, and every claim compares combinations that exist."""
    groups = combinations_of(study)
    for cell in cells:
        found = find(groups, cell.labels)
        rest = {repr(group.without(axis_of(group.labels, page.spread or "")).labels) for group in found}
        if len(rest) != 1:
            wrong, expected = f"{len(rest)} combinations of the study's axes have these labels", "one"
            raise ConfigError("page.published", "; ".join(f"{k}={v}" for k, v in cell.labels.items()), wrong, expected)
        unknown = [name for name in cell.values if name not in page.measures]
        if unknown and page.spread is None:
            raise ConfigError("page.published", unknown[0], "no such measure", f"one of {', '.join(page.measures)}")
    for k, claim in enumerate(page.claims):
        for side in (claim.left, *(claim.right if isinstance(claim.right, list) else [claim.right])):
            if not isinstance(side, int | float) and not find(groups, side):
                raise ConfigError(f"page.claims[{k}]", side, "no combination has these", "labels of the study's axes")
        for value in claim.values:
            if not find(groups, {str(claim.each): value}):
                raise ConfigError(
                    f"page.claims[{k}].values", value, f"{claim.each} has no such value", "one of its values"
                )
    _check_names(study, page, groups)


def _check_names(study: Study, page: Page, groups: Sequence[Group]) -> None:
    """The metrics and axes that the page names exist."""
    own = {name for run in study.runs for name in run.job.evaluate.metrics}
    metrics = ["time", "updates", "version", *METRICS, *sorted(own)]
    logging = any(not algorithms.name_of(type(run.job.algorithm)) for run in study.runs)  # may log any number
    named = [("page.measures", name) for m in page.measures.values() for name in (m.metric, m.fallback) if name]
    curves = [(f"page.figures[{k}].y", figure.y) for k, figure in enumerate(page.figures) if figure.against is None]
    for key, name in [*named, *curves]:
        if name not in metrics and not logging:
            raise ConfigError(key, name, "no such metric", f"one of {', '.join(metrics)}")
    axes = [("page.spread", page.spread)]
    axes += [(f"page.tables[{k}].columns", table.columns) for k, table in enumerate(page.tables)]
    axes += [(f"page.figures[{k}].panels", figure.panels) for k, figure in enumerate(page.figures)]
    axes += [(f"page.figures[{k}].against", figure.against) for k, figure in enumerate(page.figures)]
    axes += [(f"page.measures.{name}.over", measure.over or None) for name, measure in page.measures.items()]
    axes += [(f"page.claims[{k}].each", claim.each) for k, claim in enumerate(page.claims)]
    for key, axis in axes:
        if axis is not None and not any(axis_of(group.labels, axis) for group in groups):
            known = ", ".join(dict.fromkeys(name for group in groups for name in group.labels))
            raise ConfigError(key, axis, "no such axis", f"one of {known}")
    shown = [(f"page.tables[{k}].where", table.where) for k, table in enumerate(page.tables)]
    shown += [(f"page.figures[{k}].where", figure.where) for k, figure in enumerate(page.figures)]
    for key, where in shown:
        if not find(groups, where):
            raise ConfigError(key, where, "no combination has these", "labels of the study's axes")


def list_items() -> Iterator[dict[str, Any]]:
    """A row for each item that can be reproduced: name, title, data, runs, minutes."""
    for paper in papers():
        for item in load_items(paper)[1]:
            minutes = "" if item.page.minutes is None else f"{item.page.minutes:g}"
            yield {"item": item.name, "title": item.page.title, "data": ", ".join(item.data),
                   "runs": len(item.study.runs), "min on one core": minutes}  # fmt: skip


def load_block(item: Item, name: str) -> Callable[[Item, Path], str]:
    """A function `FILE.py:NAME` in a file beside the study, whose code is run. Raises ConfigError."""
    file, _, function = name.partition(":")
    path = item.path.parent / file
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.suffix == ".py" and path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError("page.blocks", name, "no such file", "FILE.py:NAME, a file beside the study")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[Item, Path], str] | None = getattr(module, function, None)
    if not callable(found):
        raise ConfigError("page.blocks", name, f"{file} has no such function", f"a function of {file}")
    return found


def missing_data(item: Item, download: bool = False) -> list[tuple[dict[str, Any], ConfigError]]:
    """The sections `problem.data` of the runs whose data are missing, each with an error that says how to get them."""
    seen, missing = [], []
    for run in item.study.runs:
        if (data := data_of(run.job)) not in seen:
            seen.append(data)
            problem = dataclasses.replace(run.job.problem, download=download) if download else run.job.problem
            try:
                problems.load(problem)
            except ConfigError as error:
                hint = "" if download else "--download fetches it where it has a public address"
                wrong, expected = f"cannot be read: {error}", "a readable data set"
                missing.append((data, ConfigError(item.name, f"data {data['name']}", wrong, expected, hint)))
    return missing


def data_of(job: Any) -> dict[str, Any]:
    """The section `problem.data` of a job."""
    data = dump(job.problem.data, FAMILIES, "data")
    return data if isinstance(data, dict) else {"name": data}
