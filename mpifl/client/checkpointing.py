"""The clients' side of checkpoints: a rank writes snapshots of its clients, and restores clients that it is to host."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mpifl.algorithms.base import Update
from mpifl.checkpoint.part import PartWriter
from mpifl.checkpoint.sets import open_set
from mpifl.client.worker import Worker
from mpifl.errors import ConfigError
from mpifl.transport.client_end import ClientError, ClientTransport


class ResumePayload(NamedTuple):
    """Which checkpoint has the snapshots of clients: sent to the ranks that are to host these, as JSON."""

    folder: str  # absolute path of the folder of the checkpoints
    number: int
    client_rank: list[tuple[int, int]]  # client, and the rank whose part has it
    in_flight: list[int]  # clients whose last update the server has not consumed


def restore(
    worker: Worker, payload: ResumePayload, clients: Iterable[int]
) -> dict[int, tuple[Update | None, float]]:  # fmt: skip
    """Restores clients from their snapshots; returns their last updates, and how long those are still held back (s).

    Raises ConfigError where the checkpoint cannot be read.
    """
    checkpoint = open_set(Path(payload.folder), payload.number)
    rank_of, by_rank = dict(payload.client_rank), dict[int, list[int]]()
    for i in clients:
        by_rank.setdefault(rank_of[i], []).append(i)
    return {
        i: worker.restore(i, snapshot)
        for rank, members in by_rank.items()
        for i, snapshot in checkpoint.clients(rank, members).items()
    }


def resume(worker: Worker, payload: ResumePayload) -> None:
    """Restores a worker's clients, and sends the updates that were in flight again. Raises ConfigError."""
    known = dict(payload.client_rank)
    hosted = [i for i in worker.objectives if i in known]
    restored = restore(worker, payload, hosted)
    now = time.perf_counter()
    for i in sorted(set(payload.in_flight).intersection(hosted)):
        update, hold = restored.get(i, (None, 0.0))
        if i in worker.failed_clients:
            worker.answer(i, ClientError(worker.failed_clients[i]), 0.0)
        elif update:
            worker.answer(i, update, now + hold)
        else:  # the server would wait for it without end
            wrong = f"the update of client {i}, which was in flight, is missing"
            raise ConfigError("checkpoint", Path(payload.folder, str(payload.number)), wrong, "a complete checkpoint")


def attach_checkpoints(transport: ClientTransport, worker: Worker, folder: Path, rank: int) -> None:
    """Makes a transport write its rank's part of a checkpoint at every marker that it receives."""
    part = PartWriter(folder, rank)

    def report() -> None:
        for status in part.done():
            transport.send_part_status(status)

    transport.on_marker = lambda number: part.save(number, worker.snapshots)
    transport.on_progress, transport.on_stop = report, part.close
