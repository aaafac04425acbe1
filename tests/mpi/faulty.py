"""A user's own algorithms: AREA whose clients give trouble, and methods that interrupt themselves."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from mpifl.algorithms.apfl import APFL
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, Objective, State, Update, Vector
from mpifl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Faulty(Area):
    """Client 1 gives trouble from its round 3 on."""

    trouble: str = ""
    """raises; hangs: never returns; dies: its rank is killed; unless there is a file `peace`"""
    times: int = 1
    """in how many rounds"""

    def init_client(self, x0: Vector, i: int) -> State:
        state = super().init_client(x0, i)
        state.i = i
        return state

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if client.i == 1 and 3 <= message.round < 3 + self.times and not Path("peace").exists():
            Path("trouble").touch()
            if self.trouble == "raises":
                raise RuntimeError("trouble")
            while self.trouble == "hangs":
                time.sleep(0.01)
            if self.trouble == "dies":
                os.kill(os.getpid(), 9)
        return super().train(client, message, objective)


def interrupt(server: State, at: int) -> None:
    """A signal at the aggregation of that number, once a run: the count is saved with the server."""
    server.aggregations = getattr(server, "aggregations", 0) + 1
    if server.aggregations == at:
        os.kill(os.getpid(), signal.SIGUSR1)


@dataclass(frozen=True)
class InterruptedFedAvg(FedAvg):
    """FedAvg whose server sends itself a signal."""

    at: int = 0
    """after so many aggregations; 0: never"""

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        interrupt(server, self.at)


@dataclass(frozen=True)
class InterruptedAPFL(APFL):
    """APFL whose server sends itself a signal."""

    at: int = 0
    """after so many aggregations; 0: never"""

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        interrupt(server, self.at)
