"""AREA's conservation law, checked from outside.

x_s + u/n = (1/n) sum_i y_i, minus what is in flight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import State, Update
from mpifl.checkpoint.sets import newest
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.reader import open_run
from tests.mpi.conftest import mpifl


class Spy:
    """The server's state, and the y_i that each consumed update was made of, in whatever this process runs."""

    def __init__(self) -> None:
        self.server = State()
        self.consumed: dict[int, np.ndarray] = {}  # client -> y_i of its last update that the server has
        self._made: dict[tuple[int, int], np.ndarray] = {}  # (client, round) -> y_i after it

    @property
    def gap(self) -> float:
        """The largest entry of |x_s + u/n - (1/n) sum_i y_i|."""
        n = self.server.n
        y = sum(self.consumed[i] for i in range(n)) / n
        return float(np.abs(self.server.x + self.server.u / n - y).max())


def replayed(path: Path) -> Spy:
    """What a replay of an AREA run in this process, NAME-replay.h5 beside NAME.h5, ends with."""
    spy = Spy()
    init_server, init_client = Area.init_server, Area.init_client
    train, receive = Area.train, Area.receive

    def watched_server(self: Area, *args: Any) -> State:
        spy.server = init_server(self, *args)
        return spy.server

    def watched_client(self: Area, x0: np.ndarray, i: int) -> State:
        spy.consumed[i] = x0
        client = init_client(self, x0, i)
        client.i = i
        return client

    def watched_train(self: Area, client: State, message: Any, objective: Any) -> Update:
        update = train(self, client, message, objective)
        spy._made[client.i, message.round] = client.y
        return update

    def watched_receive(self: Area, server: State, i: int, update: Update, staleness: int) -> None:
        receive(self, server, i, update, staleness)
        spy.consumed[i] = spy._made.pop((i, update.round))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Area, "init_server", watched_server)
        patch.setattr(Area, "init_client", watched_client)
        patch.setattr(Area, "train", watched_train)
        patch.setattr(Area, "receive", watched_receive)
        assert mpifl("replay", path) == 0
    return spy


def gap_at_checkpoint(path: Path) -> float:
    """The largest entry of |x_s + u/n - (1/n) sum_i y_i + (1/n) sum of updates under way| in a run's last checkpoint.

    Every client must be hosted: of a lost one no rank saves anything.
    """
    with open_run(path) as run:
        checkpoint, passed = newest(folder_of(path), run.id)
    assert checkpoint and not passed
    snapshot = checkpoint.server()
    server, in_flight = snapshot.algorithm, snapshot.loop.clients.in_flight
    x, u, n = server["x"], server["u"], int(server["n"])
    parts = {rank: checkpoint.clients(rank) for rank in checkpoint.ranks if rank}
    total = np.zeros_like(x)
    for i, rank in enumerate(snapshot.client_rank):
        client = parts[rank][i]
        assert client.state
        total += client.state["y"]
        if i in in_flight:
            assert client.update
            total -= client.update.vectors[0]
    return float(np.abs(x + u / n - total / n).max())
