"""When each client is on: renewal processes and traces, whatever the delay model says about its contacts.

A message waits until its client is on; then the contact's seconds pass while it is on (`timeline.Timeline`). On
periods are half-open, [start, end): a client whose period ends at t is off at t.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from math import floor, inf, log1p
from typing import Annotated, Literal

import numpy as np

from mpifl.config.types import Bounds, Config, PositiveSeconds
from mpifl.errors import ConfigError, RunFailed, place_of
from mpifl.rng import stream
from mpifl.scheduling.delays import each
from mpifl.scheduling.trace_files import read_trace, wrong

# (client, time) -> start and end (s) of the client's first on period that ends after that time; (inf, inf): none
NextOn = Callable[[int, float], tuple[float, float]]
ShortSeconds = Annotated[float, Bounds(at_least=1e-3, at_most=1e9)]
OffSeconds = Annotated[float, Bounds(at_least=0, at_most=1e9)]
PERIODS = 32  # on periods of one random stream, drawn at once
MAX_PERIODS = 100_000  # on periods that a contact may meet
MAX_DRAWN = 1_000_000  # on periods that may pass between two questions about a client


@dataclass(frozen=True)
class Availability(Config):
    """Base of every availability model, a user's own included: on periods are a function of (seed, client) alone."""

    interrupted: Literal["paused", "restart"] = field(default="paused", kw_only=True)
    """what an off period does to the work of a contact: paused, it goes on at the next on; restart, it is lost and
    begins again at the next on, with the same seconds and the same result"""
    cohort_from: Literal["all", "available"] = field(default="all", kw_only=True)
    """members of a round: all, of all clients, and the round waits for those that are off; available, of those that are
    on when the round begins, or of those that come on first if none is on"""

    @abstractmethod
    def on_periods(self, clients: int, seed: int) -> NextOn | None:
        """Each client's on periods; None: all clients are always on. Raises ConfigError."""
        raise NotImplementedError

    def fractions(self, clients: int) -> np.ndarray | None:
        """(n,) long-run fraction of time that each client is on; None: not known."""
        return None


@dataclass(frozen=True)
class Always(Availability):
    """Every client is on all the time."""

    name: str = "always"
    interrupted: Literal["paused"] = field(default="paused", init=False)
    cohort_from: Literal["all"] = field(default="all", init=False)

    def on_periods(self, clients: int, seed: int) -> None:
        return None

    def fractions(self, clients: int) -> np.ndarray:
        return np.ones(clients)


