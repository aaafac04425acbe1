"""When a checkpoint is complete and when it is abandoned, for everything that can happen to the ranks it waits for."""

from __future__ import annotations

import time
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
        self.writers = {rank: PartWriter(folder, rank) for rank in (1, 2)}

    def send_marker(self, number: int) -> None: ...

    def poll(self) -> None: ...

    def unreported_client_errors(self) -> set[int]:
        return self.errors

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        return []


class Scene:
    """A server that has begun checkpoint 1 before either client has answered."""

    def __init__(self, path: Path, lost: str) -> None:
        self.writer, self.ranks = writer(path), Ranks(folder_of(path))
        evaluator: Any = SimpleNamespace(pending=lambda: (0, nan, None, []), reached=False, rows_per_evaluation=dict)
        schedule = ScheduleState(ClockState(0.0, [], [], [], [], []), 0, 0, 0, 0, 0, 0.0, 0, 0, 0)
        plan: Any = SimpleNamespace(save=lambda: schedule)
        self.clients = ClientTable(2)
        for i in range(2):
            self.clients.rounds[i], self.clients.in_flight[i] = 1, 0.0
        loop: Any = SimpleNamespace(
            server=State(x=np.zeros(3)), clients=self.clients, failures=SimpleNamespace(faults=Faults(lost=lost)),
            updates=0, version=0, save=lambda: LoopState(0, 0, self.clients.save(0.0)), transport=self.ranks,
            algorithm=Area(step_size=0.1),
        )  # fmt: skip
        self.keeper = Checkpointer(loop, plan, self.writer, evaluator, float, rehost=False)
        self.keeper.begin(0.0)

    def saves(self, rank: int) -> None:
        """The rank's part is durable, and the server knows."""
        part = self.ranks.writers[rank]
        part.save(1, lambda: {rank - 1: ClientSnapshot({"x": np.zeros(3)})})
        self.ranks.part_statuses += [PartStatus(rank, *written) for written in finished(part)]
        self.keeper.poll(0.0)

    def dies(self, rank: int) -> None:
        self.ranks.live_ranks.discard(rank)

    def hangs(self, rank: int) -> None:
        self.ranks.unresponsive_ranks.add(rank)

    def sets_aside(self, client: int) -> None:
        self.clients.inactive.add(client)

    def raises(self, client: int) -> None:
        self.ranks.errors.add(client)

    def answers(self, client: int) -> None:
        """The server has consumed the client's update and sent it another message."""
        self.clients.rounds[client] += 1

    def is_busy(self, _: int) -> None:
        self.keeper.poll(0.0)
        assert self.keeper.busy

    def disk_is_full(self, _: int) -> None:
        def full(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        self.keeper._commit = full  # type: ignore[method-assign]

    def end(self) -> list[str]:
        """The result of the checkpoint, once everything that was due has arrived."""
        deadline = time.monotonic() + 20
        while self.keeper.busy and time.monotonic() < deadline:
            self.keeper.poll(0.0)
            time.sleep(0.001)
        for part in (self.keeper, *self.ranks.writers.values()):
            part.close()
        self.writer.close("failed")
        with open_run(self.writer.path) as run:
            return [f"{row.kind}: {row.text}" for row in run.events.itertuples()]


STORY: dict[str, tuple[str, str]] = {  # what happens to ranks 1 and 2, or clients 0 and 1; why there is no checkpoint
    "a rank that lives saves though its client is set aside": ("saves 1, sets_aside 1, is_busy 0, saves 2", ""),
    "a rank that died when it had saved": ("saves 2, dies 2, sets_aside 1, saves 1", ""),
    "a rank that died": ("saves 1, dies 2", "rank 2 was lost"),
    "a rank that hangs, with clients that may answer": ("saves 1, hangs 2, is_busy 0, saves 2", ""),
    "a rank that hangs": ("saves 1, hangs 2, is_busy 0, sets_aside 1", "rank 2 was lost"),
    "a client that raised where the run goes on": ("raises 1, saves 1, saves 2", ""),
    "the server's part": ("disk_is_full 0, saves 1, saves 2", "[Errno 28] No space left on device"),
    # Where an error ends the run, a checkpoint that contains it would fail again.
    "stop: a client that raised": ("raises 1, saves 1, saves 2", "client 1 raised"),
    "stop: a client that raised after its part": ("raises 1, answers 1, saves 1, saves 2", ""),
}


@pytest.mark.parametrize("case", STORY)
def test_a_checkpoint_is_complete_or_says_why_not(case: str, tmp_path: Path) -> None:
    steps, failure = STORY[case]
    made = Scene(tmp_path / "run.h5", "stop" if case.startswith("stop") else "freeze")
    for step in steps.split(", "):
        name, number = step.split()
        getattr(made, name)(int(number))
    (told,) = made.end()
    given_up = f"checkpoint-failed: checkpoint 1 could not be completed: {failure}"
    assert told == given_up if failure else told.startswith("checkpoint: 1: 3 parts")
    assert sets(folder_of(made.writer.path)) == ([] if failure else [1]) and made.keeper.complete == (not failure)


def test_a_client_of_a_dead_rank_has_not_raised() -> None:
    """What its rank has saved contains no error."""
    failed = {"_errors": {0: "", 1: ""}, "client_failures": [(2, ""), (3, "")]}
    end: Any = SimpleNamespace(**failed, rank_of=[1, 2, 1, 2], live_ranks={1})
    assert MPIServerTransport.unreported_client_errors(end) == {0, 2}
