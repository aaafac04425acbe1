"""How long a client takes from one contact with the server to the next, in seconds of the run's clock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from mpifl.config.types import Bounds, Config, PositiveInt, PositiveSeconds, Seconds, check_length
from mpifl.errors import ConfigError, RunFailed, place_of
from mpifl.rng import stream
from mpifl.scheduling.trace_files import LONGEST_TIME, read_trace

ContactTimes = Callable[[int, int], float]  # (client, round) -> s
SplitTimes = Callable[[int, int, int], tuple[float, float]]  # (client, round, work) -> s of computing, s of exchanging
ROUNDS_PER_STREAM = 64  # draws of one random stream
ROUNDS_KEPT = 16  # draws of each client that are kept; divides ROUNDS_PER_STREAM


@dataclass(frozen=True)
class Delay(Config):
    """Base of every delay model, a user's own included: what is drawn is a function of (seed, client, round) alone."""

    def rates(self, clients: int, seed: int) -> np.ndarray | None:
        """(n,) contacts a second, or None where the model has no rates."""
        return None

    @property
    def may_be_zero(self) -> bool:
        """Whether a client may contact the server again and again while no (virtual) time passes."""
        return False

    @property
    def has_split_times(self) -> bool:
        """Whether the model has separate times of computing and exchanging: it defines `split_times`."""
        return type(self).split_times is not Delay.split_times

    @abstractmethod
    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        """The duration of each contact of each client."""
        raise NotImplementedError

    def split_times(self, clients: int, seed: int) -> SplitTimes | None:
        """The computing and exchanging times of each contact, by the work of its message; None if not separate."""
        return None


@dataclass(frozen=True)
class NoDelay(Delay):
    """A client answers as soon as it has computed (at once, under the virtual clock)."""

    name: str = "none"

    @property
    def may_be_zero(self) -> bool:
        return True

    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        return lambda client, round: 0.0


@dataclass(frozen=True)
class Exponential(Delay):
    """Contact times Exp(lambda_i), as in AREA (arXiv 2405.10123): lambda_i = rate, or ~ N(rate, spread)."""

    name: str = "exponential"
    rate: Annotated[float, Bounds(at_least=1e-9, at_most=1e9)] = 10.0
    """mean of the clients' rates lambda_i, per second"""
    spread: Annotated[float, Bounds(at_least=0, at_most=1e9)] = 0.0
    """standard deviation of the rates across clients, per second; 0: all equal"""
    negative: Literal["absolute", "resample"] = "absolute"
    """what a negative rate drawn from N(rate, spread) becomes: its absolute value, or a new draw (resample)"""

    def rates(self, clients: int, seed: int) -> np.ndarray:
        rng = stream(seed, "rate")
        rates = rng.normal(self.rate, self.spread, clients)
        while self.negative == "resample" and (rates <= 0).any():
            rates = np.where(rates <= 0, rng.normal(self.rate, self.spread, clients), rates)
        return np.abs(rates)

    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        return DrawnTimes((1 / self.rates(clients, seed)).tolist(), seed)


class DrawnTimes:
    """Exponential contact times, of which those around each client's present round are kept."""

    def __init__(self, means: list[float], seed: int) -> None:
        """means: the mean of each client's times (s)."""
        self._means, self._seed = means, seed
        self._drawn = np.zeros((len(means), ROUNDS_KEPT))
        self._first = np.full(len(means), -1)  # the first round of each client whose time is in `drawn`

    def __call__(self, client: int, round: int) -> float:
        place = round % ROUNDS_KEPT
        if self._first[client] != round - place:
            number, count = divmod(round - place, ROUNDS_PER_STREAM)
            generator = stream(self._seed, "delay", client, number)
            self._drawn[client] = generator.exponential(self._means[client], count + ROUNDS_KEPT)[count:]
            self._first[client] = round - place
        return float(self._drawn[client, place])


@dataclass(frozen=True)
class Fixed(Delay):
    """Every contact of a client takes the same time."""

    name: str = "fixed"
    seconds: Seconds | list[Seconds] = 1.0
    """one time for all clients, or a list with one for each (s)"""

    @property
    def may_be_zero(self) -> bool:
        return 0 in self.seconds if isinstance(self.seconds, list | tuple) else self.seconds == 0

    def rates(self, clients: int, seed: int) -> np.ndarray | None:
        each = np.asarray(self._each(clients))
        return 1 / each if (each > 0).all() else None

    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        each = self._each(clients)
        return lambda client, round: each[client]

    def _each(self, clients: int) -> list[float]:
        return each("seconds", self.seconds, clients)


def each(key: str, value: float | list[float], clients: int) -> list[float]:
    """One number a client, from one number for all or a list. Raises ConfigError."""
    if not isinstance(value, list | tuple):
        return [float(value)] * clients
    check_length(key, value, clients)
    return [float(v) for v in value]


