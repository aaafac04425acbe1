"""Server and client rules without a loop: tests say themselves who is sent what, who answers, and who is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update


class World:
    """A server and its clients; `ways` has each client's update that is under way."""

    def __init__(
        self, algorithm: Algorithm, objectives: Sequence[Any], x0: np.ndarray, samples: Sequence[int] | None = None
    ) -> None:
        self.algorithm, self.objectives = algorithm, objectives
        self.clients = Clients(np.array(samples or [o.samples for o in objectives]), seed=3)
        self.server = algorithm.init_server(x0, self.clients)
        self.states = {i: algorithm.init_client(x0, i) for i in range(len(objectives))}
        self.told = dict.fromkeys(self.states, 0)  # messages that each was sent
        self.version = 0
        self.ways: dict[int, Update] = {}
        self.seen = dict(self.states)  # the client's state of the last update of each that the server took in
        self._after: dict[int, State] = {}

    def message(self, i: int) -> Message:
        """The next message to client i."""
        sent = self.algorithm.message(self.server, i)._replace(version=self.version, round=self.told[i])
        self.told[i] += 1
        return sent

    def contact(self, i: int) -> Update:
        """Client i is sent a message and answers it; its answer is under way."""
        update = self.algorithm.train(self.states[i], self.message(i), self.objectives[i])
        self.ways[i], self._after[i] = update._replace(compute=0.1, exchange=0.1), snapshot(self.states[i])
        return update

    def take(self, i: int) -> Update:
        """The server takes in client i's answer."""
        update = self.ways.pop(i)
        self.algorithm.receive(self.server, i, update, 0)
        self.seen[i] = self._after[i]
        return update

    def aggregate(self) -> None:
        self.algorithm.aggregate(self.server)
        self.version += 1

    def round(self, members: Iterable[int], lost: int | None = None, after: int = 0) -> None:
        """A synchronous round; of a member that is lost, the server learns after so many of the others' answers."""
        members = list(members)
        unique = list(dict.fromkeys(members))
        self.algorithm.begin_round(self.server, members)
        for i in unique:
            self.contact(i)
        others = [i for i in unique if i != lost]
        for k, i in enumerate([*others, None]):
            if k == after and lost is not None:
                self.algorithm.on_client_lost(self.server, lost)
                del self.ways[lost]
            if i is not None:
                self.take(i)
        self.aggregate()


def snapshot(state: State) -> State:
    """The state as it is now: client rules change no vector in place."""
    return State(**vars(state))
