"""When a checkpoint is complete and when it is abandoned, for everything that can happen to the ranks it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import State
from mpifl.checkpoint.part import PartWriter
from mpifl.checkpoint.snapshot import ClientSnapshot, ClockState, LoopState, ScheduleState
from mpifl.config.job import Faults
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.client_table import ClientTable
from mpifl.transport.client_end import PartStatus
from mpifl.transport.mpi_server import MPIServerTransport
from tests.checkpoint.sets import finished
from tests.runfile.test_writer import writer


class Ranks:
    """Ranks 1 and 2 with one client each, which save their parts when they are asked to."""

    def __init__(self, folder: Path) -> None:
        self.live_ranks, self.unresponsive_ranks, self.rank_of = {1, 2}, set[int](), [1, 2]
        self.part_statuses: list[PartStatus] = []
        self.errors: set[int] = set()
        self._writers = {rank: PartWriter(folder, rank) for rank in (1, 2)}

    def saves(self, rank: int, number: int = 1) -> None:
        self._writers[rank].save(number, lambda: {rank - 1: ClientSnapshot({"x": np.zeros(3)})})
        self.part_statuses += [PartStatus(rank, *written) for written in finished(self._writers[rank])]

    def send_marker(self, number: int) -> None: ...

    def poll(self) -> None: ...

    def unreported_client_errors(self) -> set[int]:
        return self.errors

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        return []

    def close(self) -> None:
        for part in self._writers.values():
            part.close()


class Scene:
    """A server that has begun checkpoint 1 before either client has answered."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.writer, self.ranks = writer(path), Ranks(folder_of(path))
        evaluator: Any = SimpleNamespace(pending=lambda: (0, nan, None, []), reached=False, rows_per_evaluation=dict)
        schedule = ScheduleState(ClockState(0.0, [], [], [], [], []), 0, 0, 0, 0, 0, 0.0, 0, 0, 0)
        plan: Any = SimpleNamespace(save=lambda: schedule)
        self.clients = ClientTable(2)
        for i in range(2):
            self.clients.rounds[i], self.clients.in_flight[i] = 1, 0.0
        self.loop: Any = SimpleNamespace(
            server=State(x=np.zeros(3)), clients=self.clients, failures=SimpleNamespace(faults=faults), updates=0,
            version=0, save=lambda: LoopState(0, 0, self.clients.save(0.0)),
        )  # fmt: skip
        self.loop.transport, self.loop.algorithm = self.ranks, Area(step_size=0.1)
        self.keeper = Checkpointer(self.loop, plan, self.writer, evaluator, float, rehost=False)
        self.keeper.begin(0.0)

    def end(self) -> list[str]:
        """The result of the checkpoint, once everything that was due has arrived."""
        deadline = time.monotonic() + 20
        while self.keeper.busy and time.monotonic() < deadline:
            self.keeper.poll(0.0)
            time.sleep(0.001)
        self.keeper.close()
        self.ranks.close()
        self.writer.close("failed")
        with open_run(self.writer.path) as run:
            return [f"{row.kind}: {row.text}" for row in run.events.itertuples()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    yield lambda **faults: Scene(tmp_path / "run.h5", Faults(**faults))


GIVEN_UP = "checkpoint-failed: checkpoint 1 could not be completed: "


def complete(made: Scene) -> bool:
    (told,) = made.end()
    return told.startswith("checkpoint: 1: 3 parts") and sets(folder_of(made.writer.path)) == [1]


def test_a_rank_that_lives_saves_though_its_client_is_set_aside(scene: Callable[..., Scene]) -> None:
    made = scene()
    made.ranks.saves(1)
    made.loop.clients.inactive.add(1)
    made.keeper.poll(0.0)
    assert made.keeper.busy
    made.ranks.saves(2)
    assert complete(made)


def test_a_rank_that_died(scene: Callable[..., Scene]) -> None:
    made = scene()
    made.ranks.saves(1)
    made.ranks.live_ranks.discard(2)
    assert made.end() == [f"{GIVEN_UP}rank 2 was lost"]


def test_a_server_part_that_could_not_be_written(scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(made.keeper, "_commit", full)
    made.ranks.saves(1)
    made.ranks.saves(2)
    assert made.end() == [f"{GIVEN_UP}[Errno 28] No space left on device"]
    assert sets(folder_of(made.writer.path)) == []
    assert made.keeper.complete == 0


def test_a_rank_that_died_when_it_had_saved(scene: Callable[..., Scene]) -> None:
    made = scene()
    made.ranks.saves(2)
    made.keeper.poll(0.0)
    made.ranks.live_ranks.discard(2)
    made.loop.clients.inactive.add(1)
    made.ranks.saves(1)
    assert complete(made)


def test_a_rank_that_hangs(scene: Callable[..., Scene]) -> None:
    """All clients of the rank have been abandoned; a rank with other clients may still answer."""
    made = scene()
    made.ranks.saves(1)
    made.ranks.unresponsive_ranks.add(2)
    made.keeper.poll(0.0)
    assert made.keeper.busy
    made.loop.clients.inactive.add(1)
    assert made.end() == [f"{GIVEN_UP}rank 2 was lost"]


@pytest.mark.parametrize("later", [True, False], ids=["after its part", "before"])
def test_a_client_that_raised_where_that_ends_the_run(scene: Callable[..., Scene], later: bool) -> None:
    """A checkpoint that contains the error would fail again; an error of a later message is not in it."""
    made = scene(lost="stop")
    made.ranks.errors.add(1)
    if later:
        made.loop.clients.rounds[1] = 2
    made.ranks.saves(1)
    made.ranks.saves(2)
    assert complete(made) if later else made.end() == [f"{GIVEN_UP}client 1 raised"]


def test_a_client_that_raised_where_the_run_goes_on(scene: Callable[..., Scene]) -> None:
    made = scene()
    made.ranks.errors.add(1)
    made.ranks.saves(1)
    made.ranks.saves(2)
    assert complete(made)


def test_a_client_of_a_dead_rank_has_not_raised() -> None:
    """What its rank has saved contains no error."""
    failed = {"_errors": {0: "", 1: ""}, "client_failures": [(2, ""), (3, "")]}
    end: Any = SimpleNamespace(**failed, rank_of=[1, 2, 1, 2], live_ranks={1})
    assert MPIServerTransport.unreported_client_errors(end) == {0, 2}
