"""The clients' side of checkpoints: a rank writes snapshots of its clients, and restores clients that it is to host."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpifl.algorithms.base import Update
from mpifl.checkpoint.part import PartWriter, Written
from mpifl.checkpoint.sets import open_set
from mpifl.client.worker import Worker
from mpifl.errors import ConfigError
from mpifl.transport.client_end import CheckpointEvents, ClientError


@dataclass(frozen=True)
class ResumePayload:
    """Which checkpoint has the snapshots of clients: sent to the ranks that are to host these, as JSON."""

    folder: str  # absolute path of the folder of the checkpoints
    number: int
    client_rank: list[tuple[int, int]]  # client, and the rank whose part has it
    in_flight: list[int]  # clients whose last update the server has not consumed

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> ResumePayload:
        """Inverse of `to_dict`."""
        return cls(**{**saved, "client_rank": [(i, rank) for i, rank in saved["client_rank"]]})


class ClientCheckpointer:
    """Writes the parts of one rank: its clients at a marker between two messages."""

    def __init__(self, folder: Path, rank: int, worker: Worker) -> None:
        self._part, self._worker = PartWriter(folder, rank), worker
        self._open = 0  # parts that are not durable yet

    def save(self, number: int) -> None:
        """Writes the part of checkpoint `number`; `done` reports when it is durable, or why it is not."""
        self._part.save(number, self._worker.snapshots)
        self._open += 1

    def done(self) -> list[Written]:
        """Parts that have become durable, or failed; never waits."""
        written = self._part.done() if self._open else []
        self._open -= len(written)
        return written

    def close(self) -> None:
        self._part.close()


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
            expected = f"one with the update of client {i}, which was in flight"
            raise ConfigError("checkpoint", Path(payload.folder, str(payload.number)), expected)


def attach_checkpoints(
    transport: CheckpointEvents, worker: Worker, folder: Path, rank: int
) -> ClientCheckpointer:  # fmt: skip
    """Makes a transport save its rank's clients at every marker that it receives."""
    checkpointer = ClientCheckpointer(folder, rank, worker)

    def report() -> None:
        for written in checkpointer.done():
            transport.send_part_status(written.number, written.bytes, written.crc, written.error)

    transport.on_marker, transport.on_poll, transport.on_stop = checkpointer.save, report, checkpointer.close
    return checkpointer
