"""The client table: what the server knows of each client. `ServerLoop` owns and changes it; others read it."""

from __future__ import annotations

import numpy as np

from mpifl.storage.checkpoint import ClientTableState

LIVE, LOST, ASIDE = "live", "lost", "aside"  # states of a client; aside: its updates were refused too often


class ClientTable:
    """Columns with an item for each of n clients, and the sets that change with every message."""

    __slots__ = (
        "accuracies", "bytes_down", "in_flight", "inactive", "moved", "n", "refused", "rounds", "state", "waiting",
    )  # fmt: skip

    def __init__(self, n: int, personal: bool = False) -> None:
        """personal: whether clients report the accuracy of their own models."""
        self.n = n
        self.state = [LIVE] * n
        self.rounds = [0] * n  # messages sent
        self.bytes_down = [0] * n  # of the last message
        self.refused = [0] * n  # updates refused in a row
        self.moved = [0] * n  # moves to another rank in a row, without an update consumed between them
        # Clients whose update is not consumed yet -> when (perf_counter) their silence starts to count.
        self.in_flight: dict[int, float] = {}
        self.waiting: list[int] = []  # clients to be answered at the next aggregation
        self.inactive: set[int] = set()  # clients that are not live
        self.accuracies = np.full(n, np.nan) if personal else None  # (n,) as last reported

    def deactivate(self, i: int, state: str) -> bool:
        """Takes client i out of the run as `state`; returns whether its update was in flight."""
        self.inactive.add(i)
        self.state[i] = state
        if i in self.waiting:
            self.waiting.remove(i)
        return self.in_flight.pop(i, None) is not None

    def save(self, now: float) -> ClientTableState:
        """now: perf_counter."""
        return ClientTableState(
            list(self.state), list(self.rounds), list(self.bytes_down), list(self.refused), list(self.moved),
            list(self.in_flight), [max(0.0, start - now) for start in self.in_flight.values()], list(self.waiting),
            None if self.accuracies is None else self.accuracies.tolist(),
        )  # fmt: skip

    def load(self, saved: ClientTableState, now: float) -> None:
        """now: perf_counter."""
        self.state, self.rounds, self.bytes_down = list(saved.state), list(saved.rounds), list(saved.bytes_down)
        self.refused, self.moved, self.waiting = list(saved.refused), list(saved.moved), list(saved.waiting)
        self.in_flight = {i: now + left for i, left in zip(saved.in_flight, saved.grace, strict=True)}
        self.inactive = {i for i, state in enumerate(self.state) if state != LIVE}
        self.accuracies = None if saved.accuracies is None else np.array(saved.accuracies, float)
