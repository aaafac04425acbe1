"""The clients' side of checkpoints: a rank writes its part, and reads the states of clients that it is to host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mpifl.algorithms.base import Update
from mpifl.client.worker import Worker
from mpifl.storage.checkpoint_set import Part, Written, open_set


class Saver:
    """Writes the parts of one rank: what its clients hold, at a mark between two jobs."""

    def __init__(self, folder: Path, rank: int, worker: Worker, holding: Callable[[], Mapping[int, float]]) -> None:
        """holding: how long updates are held back still (s), by client."""
        self._part, self._worker, self._holding = Part(folder, rank), worker, holding
        self._open = 0  # parts that are being made durable

    def save(self, number: int) -> None:
        """Writes the part of checkpoint `number`; `done` tells when it is durable, or why it is not."""
        self._part.save_made(number, lambda: self._worker.saved(self._holding()))
        self._open += 1

    def done(self) -> list[Written]:
        """Parts that have become durable, or failed; never waits."""
        written = self._part.done() if self._open else []
        self._open -= len(written)
        return written

    def close(self) -> None:
        self._part.close()


def restore(worker: Worker, saved: Mapping[str, Any], clients: Iterable[int]) -> dict[int, tuple[Update | None, float]]:
    """Puts clients into the state in which a checkpoint has them; their last updates, and how long those are to be held
    back (s). Raises ConfigError where the checkpoint cannot be read.

    saved  folder, number, and where: (client, the rank whose part has it)
    """
    checkpoint, clients = open_set(Path(saved["folder"]), saved["number"]), list(clients)
    everywhere = dict(saved["where"])
    where = {i: everywhere[i] for i in clients}
    found = {}
    for rank in set(where.values()):
        part = checkpoint.part(rank)
        names: dict[int, list[str]] = {i: [] for i in clients}
        for name in part.names():
            names.get(int(name.partition(".")[0]), []).append(name)
        for i in (i for i in clients if where[i] == rank):
            found[i] = worker.restore(i, {name.partition(".")[2]: part[name] for name in names[i]})
    return found
