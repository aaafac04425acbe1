"""The section `search` of a study, and the rungs of successive halving.

Of n combinations all are computed to the first rung, then the best n / eta of them to the next, at eta times the
horizon, and so on; the last rung is the stop of the job (Jamieson and Talwalkar, AISTATS 2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from mpifl.config.job import Job
from mpifl.config.types import Bounds, Config, PositiveInt
from mpifl.errors import ConfigError
from mpifl.tools.analysis.trials import TRAINING


@dataclass(frozen=True)
class Search(Config):
    """Computes only the best of the values that `select` chooses among to their ends."""

    rule: Literal["successive-halving"] = "successive-halving"
    """successive-halving: of n combinations of the values of `select.over` the best n / eta, by `select.by` over the
    trials that decide, go on to eta times the horizon, and so on, until one reaches the stop of the job"""
    budget: PositiveInt | None = None
    """combinations of these values, drawn at random, for each combination of the other axes; null: all"""
    eta: Annotated[int, Bounds(at_least=2)] = 4
    """the factor between the horizons of two rungs, and between the numbers of combinations that reach them"""
    rungs: PositiveInt | None = None
    """largest number of rungs; null: as many as leave `select.count` combinations at the last one"""


class Rung(NamedTuple):
    combinations: int
    """combinations that reach it"""
    end: float
    """its horizon: seconds of the run's clock, or updates"""


def rungs_of(search: Search, combinations: int, end: float, least: int = 1) -> list[Rung]:
    """The rungs for so many combinations; the last one, at `end`, is reached by `least` or more of them."""
    last = 0
    while combinations // search.eta ** (last + 1) >= least and last + 1 != search.rungs:
        last += 1
    return [Rung(combinations // search.eta**k, end / search.eta ** (last - k)) for k in range(last + 1)]


class Stage(NamedTuple):
    """The runs that a search computes at a time: up to a rung, or the trials to report."""

    runs: int
    work: float
    """what they compute together, from the rung before: seconds of their clocks, or updates"""


def stages_of(brackets: Iterable[Sequence[Rung]], deciding: int, reported: int) -> list[Stage]:
    """What a search is to compute, by the rungs of its brackets.

    deciding: trials of each combination that decide. reported: further trials of what is left of a bracket.
    """
    stages, last = list[Stage](), Stage(0, 0.0)
    for rungs in brackets:
        stages += [Stage(0, 0.0)] * (len(rungs) - len(stages))
        begin = 0.0
        for k, (combinations, end) in enumerate(rungs):
            runs = combinations * deciding
            stages[k] = Stage(stages[k].runs + runs, stages[k].work + runs * (end - begin))
            begin = end
        last = Stage(last.runs + reported, last.work + reported * begin)
    return [*stages, last]


def time_left(
    stages: Iterable[tuple[int, float]], computed: Sequence[tuple[float, float | None]], processes: int
) -> float | None:
    """Estimated wall time (s) of what is left of a search; None where no run says how long it took.

    What has been computed fills the stages in their order. A stage of n runs that lacks the work w takes
    c w / min(n, processes), where c is the wall time of a unit of work so far.

    computed: how far each run has been computed, and the wall time that this took (s) where it is known.
    """
    timed = [(reached, seconds) for reached, seconds in computed if reached and seconds is not None]
    if not timed:
        return None
    done, left = sum(reached for reached, _ in computed), 0.0
    for runs, work in stages:
        left += max(0.0, work - done) / max(1, min(runs, processes))
        done = max(0.0, done - work)
    return left * sum(seconds for _, seconds in timed) / sum(reached for reached, _ in timed)


def end_of(job: Job) -> float:
    """The stop of a job of a search, which has one of the two."""
    return job.stop.time or job.stop.updates or 0.0


def interval_of(job: Job) -> float | None:
    """The interval between two evaluations, in the unit of the stop; None where it has another one."""
    return job.evaluate.every if job.stop.time else job.evaluate.updates


def check_job(job: Job, first: Rung, metric: str) -> None:
    """Raises ConfigError where the runs of a job cannot be compared at their rungs; first: the first one."""
    stop, interval = job.stop, interval_of(job)
    if job.clock.mode != "virtual":
        raise ConfigError("clock.mode", job.clock.mode, "a search compares runs at equal virtual times", "virtual")
    if (stop.time is None) == (stop.updates is None) or stop.accuracy or stop.plateau:
        wrong = "a search divides one horizon into rungs"
        raise ConfigError("stop", None, wrong, "either stop.time or stop.updates, and no other rule")
    unit, key = ("s", "every") if stop.time else ("updates", "updates")
    if interval is None:
        wrong = (
            f"with stop.{'time' if stop.time else 'updates'} a search needs evaluations at intervals of the same unit"
        )
        raise ConfigError("evaluate", None, wrong, f"evaluate.{key}")
    least = interval * (job.evaluate.train_every if metric in TRAINING else 1)
    if first.end < least:
        wrong = (
            f"the first rung ends at {first.end:g} {unit}, before the first evaluation of {metric} at {least:g} {unit}"
        )
        raise ConfigError("search.rungs", None, wrong, "fewer rungs", f"or a smaller evaluate.{key}")


def cannot_split(key: str, value: object, expected: str) -> ConfigError:
    """The error for a search whose runs would be divided among several sweeps."""
    wrong = "a search compares all runs of a rung, so it cannot be split"
    return ConfigError(key, value, wrong, expected, "to compute several runs at a time, set site.processes or ranks")
