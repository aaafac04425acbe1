"""Polled rounds: the server asks a cohort at given times, and each member sends what it has computed by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor, inf
from typing import Literal

from mpifl.algorithms.base import State, Update
from mpifl.algorithms.common.rounds import SampledRounds, Sampling
from mpifl.config.types import PositiveFloat, PositiveInt
from mpifl.objective import Vector


@dataclass(frozen=True)
class PolledRounds(SampledRounds):
    """Base of algorithms that poll a cohort every `period` seconds; `local_steps` is the most of a contact (K).

    A client's steps count from when its last answer arrived, from 0 s at first. A poll falls at the first multiple of
    the period after the answers to the one before. The server state has `steps`, {i: E_i} of the clients' last polls;
    `size`, the members of the round that have not been lost; and `answered`, with a key for each member that has.
    """

    weights: Literal["uniform"] = field(default="uniform", init=False)
    sampling: Sampling = field(default="uniform", init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)

    period: PositiveFloat = 1.0
    """time from one poll to the next (s of the run's clock)"""

    polls = True

    def init_polls(self, x0: Vector, n: int) -> State:
        """The server's state before the first poll."""
        return State(
            x=x0.copy(), sum=0 * x0, size=n, due=self.period, since=dict.fromkeys(range(n), 0.0),
            steps=dict.fromkeys(range(n), self.local_steps), answered={},
        )  # fmt: skip

    def alarm(self, server: State) -> float:
        """The time of the next poll (s); infinity while answers are to come."""
        return float(server.due)

    def begin_round(self, server: State, members: list[int]) -> None:
        server.size, server.due, server.answered = len(members), inf, {}

    def on_poll(self, server: State, members: list[int], taken: Callable[[int, float, int], int]) -> None:
        for i in members:
            server.steps[i] = taken(i, server.since[i], self.local_steps)

    def end_round(self, server: State, time: float) -> None:
        k = floor(time / self.period) + 1
        server.due = (k if k * self.period > time else k + 1) * self.period  # the quotient is rounded

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.since[i], server.answered[i] = update.time, True

    def aggregate(self, server: State) -> None:
        """x <- (x + the sum of the answers)/(s + 1)"""
        server.x, server.sum = (server.x + server.sum) / (server.size + 1), 0 * server.sum

    def on_client_lost(self, server: State, i: int) -> None:
        server.size -= 1
