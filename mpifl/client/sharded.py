"""Clients whose vectors are sharded over the ranks of their group: each rank has one part of every vector.

The leader runs a client as a rank does that has it alone, on its part of the model. It asks the other members to do the
same with theirs, each of which receives its part of a message from rank 0 and sends it its part of the update. A whole
vector is in checkpoints alone, so they can be read with any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.algorithms.base import Algorithm, Message, State, Update
from mpifl.client.worker import Worker
from mpifl.objective import norm_of, parts_of
from mpifl.transport.backoff import wait
from mpifl.transport.mpi import DATA, MPI
from mpifl.transport.rank_group import RankGroup

if TYPE_CHECKING:
    from mpifl.checkpoint.snapshot import ClientSnapshot


class ShardedWorker(Worker):
    """The clients of a group's leader, which has the first part of each vector."""

    def __init__(self, group: RankGroup, d: int, *arguments: Any, **more: Any) -> None:
        """d: numbers of a whole vector; the other arguments are those of `Worker`."""
        super().__init__(*arguments, **more)
        self._group, self._parts = group, parts_of(d, group.size)

    def on_message(self, i: int, message: Message) -> None:
        """Has the members receive their parts of a message to client i."""
        fields = {name: value for name, value in message._asdict().items() if name != "vectors"}
        self._group.call(i, "receive", fields, [])

    def on_vectors(self, i: int) -> None:
        """Has the members send their parts of client i's last update."""
        self._group.call(i, "send", {}, [])

    def snapshots(self) -> dict[int, ClientSnapshot]:
        return {i: self._with_whole(i, snapshot) for i, snapshot in super().snapshots().items()}

    def _with_whole(self, i: int, snapshot: ClientSnapshot) -> ClientSnapshot:
        """The snapshot with the whole vector of the last update, where it has one."""
        update = snapshot.update
        if not update or not update.vectors:
            return snapshot
        self._group.call(i, "gather", {}, [])
        vectors = (self._group.gather(update.vectors[0], self._parts),)
        return replace(snapshot, update=replace(update, vectors=vectors, norm=norm_of(vectors)))

    def restore(self, i: int, saved: ClientSnapshot) -> tuple[Update | None, float]:
        if (update := saved.update) and update.vectors:
            (whole,) = update.vectors
            self._group.call(i, "restore", {}, [np.ascontiguousarray(whole)])
            saved = replace(saved, update=replace(update, vectors=(whole[self._parts[0]],)))
        return super().restore(i, saved)


class ShardedMember:
    """The parts that a rank has which is not its group's leader: of messages, and of its clients' last updates."""

    def __init__(self, comm: MPI.Comm, algorithm: Algorithm, group: RankGroup, d: int, dtype: np.dtype) -> None:
        self._comm, self._algorithm, self._group, self._dtype = comm, algorithm, group, dtype
        self._parts = parts_of(d, group.size)
        self._part = self._parts[group.member]
        self._messages: dict[int, Message] = {}
        self._updates: dict[int, np.ndarray] = {}
        self._sends: list[tuple[MPI.Request, np.ndarray]] = []  # sends in progress, with their buffers

    def follow_call(
        self, i: int, objective: Any, name: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]
    ) -> None:  # fmt: skip
        """Does for client i what the leader asks. Raises MemberFailed where its contact fails."""
        match name:
            case "receive":
                wait(self._comm.Irecv(x := np.empty(self._part.stop - self._part.start, self._dtype), 0, DATA + i))
                self._messages[i] = Message((x,), **arguments)
            case "train":
                update = self._algorithm.train(State(), self._messages.pop(i), objective)
                self._updates[i] = np.ascontiguousarray(update.vectors[0])
            case "send":
                self._sends = [send for send in self._sends if not send[0].Test()]
                self._sends.append((self._comm.Isend(self._updates[i], 0, DATA + i), self._updates[i]))
            case "gather":
                self._group.gather(self._updates[i], self._parts)
            case "restore":
                self._updates[i] = arrays[0][self._part]

    def finish(self) -> None:
        """Waits until rank 0 has received this member's parts."""
        wait(*(request for request, _ in self._sends))
