"""A user's own algorithms: AREA that fails, or whose clients send nothing at times, and FedAvg with threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector
from mpifl.transport.mpi_client import MPIClientTransport


@dataclass(frozen=True)
class Failing(Area):
    """A client, or each, fails in its round 3, unless there is a file `peace`; the server after 20 events."""

    at: str = ""
    """the rule that raises, how the update is wrong, or what the client's rank does: hangs, also as computes in native
    code; dies, is killed; exits, succeeds, exits in C, with status 7, 0 or 1; server exits: rank 0, with status 5;
    server hangs: rank 0, after its first aggregation"""
    all: bool = False
    """each client"""
    client: int = 1
    """which one fails, if not all do"""

    def _raise(self, rule: str, when: bool = True) -> None:
        if when and self.at == rule:
            raise RuntimeError(f"the rule {rule} broke")

    def _end_rank(self) -> None:
        if self.at in ("hangs", "computes"):
            Path("trouble").touch()
        if self.at == "computes":
            hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
        while self.at == "hangs":
            time.sleep(0.01)
        if self.at == "dies":
            os.kill(os.getpid(), 9)
        if self.at in ("exits", "succeeds"):
            os._exit(7 if self.at == "exits" else 0)
        if self.at == "exits in C":
            ctypes.CDLL(None).exit(1)

    def participation(self, clients: Clients, seed: int) -> Any:
        if self.at == "participation":
            raise ConfigError("algorithm.at", self.at, "is too much for these clients", "another rule")
        return super().participation(clients, seed)

    def init_client(self, x0: Vector, i: int) -> State:
        if self.at == "leaves":
            raise SystemExit(7)
        self._raise("init_client", i == 1)
        state = super().init_client(x0, i)
        state.i = i
        return state

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        fails = (self.all or client.i == self.client) and not Path("peace").exists()
        if not fails or message.round != 3:
            return update
        if self.at == "dies in its report":  # after the frame that announces the text, before the text
            MPIClientTransport._send_text = lambda self, text: os.kill(os.getpid(), 9)  # type: ignore[method-assign]
            raise RuntimeError
        self._raise("train")
        self._end_rank()
        (m,) = update.vectors
        wrong = {
            "longer": (np.append(m, m[:1]),),
            "shorter": (m[:-1],),
            "wider": (m.astype(np.float64),),
            "two": (m, m),
            "nan": (m * np.float32("nan"),),
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
        if self.at == "server exits":
            os._exit(5)
        if self.at == "server hangs":
            Path("trouble").touch()
            time.sleep(600)

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


@dataclass(frozen=True)
class Keeping(FedBuff):
    """The server keeps the last update of each client, and steps along their mean, half of which stays in each."""

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(**vars(super().init_server(x0, clients)), last={})

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (server.last[i],) = update.vectors

    def aggregate(self, server: State) -> None:
        server.x = server.x - sum(server.last.values()) / len(server.last)
        for v in server.last.values():
            v *= 0.5


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
