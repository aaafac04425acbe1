"""A user's own algorithm: AREA with failing clients."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Faulty(Area):
    """Client 1, or each, fails from its round 3 on, unless there is a file `peace`; it leaves a file `trouble`."""

    trouble: str = ""
    """raises; hangs: never returns; computes: likewise, in native code; dies: its rank is killed"""
    times: int = 1
    """in how many rounds"""
    all: bool = False
    """each client"""

    def init_client(self, x0: Vector, i: int) -> State:
        state = super().init_client(x0, i)
        state.i = i
        return state

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if (self.all or client.i == 1) and 3 <= message.round < 3 + self.times and not Path("peace").exists():
            Path("trouble").touch()
            if self.trouble == "raises":
                raise RuntimeError("trouble")
            if self.trouble == "computes":
                hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
            while self.trouble == "hangs":
                time.sleep(0.01)
            if self.trouble == "dies":
                os.kill(os.getpid(), 9)
        return super().train(client, message, objective)
