"""What a page shows, as a study's section `page` says: measures, tables, figures, claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mpifl.config.schema import Reader
from mpifl.config.types import Config, NonNegativeInt, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError, inside

Quantity = Literal["time", "updates", "version", "bytes", "local_steps"]
LABELS = "labels by axis: {method: AREA, step_size: 100}"


@dataclass(frozen=True)
class Measure(Config):
    """A number that each trial has."""

    metric: str
    """column of a run's evaluations: test_accuracy, train_loss, gradient_norm, ..."""
    fallback: str = ""
    """the column for methods that have no values in `metric`: client_accuracy_mean for personal_accuracy_mean"""
    at: Literal["last", "best"] = "last"
    """last: at the last evaluation; best: the best of the run"""
    tail: PositiveInt | None = None
    """mean of the last so many evaluations, in place of the last one"""
    reaches: float | None = None
    """the x at which the metric first reaches this value, in place of the metric; inf: never"""
    x: Quantity = "time"
    """of `reaches` and `until`: time (s), updates, version (global steps), bytes (sent both ways) or local_steps (of a
    client, on average)"""
    until: PositiveFloat | None = None
    """evaluations at a larger x are left out"""
    of_horizon: bool = False
    """x is divided by stop.time"""
    power: PositiveFloat = 1.0
    """the value is raised to this power"""
    log: bool = False
    """its decimal logarithm is taken"""
    scale: PositiveFloat = 1.0
    """the value is multiplied by this factor: 100 for per cent"""
    digits: NonNegativeInt = 2
    """decimal places"""
    unit: str = ""
    """unit, for headings"""
    within: Literal["range"] | PositiveFloat | None = None
    """verdict on a published value: our mean is inside the published min to max, or this close to the published mean"""

    @property
    def higher_is_better(self) -> bool:
        """Whether the best value is the highest."""
        return self.reaches is None and "accuracy" in self.metric


@dataclass(frozen=True)
class Strict(Config):
    """Cells with a rule of their own."""

    cells: Any
    """labels of the cells, by axis"""
    within: Any
    """the rule by measure"""


@dataclass(frozen=True)
class Table(Config):
    """A table of the trials' values."""

    title: str = ""
    """heading"""
    measures: list[str] = field(default_factory=list)
    """the measures that it shows; none: all"""
    columns: str | None = None
    """the axis whose values are the columns; null: the measures are"""
    where: Any = None
    """the labels of the groups that it shows; null: all groups"""


@dataclass(frozen=True)
class Figure(Config):
    """Curves of the trials' mean, with a band from the least to the greatest trial."""

    y: str
    """column of a run's evaluations"""
    x: Quantity = "time"
    """time (s), updates, version (global steps), bytes (sent both ways) or local_steps (of a client, on average)"""
    x_label: str = ""
    """label of the horizontal axis, in place of the one of x: what a second of virtual time stands for"""
    panels: str | None = None
    """the axis with one panel for each of its values"""
    where: Any = None
    """the labels of the groups that it shows; null: all groups"""
    title: str = ""
    """caption"""


@dataclass(frozen=True)
class Claim(Config):
    """A comparison of two groups, or of a group with a number."""

    left: Any
    """labels of a group, by axis"""
    relation: Literal["above", "below", "near", "published"]
    """of the left mean to the right one; published: above or below, as the published means are"""
    right: Any
    """labels of a group by axis, a list of such labels, or a number"""
    measure: str | list[str]
    """what is compared: a measure, or several"""
    by: float = 0.0
    """least difference; for `near` the greatest one"""
    each: str | None = None
    """the axis for each of whose values the claim is made"""
    source: str = ""
    """where the paper says so"""


@dataclass(frozen=True)
class Page(Config):
    """The section `page` of a study."""

    title: str
    """heading"""
    measures: dict[str, Measure] = field(default_factory=dict)
    """by name"""
    about: str = ""
    """what was run; Markdown, without results"""
    published: str = ""
    """the item of published.csv whose cells are compared"""
    strict: list[Strict] = field(default_factory=list)
    """cells with a rule of their own"""
    tables: list[Table] = field(default_factory=list)
    """tables besides the comparison with the published cells; none and no cells: one with all measures"""
    figures: list[Figure] = field(default_factory=list)
    """figures"""
    claims: list[Claim] = field(default_factory=list)
    """what the paper says about its methods"""
    spread: str | None = None
    """the axis, for example of partition seeds, whose spread is shown beside the spread over the trials"""
    blocks: list[str] = field(default_factory=list)
    """functions `FILE.py:NAME` in files beside the study, for what run files do not hold: each is called with the item
    and the folder of the page, and returns Markdown"""
    minutes: PositiveFloat | None = None
    """about how long the runs take on one core"""


def read_page(values: Any, defaults: Any = None) -> Page:
    """A section `page`, with the keys of `defaults` that it does not have. Raises ConfigError."""
    if not isinstance(values, Mapping) or not isinstance(defaults or {}, Mapping):
        raise ConfigError("page", values, "what the page shows: title, measures, tables, figures, claims")
    merged = {**(defaults or {}), **values}
    measures = merged.pop("measures", None)
    if not isinstance(measures, Mapping) or not all(isinstance(m, Mapping) for m in measures.values()):
        raise ConfigError("page.measures", measures, "measures by name: {loss: {metric: train_loss}}")
    with inside("page"):
        read = {}
        for name, value in measures.items():
            with inside(f"measures.{name}"):
                read[str(name)] = Reader(Measure, value, {}).read()
        page: Page = replace(Reader(Page, merged, {}).read(), measures=read)
        _check(page)
    return page


def _check(page: Page) -> None:
    for k, strict in enumerate(page.strict):
        _check_labels(f"strict[{k}].cells", strict.cells)
        if not isinstance(strict.within, Mapping):
            raise ConfigError(f"strict[{k}].within", strict.within, "rules by measure: {accuracy: 1.0}")
        _check_measures(page, f"strict[{k}].within", list(strict.within))
    for k, table in enumerate(page.tables):
        _check_labels(f"tables[{k}].where", table.where, optional=True)
        _check_measures(page, f"tables[{k}].measures", table.measures)
    for k, figure in enumerate(page.figures):
        _check_labels(f"figures[{k}].where", figure.where, optional=True)
    for k, claim in enumerate(page.claims):
        _check_measures(
            page, f"claims[{k}].measure", claim.measure if isinstance(claim.measure, list) else [claim.measure]
        )
        _check_labels(f"claims[{k}].left", claim.left)
        for right in claim.right if isinstance(claim.right, list) else [claim.right]:
            if isinstance(right, bool) or not isinstance(right, int | float):
                _check_labels(f"claims[{k}].right", right)


def _check_labels(key: str, value: Any, optional: bool = False) -> None:
    if not isinstance(value, Mapping) and not (optional and value is None):
        raise ConfigError(key, value, LABELS)


def _check_measures(page: Page, key: str, names: list[str]) -> None:
    for name in names:
        if name not in page.measures:
            raise ConfigError(key, name, f"one of the measures {', '.join(page.measures)}")