@dataclass(frozen=True)
class Renewal(Availability):
    """On and off periods alternate; their lengths are independent draws from a distribution with the given means."""

    name: str = "renewal"
    on: ShortSeconds | list[ShortSeconds] = 30.0
    """mean length of an on period (s): one for all clients, or a list with one for each"""
    off: OffSeconds | list[OffSeconds] = 10.0
    """mean length of an off period (s): likewise; 0: such a client is always on"""
    spread: Annotated[float, Bounds(at_least=1e-6, at_most=1e6)] = 1.0
    """periods of the last client over those of the first: multiplied by factors spaced evenly from 1 to this"""
    start: Literal["stationary", "on"] = "stationary"
    """state at time 0: stationary, on with the long-run probability, in the middle of a period; on, at the start of an
    on period"""
    distribution: Literal["exponential", "fixed"] = "exponential"
    """law of the lengths: exponential, or fixed, where every length is the mean"""

    def _means(self, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """(n,) mean lengths of on and of off periods (s)."""
        factors = np.linspace(1, self.spread, clients)
        return factors * each("on", self.on, clients), factors * each("off", self.off, clients)

    def fractions(self, clients: int) -> np.ndarray:
        on, off = self._means(clients)
        return np.asarray(on / (on + off))

    def on_periods(self, clients: int, seed: int) -> NextOn:
        on, off = (means.tolist() for means in self._means(clients))
        fixed, stationary = self.distribution == "fixed", self.start == "stationary"
        begins = [[-1.0] for _ in range(clients)]  # when each block of each client begins (s); -1: not drawn yet
        recent: dict[int, tuple[int, list[float]]] = {}  # client -> block, its boundaries: on, off, on, off, ...

        def block(i: int, number: int) -> list[float]:
            """The boundaries of a block: starts and ends of its on periods in turn, and where the next one begins."""
            found, boundaries = recent.get(i, (-1, []))
            if found == number:
                return boundaries
            rng = stream(seed, "availability", i, number)
            state, residual = rng.random(2).tolist()
            units = np.ones(2 * PERIODS) if fixed else rng.exponential(1.0, 2 * PERIODS)
            lengths = (units * np.tile([on[i], off[i]], PERIODS)).tolist()
            begin = begins[i][number]
            if number == 0:
                begin = 0.0
                if stationary and state * (on[i] + off[i]) >= on[i]:
                    # The rest of an off period: exponential like the whole, being memoryless; of a fixed one uniform.
                    # NumPy's log1p rounds differently on a CPU with AVX-512.
                    begin = off[i] * (residual if fixed else -log1p(-residual))
                elif stationary and fixed:
                    lengths[0] *= residual
            boundaries = list(accumulate(lengths, initial=begin))
            if len(begins[i]) == number + 1:
                begins[i].append(boundaries[-1])
            recent[i] = number, boundaries
            return boundaries

        def next_on(i: int, time: float) -> tuple[float, float]:
            if not off[i]:
                return 0.0, inf
            known = begins[i]
            number = max(0, bisect_right(known, time) - 1)
            for _ in range(MAX_DRAWN // PERIODS):
                boundaries = block(i, number)
                if boundaries[-2] > time:  # the end of the block's last on period
                    k = bisect_right(boundaries, time)
                    # An odd number of boundaries has passed while it is on.
                    return (boundaries[k - 1], boundaries[k]) if k % 2 else (boundaries[k], boundaries[k + 1])
                number += 1
            text = f"client {i} has more than {MAX_DRAWN:,} on periods until {time:g} s"
            raise RunFailed(f"clock.availability: {text}; give longer ones")

        return next_on


@dataclass(frozen=True)
class TraceAvailability(Availability):
    """On periods read from a CSV file with the columns client, start and end, in seconds of the run's clock."""

    name: str = "trace"
    path: str = ""
    """the file, or package:NAME for one that comes with mpifl"""
    after: Literal["off", "repeat"] = field(kw_only=True)
    """after a client's last row: off, it stays off; repeat, the trace begins again every `period` seconds"""
    period: PositiveSeconds | None = None
    """with after: repeat, the length of the trace (s), at least the largest end; null with after: off"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.period is None) != (self.after == "off"):
            expected = "null" if self.period else "the length of the trace in seconds"
            raise ConfigError("period", self.period, f"the trace has after={self.after}", expected)

    def on_periods(self, clients: int, seed: int) -> NextOn:
        rows = read_trace(self.path, ("start", "end"), clients)
        periods = [self._merged(i, own) for i, own in enumerate(rows)]
        ends = [[end for _, end in own] for own in periods]
        length = self.period or inf

        def next_on(i: int, time: float) -> tuple[float, float]:
            own = periods[i]
            if own == [(0.0, length)]:
                return 0.0, inf
            turn = floor(time / length) if length < inf else 0
            begin = turn * length if turn else 0.0
            k = bisect_right(ends[i], time - begin)
            while True:
                if k == len(own):
                    if length == inf:
                        return inf, inf
                    turn, k = turn + 1, 0
                    begin = turn * length
                start, end = begin + own[k][0], begin + own[k][1]
                if own[k][1] == length and own[0][0] == 0:  # the period goes on in the next turn
                    end += own[0][1]
                if end > time:  # false by rounding alone
                    return start, end
                k += 1

        return next_on

    def _merged(self, i: int, rows: list[tuple[int, tuple[float, ...]]]) -> list[tuple[float, float]]:
        """The periods of a client, where one that begins at the end of another continues it. Raises ConfigError."""
        found: list[tuple[float, float]] = []
        for line, (start, end) in rows:
            if not start < end:
                raise wrong(self.path, line, f"it has start {start:g}, end {end:g}", "start < end")
            if found and start < found[-1][1]:
                text = f"it has start {start:g}, before the end of client {i}'s row before"
                raise wrong(self.path, line, text, f"start >= {found[-1][1]:g}")
            if self.period and end > self.period:
                raise ConfigError(
                    "period", self.period, f"client {i} has an end after it (line {line})", f"at least {end:g}"
                )
            if found and start == found[-1][1]:
                found[-1] = found[-1][0], end
            else:
                found.append((start, end))
        return found


def checked_periods(availability: Availability, clients: int, seed: int) -> NextOn | None:
    """The on periods of a model; those of a user's own raise RunFailed when they are no periods."""
    next_on = availability.on_periods(clients, seed)
    if type(availability) in AVAILABILITIES.values() or next_on is None:
        return next_on

    def checked(i: int, time: float) -> tuple[float, float]:
        start, end = next_on(i, time)
        if not start < end > time and (start, end) != (inf, inf):
            where = place_of(type(availability), "on_periods")
            text = f"{where} returned ({start}, {end}) for client {i} at {time} s"
            raise RunFailed(f"clock.availability: {text}; start < end and end > {time} are expected, or (inf, inf)")
        return start, end

    return checked


AVAILABILITIES: dict[str, type[Availability]] = {
    "always": Always,
    "renewal": Renewal,
    "trace": TraceAvailability,
}
