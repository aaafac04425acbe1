"""A user's own algorithms: AREA with failing clients, FedAvg with threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Faulty(Area):
    """A client, or each, fails from its round 3 on, unless there is a file `peace`; it leaves a file `trouble`."""

    trouble: str = ""
    """raises; hangs: never returns; computes: likewise, in native code; dies: its rank is killed;
    exits, succeeds, exits in C: its rank exits with status 7, 0 or 1; server exits: rank 0, with status 5"""
    times: int = 1
    """in how many rounds"""
    all: bool = False
    """each client"""
    client: int = 1
    """which one fails, if not all do"""

    def init_client(self, x0: Vector, i: int) -> State:
        state = super().init_client(x0, i)
        state.i = i
        return state

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if (self.all or client.i == self.client) and 3 <= message.round < 3 + self.times and not Path("peace").exists():
            Path("trouble").touch()
            if self.trouble == "raises":
                raise RuntimeError("trouble")
            if self.trouble == "computes":
                hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
            while self.trouble == "hangs":
                time.sleep(0.01)
            if self.trouble == "dies":
                os.kill(os.getpid(), 9)
            if self.trouble in ("exits", "succeeds"):
                os._exit(7 if self.trouble == "exits" else 0)
            if self.trouble == "exits in C":
                ctypes.CDLL(None).exit(1)
        return super().train(client, message, objective)

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        if self.trouble == "server exits":
            os._exit(5)


@dataclass(frozen=True)
class Lingering(FedAvg):
    """Rank 0 and the ranks of clients start threads that outlive the run and are no daemons."""

    pool: bool = False
    """a thread of a pool"""

    def _linger(self) -> None:
        if self.pool:
            ThreadPoolExecutor(1).submit(time.sleep, 1000)
        else:
            threading.Thread(target=time.sleep, args=(1000,)).start()

    def init_server(self, x0: Vector, clients: Clients) -> State:
        self._linger()
        return super().init_server(x0, clients)

    def init_client(self, x0: Vector, i: int) -> State:
        if i == 1:
            self._linger()
        return super().init_client(x0, i)
