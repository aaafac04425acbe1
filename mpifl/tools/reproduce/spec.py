"""What a page shows, according to a study's section `page`: measures, tables, figures, claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

from mpifl.config.schema import Reader
from mpifl.config.types import Config, NonNegativeInt, PositiveFloat, PositiveFraction, PositiveInt
from mpifl.errors import ConfigError, inside
from mpifl.tools.analysis.options import is_percentage

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
    tail: PositiveInt | Literal["all"] | None = None
    """number of last evaluations whose mean is taken, or all; null: only the last one"""
    reaches: float | None = None
    """measure the x at which the metric first reaches this value, in place of the metric; inf where it never does"""
    x: Quantity = "time"
    """what `reaches` and `until` count: time (s), updates, version (aggregations), bytes (sent both ways) or
    local_steps (of a client, on average)"""
    until: PositiveFloat | None = None
    """leave out evaluations at a larger x"""
    of_horizon: bool = False
    """divide the x of `reaches` by stop.time"""
    power: PositiveFloat = 1.0
    """raise the value to this power"""
    log: bool = False
    """take the decimal logarithm, after `power` and `scale`; with `over` and `at_most` that of the axis's value"""
    over: str = ""
    """an axis with numbers, such as step_size: with `at_most` measure its largest value such that there and at all
    smaller ones the metric is at most `at_most`, 0 where there is none; with `slope` measure the slope against this
    axis. Groups that differ only in this axis are taken as one"""
    at_most: float | None = None
    """with `over`: the largest value of the metric that passes"""
    slope: PositiveFraction | None = None
    """measure the slope of the metric against x, or with `over` against the axis, both on logarithmic scales, from this
    fraction of the largest x on; points are weighted by their share of the logarithmic axis"""
    scale: PositiveFloat = 1.0
    """multiply the value by this factor: 100 for per cent"""
    digits: NonNegativeInt = 2
    """decimal places"""
    higher_is_better: bool | None = None
    """whether larger values are better, so that a trial that diverged has the smallest one; null: only of accuracies"""
    unit: str = ""
    """unit, for headings"""
    within: Literal["range"] | PositiveFloat | None = None
    """when a published value is met. range: our mean lies between the published minimum and maximum; a number: our mean
    differs from the published one by at most that; null: any value meets it"""

    @property
    def largest_is_best(self) -> bool:
        """Whether the best value is the largest."""
        if self.higher_is_better is not None:
            return self.higher_is_better
        return self.reaches is None and is_percentage(self.metric)

    @property
    def diverged(self) -> float:
        """The value of a trial whose metric is infinite or NaN where it is measured: the worst."""
        return -inf if self.largest_is_best else inf

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [key for key in ("at_most", "slope", "reaches") if getattr(self, key) is not None]
        allowed = (["at_most"], ["slope"]) if self.over else ([], ["slope"], ["reaches"])
        if kinds not in allowed:
            wrong = f"given with {' and '.join(kinds) or 'neither at_most nor slope'}"
            expected = "an axis with one of at_most and slope, or none with at most one of slope and reaches"
            raise ConfigError("over", self.over, wrong, expected)


@dataclass(frozen=True)
class Strict(Config):
    """Published cells that are judged by another `within` than that of their measures."""

    cells: Any
    """labels of the cells, by axis"""
    within: Any
    """range or a number, by measure"""


@dataclass(frozen=True)
class Table(Config):
    """A table of the trials' values."""

    title: str = ""
    """heading"""
    measures: list[str] = field(default_factory=list)
    """the measures that it shows; an empty list: all"""
    columns: str | None = None
    """the axis whose values are the columns; null: the measures are the columns"""
    where: Any = None
    """the labels of the groups that it shows; null: all groups"""


@dataclass(frozen=True)
class Figure(Config):
    """Curves of the trials' mean, with a band from the smallest value of a trial to the largest."""

    y: str
    """column of a run's evaluations; with `against` a measure"""
    against: str | None = None
    """an axis with numbers: the measure is drawn against its values, in place of a curve of the evaluations"""
    x: Quantity = "time"
    """time (s), updates, version (aggregations), bytes (sent both ways) or local_steps (of a client, on average)"""
    x_label: str = ""
    """label of the horizontal axis, such as what a second of virtual time stands for; empty: that of x"""
    panels: str | None = None
    """the axis with one panel for each of its values"""
    where: Any = None
    """the labels of the groups that it shows; null: all groups"""
    power: PositiveFloat = 1.0
    """raise the values of the evaluations to this power"""
    y_label: str = ""
    """label of the vertical axis; empty: that of y"""
    slope: float | None = None
    """make both axes logarithmic, and draw a dashed line of this slope through the last point of each curve"""
    limits: list[float] | None = None
    """lowest and highest value of the vertical axis; null: 0 to 100 for an accuracy, else those of the curves"""
    title: str = ""
    """caption"""