@dataclass(frozen=True)
class Speed(Delay):
    """Computing and exchanging apart: a contact takes work * steps * compute_i + exchange_i, where work is what its
    message asks for (local epochs or rounds; 1 for most methods)."""

    name: str = "speed"
    compute: PositiveSeconds | list[PositiveSeconds] = 1.0
    """time of a unit of local work (s): one for all clients, or a list with one for each"""
    exchange: PositiveSeconds | list[PositiveSeconds] = 0.1
    """time that the messages of a contact take both ways (s): likewise"""
    spread: Annotated[float, Bounds(above=0, at_most=1e9)] = 1.0
    """times of the last client over those of the first: multiplied by factors spaced evenly from 1 to this"""
    noise: Literal["none", "exponential", "lognormal"] = "none"
    """each time is drawn from an exponential or lognormal distribution with the given mean; none: it is the mean"""
    sigma: Annotated[float, Bounds(above=0, at_most=10)] = 1.0
    """standard deviation of the logarithm of a lognormal time: the larger, the heavier the tail"""
    steps: PositiveInt = 1
    """computing times in a unit of work: ${algorithm.local_steps} makes `compute` the time of one local step"""

    def _means(self, clients: int) -> tuple[np.ndarray, np.ndarray]:
        factors = np.linspace(1, self.spread, clients)
        compute, exchange = (factors * each(k, getattr(self, k), clients) for k in ("compute", "exchange"))
        return self.steps * compute, exchange

    def rates(self, clients: int, seed: int) -> np.ndarray:
        compute, exchange = self._means(clients)
        return np.asarray(1 / (compute + exchange))

    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        times = self.split_times(clients, seed)
        return lambda client, round: sum(times(client, round, 1))

    def split_times(self, clients: int, seed: int) -> SplitTimes:
        compute, exchange = (means.tolist() for means in self._means(clients))
        shift = -(self.sigma**2) / 2  # exp(sigma z + shift) has the mean 1, z ~ N(0, 1)

        def drawn(client: int, round: int, work: int) -> tuple[float, float]:
            rng = stream(seed, "delay", client, round)
            if self.noise == "exponential":
                return work * float(rng.exponential(compute[client])), float(rng.exponential(exchange[client]))
            first, second = rng.lognormal(shift, self.sigma, 2).tolist()
            return work * (first * compute[client]), second * exchange[client]

        def given(client: int, round: int, work: int) -> tuple[float, float]:
            return work * compute[client], exchange[client]

        return given if self.noise == "none" else drawn


@dataclass(frozen=True)
class Trace(Delay):
    """Contact times read from a CSV file with the columns client and seconds; a client's rows follow in its order."""

    name: str = "trace"
    path: str = ""
    """the file, or package:NAME for one that comes with mpifl"""
    exhausted: Literal["fail", "repeat"] = "fail"
    """when a client's rows are used up: the run fails, or the client starts again at its first row (repeat)"""

    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        times = [[seconds for _, (seconds,) in rows] for rows in read_trace(self.path, ("seconds",), clients)]
        if missing := [i for i, t in enumerate(times) if not sum(t)]:
            wrong = f"client {missing[0]} has no time above 0"
            raise ConfigError("path", self.path, wrong, "at least one for every client")
        if self.exhausted == "repeat":
            return lambda client, round: times[client][round % len(times[client])]

        def next_time(client: int, round: int) -> float:
            if round < len(times[client]):
                return times[client][round]
            text = f"client {client} has used up its {len(times[client])} times in {self.path}"
            raise RunFailed(f"clock.delay.exhausted=fail: {text}; with repeat it starts again at its first")

        return next_time


def checked_times(delay: Delay, clients: int, seed: int) -> tuple[ContactTimes, SplitTimes | None]:
    """The times of a delay model; those of a user's own raise RunFailed when they are drawn and are no times.

    Raises ConfigError where a user's model returns no function.
    """
    contact, split = delay.contact_times(clients, seed), delay.split_times(clients, seed)
    if type(delay) in DELAYS.values():
        return contact, split

    if not callable(contact):
        wrong = f"{place_of(type(delay), 'contact_times')} returned {contact!r}"
        raise ConfigError("name", type(delay).__qualname__, wrong, "a function of (client, round) that returns seconds")

    def check(seconds: float, method: str, client: int, round: int) -> float:
        try:
            right = 0 <= seconds <= LONGEST_TIME
        except (TypeError, ValueError):  # no number
            right = False
        if not right:
            text = f"{place_of(type(delay), method)} returned {seconds} for client {client}, round {round}"
            raise RunFailed(f"clock.delay: {text}; seconds from 0 to {LONGEST_TIME:g} are expected")
        return seconds

    def checked_split(client: int, round: int, work: int) -> tuple[float, float]:
        compute, exchange = split(client, round, work) if split else (0.0, 0.0)
        return check(compute, "split_times", client, round), check(exchange, "split_times", client, round)

    return (
        lambda client, round: check(contact(client, round), "contact_times", client, round),
        checked_split if split else None,
    )


DELAYS: dict[str, type[Delay]] = {
    "none": NoDelay,
    "exponential": Exponential,
    "fixed": Fixed,
    "speed": Speed,
    "trace": Trace,
}
