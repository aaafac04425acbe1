"""A user's own algorithm that fails in one rule: AREA, with the rule's name in `at`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Failing(Area):
    """Client 1 fails in its round 3, the server after 20 events."""

    at: str = ""
    """the rule that raises, or how the update is wrong"""

    def _raise(self, rule: str, when: bool = True) -> None:
        if when and self.at == rule:
            raise RuntimeError(f"the rule {rule} broke")

    def init_client(self, x0: Vector, i: int) -> State:
        if self.at == "leaves":
            raise SystemExit(7)
        self._raise("init_client", i == 1)
        state = super().init_client(x0, i)
        state.i = i
        return state

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        if client.i != 1 or message.round < 3 or (message.round > 3 and self.at != "always-nan"):
            return update
        self._raise("train")
        if self.at == "interrupts":
            raise KeyboardInterrupt
        (m,) = update.vectors
        wrong = {
            "longer": (np.append(m, m[:1]),),
            "shorter": (m[:-1],),
            "wider": (m.astype(np.float64),),
            "two": (m, m),
            "nan": (m * np.float32("nan"),),
            "always-nan": (m * np.float32("nan"),),
            "infinite": (np.where(np.arange(m.size) == 7, np.float32("inf"), m),),
            "large": (m + np.float32(1e7),),
            "none": (),
            "list": ([*map(float, m)],),
        }
        steps = 2**70 if self.at == "many-steps" else update.local_steps
        return update._replace(vectors=wrong.get(self.at, update.vectors), local_steps=steps)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        self._raise("init_server")
        return super().init_server(x0, clients)

    def message(self, server: State, i: int) -> Message:
        self._raise("message", server.k > 20)
        return super().message(server, i)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        self._raise("receive", server.k > 20)
        super().receive(server, i, update, staleness)

    def aggregate(self, server: State) -> None:
        self._raise("aggregate", server.k > 20)
        super().aggregate(server)

    def model(self, server: State) -> Vector:
        self._raise("model", server.k > 20)
        return super().model(server)


@dataclass(frozen=True)
class Silent(Area):
    """AREA whose clients send no vector at every other contact."""

    min_vectors_up = 0

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return super().train(client, message, objective) if message.round % 2 else Update((), 0)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        if update.vectors:
            super().receive(server, i, update, staleness)