@dataclass(frozen=True)
class Claim(Config):
    """A comparison of two groups, or of a group with a number."""

    left: Any
    """labels of a group, by axis"""
    relation: Literal["above", "below", "near", "published"]
    """relation of the left mean to the right one; published: above or below, as the published means have it"""
    right: Any
    """labels of a group by axis, a list of such labels, or a number"""
    measure: str | list[str]
    """what is compared: a measure, or several"""
    by: float = 0.0
    """smallest difference that counts; for `near` the largest"""
    times: PositiveFloat = 1.0
    """factor of the right side: with `below` and 0.5 the left side is less than half of the right one"""
    each: str | None = None
    """an axis: the claim is made for each of its values, or for those in `values`"""
    values: list[Any] = field(default_factory=list)
    """the values of the axis `each` for which the claim is made; an empty list: all"""
    source: str = ""
    """the place in the paper that states the claim"""
    check: bool = False
    """whether it is a check of the runs, which no paper states: it has a verdict, and is not counted"""


@dataclass(frozen=True)
class Page(Config):
    """The section `page` of a study."""

    title: str
    """heading"""
    measures: dict[str, Measure] = field(default_factory=dict)
    """the numbers that tables, claims and published cells show, by name"""
    about: str = ""
    """what was run; Markdown, without results"""
    missing: str = ""
    """what is not here, and why claims are not met; Markdown, without results, at the end"""
    published: str = ""
    """the item of published.csv whose cells are compared"""
    strict: list[Strict] = field(default_factory=list)
    """published cells that are judged by another `within` than that of their measures"""
    tables: list[Table] = field(default_factory=list)
    """tables besides the comparison with the published cells; where there is neither: one table with all measures"""
    figures: list[Figure] = field(default_factory=list)
    """curves of the evaluations"""
    claims: list[Claim] = field(default_factory=list)
    """what the paper says about its methods"""
    spread: str | None = None
    """an axis, such as the seed of the partition: the spread over its values is shown beside that over the trials"""
    blocks: list[str] = field(default_factory=list)
    """functions `FILE.py:NAME` in files beside the study, for what run files do not hold: each is called with the item
    and the folder of the page, and returns Markdown"""
    minutes: PositiveFloat | None = None
    """estimated computing time of all runs on one core, in minutes"""


def read_page(values: Any, defaults: Any = None) -> Page:
    """A section `page`, with the keys of `defaults` that it does not have. Raises ConfigError."""
    if not isinstance(values, Mapping) or not isinstance(defaults or {}, Mapping):
        raise ConfigError(
            "page", values, "not a section", "what the page shows: title, measures, tables, figures, claims"
        )
    merged = {**(defaults or {}), **values}
    measures = merged.pop("measures", None)
    if not isinstance(measures, Mapping) or not all(isinstance(m, Mapping) for m in measures.values()):
        raise ConfigError(
            "page.measures", measures, "not a section of sections", "measures by name: {loss: {metric: train_loss}}"
        )
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
            raise ConfigError(
                f"strict[{k}].within", strict.within, "not a section", "rules by measure: {accuracy: 1.0}"
            )
        _check_measures(page, f"strict[{k}].within", list(strict.within))
        for name, rule in strict.within.items():
            if rule != "range" and (isinstance(rule, bool) or not isinstance(rule, int | float) or not rule > 0):
                raise ConfigError(f"strict[{k}].within.{name}", rule, "not valid", "range or a number above 0")
    for k, table in enumerate(page.tables):
        _check_labels(f"tables[{k}].where", table.where, optional=True)
        _check_measures(page, f"tables[{k}].measures", table.measures)
        if len({page.measures[name].over for name in table.measures or page.measures}) > 1:
            raise ConfigError(
                f"tables[{k}].measures",
                table.measures,
                "measures over different axes",
                "over the same axis, or over none",
            )
    for k, figure in enumerate(page.figures):
        _check_labels(f"figures[{k}].where", figure.where, optional=True)
        if figure.limits and not (len(figure.limits) == 2 and figure.limits[0] < figure.limits[1]):
            raise ConfigError(
                f"figures[{k}].limits", figure.limits, "not an interval", "two numbers, the lower one first"
            )
        if figure.against is not None:
            _check_measures(page, f"figures[{k}].y", [figure.y])
    for k, claim in enumerate(page.claims):
        _check_measures(
            page, f"claims[{k}].measure", claim.measure if isinstance(claim.measure, list) else [claim.measure]
        )
        _check_labels(f"claims[{k}].left", claim.left)
        if claim.values and claim.each is None:
            raise ConfigError(f"claims[{k}].values", claim.values, "there is no `each`, whose values they are", "none")
        for right in claim.right if isinstance(claim.right, list) else [claim.right]:
            if isinstance(right, bool) or not isinstance(right, int | float):
                _check_labels(f"claims[{k}].right", right)


def _check_labels(key: str, value: Any, optional: bool = False) -> None:
    if not isinstance(value, Mapping) and not (optional and value is None):
        raise ConfigError(key, value, "not a section", LABELS)


def _check_measures(page: Page, key: str, names: list[str]) -> None:
    for name in names:
        if name not in page.measures:
            raise ConfigError(key, name, "no such measure", f"one of {', '.join(page.measures)}")
