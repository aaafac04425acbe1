"""The client table: what the server knows of each client. `ServerLoop` owns and changes it; others read it."""

from __future__ import annotations

from math import isnan, nan

import numpy as np

from mpifl.checkpoint.snapshot import ClientTableState

LIVE, LOST, ASIDE = "live", "lost", "aside"  # states of a client; aside: its updates were refused too often


class ClientTable:
    """Columns with an item for each of n clients, and the sets that change with every message."""

    def __init__(self, n: int, personal: bool = False) -> None:
        """personal: whether clients report the accuracy of their own models."""
        self.n = n
        self.state = [LIVE] * n
        self.rounds = [0] * n  # messages sent
        self.bytes_down = [0] * n  # size of the last message
        # (n,) perf_counter from which a client counts as silent: its message's time plus its delay; nan: none in flight
        self.in_flight = np.full(n, nan)
        self.refused = [0] * n  # updates refused in a row
        self.moved = [0] * n  # moves to another rank since its last update was consumed
        self.waiting: list[int] = []  # clients to be answered at the next aggregation
        self.inactive: set[int] = set()  # clients that are not live
        self.accuracies = np.full(n, np.nan) if personal else None  # (n,) as last reported

    def deactivate(self, i: int, state: str) -> bool:
        """Takes client i out of the run as `state`; returns whether its update was in flight."""
        self.inactive.add(i)
        self.state[i] = state
        if i in self.waiting:
            self.waiting.remove(i)
        return self.take_in_flight(i)

    def take_in_flight(self, i: int) -> bool:
        """Stops expecting an update of client i; returns whether one was in flight."""
        since, self.in_flight[i] = self.in_flight[i], nan
        return not isnan(since)

    def in_flight_times(self) -> list[tuple[int, float]]:
        """The clients whose updates are in flight, and since when (perf_counter) their silence counts."""
        flying = np.flatnonzero(~np.isnan(self.in_flight))
        return list(zip(flying.tolist(), self.in_flight[flying].tolist(), strict=True))

    def save(self, now: float) -> ClientTableState:
        """now: perf_counter."""
        flights = self.in_flight_times()
        return ClientTableState(
            state=list(self.state), rounds=list(self.rounds), bytes_down=list(self.bytes_down),
            refused=list(self.refused), moved=list(self.moved), in_flight=[i for i, _ in flights],
            grace=[max(0.0, since - now) for _, since in flights], waiting=list(self.waiting),
            accuracies=None if self.accuracies is None else self.accuracies.tolist(),
        )  # fmt: skip

    def load(self, saved: ClientTableState, now: float) -> None:
        """now: perf_counter."""
        self.state = list(saved.state)
        self.rounds, self.bytes_down = list(saved.rounds), list(saved.bytes_down)
        self.in_flight[:] = nan
        self.refused, self.moved = list(saved.refused), list(saved.moved)
        self.waiting = list(saved.waiting)
        for i, left in zip(saved.in_flight, saved.grace, strict=True):
            self.in_flight[i] = now + left
        self.inactive = {i for i, state in enumerate(self.state) if state != LIVE}
        self.accuracies = None if saved.accuracies is None else np.array(saved.accuracies, float)
