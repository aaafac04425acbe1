"""How long a client takes from one contact with the server to the next, in seconds of the run's clock."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifl.errors import ConfigError, at_least, choice
from mpifl.streams import stream

Seconds = Callable[[int, int], float]  # (client, round) -> s
BLOCK = 64  # draws that one stream makes at once


@dataclass(frozen=True)
class NoDelay:
    """A client answers as soon as it has computed (at once, under the virtual clock)."""

    name: str = "none"

    def rates(self, clients: int, seed: int) -> np.ndarray | None:
        """(n,) contacts a second, or None where the model has no rates."""
        return None

    @property
    def stands_still(self) -> bool:
        """Whether a client may contact the server again and again without any (virtual) time going by."""
        return True

    def bind(self, clients: int, seed: int) -> Seconds:
        """The time of each client's each contact: a function of (seed, client, round) alone."""
        return lambda client, round: 0.0


@dataclass(frozen=True)
class Exponential(NoDelay):
    """Contact times Exp(lambda_i), as in AREA (arXiv 2405.10123): lambda_i = rate, or ~ N(rate, spread)."""

    name: str = "exponential"
    rate: float = 10.0
    """mean of the clients' rates lambda_i, per second"""
    spread: float = 0.0
    """standard deviation of the rates across clients, per second; 0: all equal"""
    negative: str = "absolute"
    """what a negative rate drawn from N(rate, spread) becomes: its absolute value, or a new draw (resample)"""

    def __post_init__(self) -> None:
        at_least("rate", self.rate, 0, strict=True)
        at_least("spread", self.spread, 0)
        choice("negative", self.negative, ("absolute", "resample"))

    @property
    def stands_still(self) -> bool:
        return False

    def rates(self, clients: int, seed: int) -> np.ndarray:
        rng = stream(seed, "rate")
        rates = rng.normal(self.rate, self.spread, clients)
        while self.negative == "resample" and (rates <= 0).any():
            rates = np.where(rates <= 0, rng.normal(self.rate, self.spread, clients), rates)
        return np.abs(rates)

    def bind(self, clients: int, seed: int) -> Seconds:
        means = (1 / self.rates(clients, seed)).tolist()
        blocks: dict[int, tuple[int, list[float]]] = {}

        def seconds(client: int, round: int) -> float:
            number, draws = blocks.get(client, (-1, []))
            if number != round // BLOCK:
                number = round // BLOCK
                draws = stream(seed, "delay", client, number).exponential(means[client], BLOCK).tolist()
                blocks[client] = number, draws
            return draws[round % BLOCK]

        return seconds


@dataclass(frozen=True)
class Fixed(NoDelay):
    """Every contact of a client takes the same time."""

    name: str = "fixed"
    seconds: float | list[float] = 1.0
    """one time for all clients, or a list with one for each (s)"""

    def __post_init__(self) -> None:
        for value in self.seconds if isinstance(self.seconds, list | tuple) else [self.seconds]:
            at_least("seconds", value, 0)

    @property
    def stands_still(self) -> bool:
        return 0 in self.seconds if isinstance(self.seconds, list | tuple) else self.seconds == 0

    def rates(self, clients: int, seed: int) -> np.ndarray | None:
        each = np.asarray(self._each(clients))
        return 1 / each if (each > 0).all() else None

    def bind(self, clients: int, seed: int) -> Seconds:
        each = self._each(clients)
        return lambda client, round: each[client]

    def _each(self, clients: int) -> list[float]:
        if not isinstance(self.seconds, list | tuple):
            return [float(self.seconds)] * clients
        if len(self.seconds) != clients:
            raise ConfigError("seconds", f"{len(self.seconds)} values", f"one number, or {clients}: one a client")
        return [float(s) for s in self.seconds]


@dataclass(frozen=True)
class Trace(NoDelay):
    """Contact times read from a CSV file with the columns client and seconds; a client's rows follow in its order."""

    name: str = "trace"
    path: str = ""
    """the file; a client whose rows are used up starts again at its first"""

    @property
    def stands_still(self) -> bool:
        return False

    def bind(self, clients: int, seed: int) -> Seconds:
        times: list[list[float]] = [[] for _ in range(clients)]
        try:
            with Path(self.path).open(newline="", encoding="utf-8") as file:
                for line, row in enumerate(csv.DictReader(file), 2):
                    client, seconds = int(row["client"]), float(row["seconds"])
                    if not 0 <= client < clients or not 0 <= seconds < np.inf:
                        raise ConfigError("path", self.path, f"line {line} needs 0 <= client < {clients}, seconds >= 0")
                    times[client].append(seconds)
        except ConfigError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            text = f"a readable CSV file with the columns client and seconds ({error})"
            raise ConfigError("path", self.path or "''", text) from error
        if missing := [i for i, t in enumerate(times) if not sum(t)]:
            text = f"at least one time above 0 for every client; none for client {missing[0]}"
            raise ConfigError("path", self.path, text)
        return lambda client, round: times[client][round % len(times[client])]


Delay = NoDelay
DELAYS: dict[str, type[NoDelay]] = {"none": NoDelay, "exponential": Exponential, "fixed": Fixed, "trace": Trace}
