"""What a report shows: the options of `mpifl report`, checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING, Any

from mpifl.errors import ConfigError
from mpifl.problems.metrics import METRICS as CLASSIFICATION
from mpifl.runfile.fairness import SUMMARY
from mpifl.runfile.tables import EvaluationRow
from mpifl.tools.analysis.spread import SPREADS
from mpifl.tools.analysis.trials import PROGRESS, own_metrics

if TYPE_CHECKING:
    from mpifl.tools.analysis.trials import Group

TABLES = ("md", "csv", "tex")
PICTURES = ("png", "pdf", "svg")
PAGE = "html"
NOT_METRICS = ("time", "updates", "version", "age")  # columns of the evaluations that are no metrics
METRICS = tuple(name for name in EvaluationRow._fields if name not in NOT_METRICS)
COMPUTED = ("rho", "global_steps", "updates_per_second", "staleness")  # columns of the table besides metrics
CLIENTS = tuple(f"client_accuracy_{name}" for name in SUMMARY)  # metrics of `evaluate.clients`
VARIANCE = "client_accuracy_variance"
CURVES = {"accuracy": "test_accuracy", "loss": "train_loss", "gradient": "gradient_norm",
          "gradient-mapping": "gradient_mapping"}  # figures and their metrics  # fmt: skip
FIGURES = (*CURVES, "staleness", "client-updates", "step-size-accuracy", "step-size-loss", "timeline")
ON_REQUEST = ("updates", "staleness-accuracy", "staleness-loss", "profile", "ranks-accuracy", "ranks-loss")
WIDTHS = (2.0, 12.0)  # inches, least and greatest


def is_percentage(metric: str) -> bool:
    """Whether a metric is a fraction that tables and figures show in percent."""
    return metric in CLASSIFICATION or ("accuracy" in metric and metric != VARIANCE and ":" not in metric)


def scale_of(metric: str) -> float:
    """The factor from a metric's value to what tables and figures show; a variance is one of percentages."""
    return 1e4 if metric == VARIANCE else 100.0 if is_percentage(metric) else 1.0


@dataclass(frozen=True)
class Options:
    """The options of a report. Raises ConfigError for a value that it does not take."""

    spread: str = "range"
    """spread over the trials in tables and figures: range, sd or ci95"""
    columns: tuple[str, ...] | None = None
    """columns of the table: metrics of the evaluations, rho, ...; None: the columns of every report"""
    reach: tuple[float, ...] = ()
    """test accuracies (0..1): the table shows what it takes to reach each of them"""
    reach_in: tuple[str, ...] = ("time",)
    """units of `reach`: time, updates, rounds, bytes, local-steps"""
    formats: tuple[str, ...] = ("md", "csv", "tex", "png", "pdf")
    figures: tuple[str, ...] | None = None
    """names of FIGURES and ON_REQUEST, or metrics of the evaluations; None: all FIGURES that the runs have values of"""
    x: tuple[str, ...] = ("time",)
    """quantities that curves are drawn against; the same names as in `reach_in`"""
    panels: str | None = None
    """an axis: figures of curves have a panel for each of its values"""
    trials: bool = False
    """figures of curves have a thin line for each trial"""
    window: tuple[float, float] | None = None
    """first and last time (s) of timelines; None: the beginning of the run"""
    width: float = 7.0
    """width of the figures, inches"""
    pivot: str | None = None
    """an axis: the table has a column for each of its values, and one metric, the first of `columns`, in the cells"""
    label: str = ""
    """label of a pivot in LaTeX, such as tab:accuracy"""
    caption: str = ""
    """caption of a pivot in LaTeX; empty: the metric"""
    siunitx: bool = False
    """numbers of a pivot in LaTeX are aligned by the package siunitx"""
    all: bool = False
    """show all values of a study, and mark those that its rule selects"""
    watch: bool = False
    """the study still runs: the page loads itself again"""

    def __post_init__(self) -> None:
        _check("spread", [self.spread], SPREADS)
        _check("reach-in", self.reach_in, PROGRESS)
        _check("formats", self.formats, (*TABLES, *PICTURES, PAGE))
        _check("x", self.x, PROGRESS)
        if self.label and not re.fullmatch(r"[A-Za-z0-9:._-]+", self.label):
            raise ConfigError("label", self.label, "LaTeX may not take it", "letters, digits and : . _ -")
        for accuracy in self.reach:
            if not 0 < accuracy <= 1:
                raise ConfigError(
                    "reach", f"{accuracy:g}", "not an accuracy", "a number above 0 and at most 1, such as 0.9"
                )
        if self.window and not (len(self.window) == 2 and 0 <= self.window[0] < self.window[1] < inf):
            raise ConfigError(
                "window", ",".join(f"{t:g}" for t in self.window), "not an interval of time",
                "two times in seconds, the smaller one first, such as 10,12",
            )  # fmt: skip
        if not WIDTHS[0] <= self.width <= WIDTHS[1]:
            raise ConfigError(
                "width", f"{self.width:g}", "too small or too large", f"inches, from {WIDTHS[0]:g} to {WIDTHS[1]:g}"
            )

    def check_names(self, groups: Iterable[Group]) -> None:
        """Raises ConfigError for a column or a figure that is neither known nor a column of the runs' evaluations."""
        more = (*CLASSIFICATION, *own_metrics(groups))
        figures = (*FIGURES, *ON_REQUEST, *METRICS)
        for key, names, known in (
            ("columns", self.columns, (*METRICS, *COMPUTED)), ("figures", self.figures, figures)
        ):  # fmt: skip
            _check(key, [name for name in names or () if ":" not in name], dict.fromkeys((*known, *more)))

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that the report may show."""
        names = {*(self.columns or ()), *(self.figures or ()), *CURVES.values(), "test_loss", "personal_accuracy_mean",
                 "personal_accuracy_best", *CLIENTS}  # fmt: skip
        return frozenset(names & set(METRICS))

    @property
    def sums(self) -> frozenset[str]:
        """The sums over updates that it needs, as in `load_trial`."""
        used = {PROGRESS[name] for name in (*self.x, *(self.reach_in if self.reach else ()))}
        return frozenset(used & {"bytes", "local_steps"})


def parse_options(values: Mapping[str, Any]) -> Options:
    """The options of a command line, where lists are text with commas; other `values` are left out.

    Raises ConfigError.
    """
    found: dict[str, Any] = {}
    for key in (field.name for field in fields(Options)):
        if (value := values.get(key)) is None:
            continue
        name = key.replace("_", "-")
        if key in ("columns", "reach_in", "formats", "figures", "x"):
            found[key] = tuple(part.strip() for part in value.split(",") if part.strip())
            if not found[key]:
                raise ConfigError(name, value or "''", "no names", "names, separated by commas")
        elif key in ("reach", "window"):
            found[key] = tuple(_number(name, part) for part in value.split(","))
        elif key == "width":
            found[key] = _number(name, value)
        else:
            found[key] = value
    return Options(**found)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        expected = "a number" if key == "width" else "numbers, separated by commas"
        raise ConfigError(key, text or "''", "not a number", expected) from None


def _check(key: str, names: Collection[str], known: Collection[str]) -> None:
    """Raises ConfigError for an unknown name."""
    for name in names:
        if name not in known:
            raise ConfigError(key, name or "''", "unknown", f"one of {', '.join(known)}")
