"""The server's end of the MPI transport, on rank 0.

A client lives on a group of ranks (`layout`), until it is moved; its messages go to the group's first rank. A
persistent receive of each of these is posted for frames (`frames`), whose vectors are copied out. Vectors too large for
a frame wait at the sender until one of a pool of buffers is free. Large messages leave by Isend straight from the
model's array, which lives until its sends are seen to be complete. Where clients are sharded each rank of a group is
sent its part of the array, and the parts of an update are received into one buffer.

Where the MPI reports deaths (ULFM) the transport continues with the live ranks. A failed call only means that some rank
is dead: the transport asks which ones are, forgets what is in flight to or from them, and their clients have failed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.checkpoint.part import PartStatus
from mpifl.errors import RunFailed
from mpifl.objective import norm_of, parts_of
from mpifl.transport.backoff import Backoff, wait
from mpifl.transport.frames import WITH_TEXT, FrameFormat, Kind
from mpifl.transport.handshake import SETUP, array_specs, setup_buffers
from mpifl.transport.layout import Layout
from mpifl.transport.mpi import DATA, END, FRAME, MPI, QUARANTINE, STUCK_TIMEOUT, TEXT, dead_ranks
from mpifl.transport.queues import Outbox, ReceivePool
from mpifl.transport.rank_deaths import launcher_rank, report_death
from mpifl.transport.server_end import QUIET_INTERVAL, QUIET_SECONDS, ServerTransport, describe_clients

log = logging.getLogger(__package__)

RELEASE_INTERVAL = 0.01  # s between two tests of the sends to all ranks


class MPIServerTransport(ServerTransport):
    """The server's end for n clients on the other ranks of `comm`."""

    def __init__(
        self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int,
        shard: Callable[[int], Sequence[np.ndarray]], layout: Layout, sharded: bool = False,
    ) -> None:  # fmt: skip
        """vectors: maximum in a message; shard: the data of a client that moves to another rank.

        sharded: whether each rank of a client has a part of its vectors.
        """
        super().__init__([layout.home(i) for i in range(clients)], set(layout.leaders))
        self._comm, self._shard, self._layout = comm, shard, layout
        # The slices of a vector, one for each rank of a group in its order; without `sharded` one slice, of all of it.
        self._parts = parts_of(d, layout.per_client if sharded else 1)
        self._format = FrameFormat(d, dtype, vectors, len(self._parts) > 1)
        self._outboxes = [Outbox(comm, rank, self._format) for rank in range(comm.size)]  # index: rank; 0's is not used
        self._next_release = 0.0  # perf_counter
        self._frames = [self._format.frame() for _ in range(comm.size)]  # index: rank; where its next frame is received
        # index: rank; the persistent receive of its frames
        self._receives: list[Any] = [MPI.REQUEST_NULL for _ in range(comm.size)]
        self._pool = ReceivePool(comm, self._format, clients, self._parts)
        # (client, rank) -> an update whose vectors wait at the rank, and how many they are; oldest first
        self._announced: dict[tuple[int, int], tuple[Update, int]] = {}
        self._ready: dict[int, Update] = {}  # client -> its complete update, oldest first
        self._buffers: dict[int, Sequence[np.ndarray]] = {}  # client -> buffers of the pool that hold its update
        self._closed: set[int] = set()  # ranks that have sent their last frame
        self._unprocessed = 0  # messages that these ranks have dropped
        # Client -> the ranks that hosted it before, to none of which it returns.
        self._former_ranks: dict[int, set[int]] = {}
        self._rank_error = ""  # why a rank cannot continue, until it is raised
        for rank in layout.leaders:
            self._receives[rank] = comm.Recv_init(self._frames[rank].buffer, rank, FRAME)
            self._receive_frame(rank)

    # -- sending -------------------------------------------------------------------------------------------------------
    def send(self, i: int, message: Message, delay: float) -> None:
        rank = self.rank_of[i]
        if rank not in self.live_ranks:
            return
        outbox = self._outboxes[rank]
        try:
            frame = outbox.take()
            frame.write_message(i, message, delay)
            if self._format.inline:
                outbox.send(frame, len(message.vectors))
            else:
                outbox.send(frame)
                for part, each in zip(self._parts, self._group_outboxes(rank)):
                    each.send_vectors([v[part] for v in message.vectors], DATA + i)
        except MPI.Exception as error:
            self._handle_death(error)
        self._release_sent()

    def _group_outboxes(self, rank: int) -> list[Outbox]:
        """Those of the ranks that have parts of the vectors of the clients on `rank`."""
        return self._outboxes[rank : rank + len(self._parts)]

    def _send_control(
        self, rank: int, kind: Kind, subject: int, arrays: Sequence[np.ndarray] = (), tag: int = SETUP
    ) -> None:
        """Starts to send a frame that is no message, and the arrays that follow it."""
        if rank not in self.live_ranks:
            return
        outbox = self._outboxes[rank]
        try:
            frame = outbox.take()
            frame.write(kind, subject)
            outbox.send(frame)
            outbox.send_vectors(arrays, tag)
        except MPI.Exception as error:
            self._handle_death(error)

    def _release_sent(self) -> None:
        """Releases the large vectors that have been received, on all ranks; every RELEASE_INTERVAL.

        Otherwise a model would be kept until the next message to each rank that it was sent to.
        """
        if self._format.inline or time.perf_counter() < self._next_release:
            return
        for rank in self.live_ranks.copy():
            try:
                for outbox in self._group_outboxes(rank):
                    outbox.release()
            except MPI.Exception as error:
                self._handle_death(error)
        self._next_release = time.perf_counter() + RELEASE_INTERVAL

    def send_marker(self, number: int) -> None:
        for rank in sorted(self.live_ranks):
            self._send_control(rank, Kind.MARKER, number)

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to the rank with the fewest clients, of those that answer and never hosted it."""
        former = self._former_ranks.setdefault(i, set())
        former.add(self.rank_of[i])
        able = sorted(self.live_ranks - self.unresponsive_ranks - former)
        if not able:
            return ""
        rank = min(able, key=self.rank_of.count)
        shard = self._shard(i)
        fields = {"shard": array_specs(shard), "consumed": array_specs(consumed), "saved": saved}
        self._errors.pop(i, None)
        self.rank_of[i] = rank
        self._send_control(rank, Kind.HOST, i, setup_buffers(fields, [*shard, *consumed]))
        return f"to rank {rank}"

    # -- receiving -----------------------------------------------------------------------------------------------------
    def _progress(self, receive_vectors: bool) -> bool:
        """Handles what has arrived, without waiting; returns whether anything arrived. Raises RunFailed.

        receive_vectors: Start to receive the vectors of announced updates, while there are buffers.
        """
        try:
            # Open MPI tests before it makes progress: the second call returns what has arrived during the first.
            done = MPI.Request.Testsome(self._receives) or MPI.Request.Testsome(self._receives)
        except MPI.Exception as error:
            self._handle_death(error)
            done = self._test_each()
        for rank in done or ():
            self._handle_frame(rank)
        while receive_vectors and self._announced and self._pool.free:
            self._receive_vectors(*next(iter(self._announced)))
        completed = bool(self._pool.active) and self._take_complete()
        if error_text := self._rank_error:
            self._rank_error = ""
            raise RunFailed(error_text)
        return bool(done) or completed

    def _receive_frame(self, rank: int) -> None:
        """Starts the receive of a rank's next frame."""
        try:
            self._receives[rank].Start()
        except MPI.Exception as error:
            self._handle_death(error)

    def _handle_frame(self, rank: int) -> None:
        if rank not in self.live_ranks:  # the rank has just died
            return
        frame = self._frames[rank]
        kind, i, length = frame.header.kind, frame.header.subject, frame.header.length
        text = self._receive_text(rank, length) if kind in WITH_TEXT else ""
        if rank not in self.live_ranks:  # it died before the text was here
            return
        match kind:
            case Kind.UPDATE if not self._format.inline:
                self._announced[i, rank] = frame.read_update(), length
            case Kind.UPDATE | Kind.REFUSED:
                if self.rank_of[i] == rank:  # else the client was moved or abandoned
                    self._ready[i] = frame.read_update(refused=text)
            case Kind.CLIENT_ERROR if i < 0:
                self._rank_error = text
            case Kind.CLIENT_ERROR:
                if self.rank_of[i] == rank:
                    self._errors[i] = text
            case Kind.PART_STATUS:
                self.part_statuses.append(PartStatus(rank, i, *json.loads(text)))
            case Kind.SIGNAL:
                self.signals.append(i)
            case Kind.GOODBYE:
                self._closed.add(rank)
                self._unprocessed += i
                return
        self._receive_frame(rank)

    def _receive_text(self, rank: int, length: int) -> str:
        """The text that follows a frame; incomplete if the rank dies, which is then no longer live."""
        text = bytearray(length)
        if length:
            try:
                wait(self._comm.Irecv(text, rank, TEXT))
            except MPI.Exception as error:
                QUARANTINE.append(text)
                self._handle_death(error)
        return text.decode("utf-8", "replace")

    def _receive_vectors(self, i: int, rank: int) -> None:
        """Starts to receive the vectors of an announced update into free buffers."""
        try:
            self._pool.start(i, rank, *self._announced.pop((i, rank)))
        except MPI.Exception as error:
            self._handle_death(error)

    def _take_complete(self) -> bool:
        """Takes the updates whose vectors have arrived; returns whether there is any."""
        try:
            complete = self._pool.take_complete()
        except MPI.Exception as error:
            self._handle_death(error)
            return False
        for receive in complete:
            if self.rank_of[receive.client] == receive.rank:
                update = receive.update
                whole = len(self._parts) == 1  # else no rank has had the whole update before
                self._ready[receive.client] = update if whole else update._replace(norm=norm_of(update.vectors))
                self._buffers[receive.client] = receive.buffers
            else:  # the client was moved or abandoned
                self._pool.free.append(receive.buffers)
        return bool(complete)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        end, backoff = time.perf_counter() + timeout, Backoff()
        while not self._ready and not self._errors:
            if self._progress(receive_vectors=True):
                backoff.reset()
            elif not self._rest(backoff, end):
                break
        if self._errors:
            for i in [i for i in self._errors if i not in self._ready]:
                self.client_failures.append((i, self._errors.pop(i)))
        for i in self._ready:
            return i, self._ready.pop(i)
        return None

    def receive_from(self, i: int, timeout: float) -> Update | None:
        end, backoff = time.perf_counter() + timeout, Backoff()
        while i not in self._ready:
            if i in self._errors:
                self.client_failures.append((i, self._errors.pop(i)))
                return None
            if (i, self.rank_of[i]) in self._announced and self._pool.free:
                self._receive_vectors(i, self.rank_of[i])
            if self._progress(receive_vectors=False):
                backoff.reset()
            elif not self._rest(backoff, end):
                return None
        return self._ready.pop(i)

    def _rest(self, backoff: Backoff, end: float) -> bool:
        """Pauses between two polls; returns False, at once, if it is `end` (perf_counter) already."""
        left = end - time.perf_counter()
        if left <= 0:
            return False
        self._release_sent()
        backoff.pause(left)
        return True

    def keep_update(self, i: int, update: Update) -> Update:
        if i not in self._buffers:
            return update
        kept = update._replace(vectors=tuple(v.copy() for v in update.vectors))
        self.release_update(i)
        return kept

    def release_update(self, i: int) -> None:
        if buffers := self._buffers.pop(i, None):
            self._pool.free.append(buffers)

    def poll(self) -> None:
        """Handles what has arrived, without waiting; large vectors are left to `receive_from`, which chooses."""
        while self._progress(receive_vectors=False):
            pass

    # -- failures ------------------------------------------------------------------------------------------------------
    def _handle_death(self, error: MPI.Exception) -> None:
        """Forgets what is in flight to or from ranks that have died. Raises the error where none has.

        A group that has lost a rank ends, but the others may not know it yet.
        """
        dead = {rank: self._layout.group_of(rank)[0] for rank in dead_ranks(self._comm)}
        for rank in [rank for rank, leader in dead.items() if leader in self.live_ranks and leader not in dead]:
            report_death(launcher_rank(self._comm, rank))
        died = self.live_ranks.intersection(dead.values())
        if not died and error.Get_error_class() != MPI.ERR_PROC_FAILED:  # else the rank has been handled already
            raise error
        self.live_ranks -= died
        for rank in died:
            QUARANTINE.extend([self._receives[rank], self._frames[rank]])
            self._receives[rank] = MPI.REQUEST_NULL
            for outbox in self._group_outboxes(rank):
                outbox.abandon()
        for key in [key for key in self._announced if key[1] in died]:
            del self._announced[key]
        for i in [i for i, rank in enumerate(self.rank_of) if rank in died and i not in self._errors]:
            self._errors[i] = f"rank {self.rank_of[i]} died"
        self._pool.abandon(lambda receive: receive.rank in died)
        if died:
            self.on_death({rank: self.rank_of.count(rank) for rank in died})

    def _test_each(self) -> list[int]:
        """The ranks whose frames have arrived, tested one by one: a failed test of all of them does not show that."""
        found = []
        for rank in self.live_ranks - self._closed:
            try:
                if self._receives[rank].Test():
                    found.append(rank)
            except MPI.Exception:  # the rank has just died: the next test of all finds it
                continue
        return found

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        found = [i for i, rank in enumerate(self.rank_of) if rank and rank not in self.live_ranks]
        for i in found:
            self._errors.pop(i, None)
            if self._ready.pop(i, None):
                self.release_update(i)
        self.client_failures[:] = [(i, reason) for i, reason in self.client_failures if i not in found]
        return [(i, f"rank {self.rank_of[i]} died") for i in found]

    def has_arrived(self, i: int) -> bool:
        self.poll()
        return i in self._ready or i in self._errors or (i, self.rank_of[i]) in self._announced

    def abandon_client(self, i: int) -> None:
        rank, self.rank_of[i] = self.rank_of[i], 0  # 0: no rank; what the old one still sends is dropped
        self.unresponsive_ranks.add(rank)
        self._errors.pop(i, None)
        self._pool.abandon(lambda receive: (receive.client, receive.rank) == (i, rank))

    # -- the end -------------------------------------------------------------------------------------------------------
    def shut_down(self, timeout: float = inf) -> int:
        for rank in sorted(self.live_ranks):
            # The empty message with the tag END overtakes the messages that wait at the rank, which then drops them.
            self._send_control(rank, Kind.STOP, 0, [np.empty(0)], END)
        for i in [i for i in self._buffers if i not in self._ready]:  # updates being consumed when the run failed
            self.release_update(i)
        dropped, backoff, end = 0, Backoff(), time.perf_counter() + timeout
        notice = time.perf_counter() + QUIET_SECONDS
        while (running := self.live_ranks - self._closed) or self._pool.active or self._ready or self._announced:
            try:
                if self._progress(receive_vectors=True):
                    backoff.reset()
                    end = time.perf_counter() + timeout
                    notice = time.perf_counter() + QUIET_SECONDS
                else:
                    backoff.pause()
            except RunFailed as error:
                log.error("%s", error)
            for i in list(self._ready):
                del self._ready[i]
                self.release_update(i)
                dropped += 1
            if time.perf_counter() > notice:
                notice += QUIET_INTERVAL
                hosted = [i for i, rank in enumerate(self.rank_of) if rank in running]
                named = describe_clients(hosted, self.rank_of) if hosted else f"ranks {sorted(running)}"
                log.warning("the run is over: the server waits for %s; faults.patience limits that", named)
            if running and running <= self.unresponsive_ranks:  # these ranks may never end
                end = min(end, time.perf_counter() + STUCK_TIMEOUT)
            if time.perf_counter() > end:
                sending = {rank for _, rank in self._announced} | {receive.rank for receive in self._pool.active}
                self.stuck_ranks = running | sending
                return dropped + self._unprocessed
        for rank in sorted(self.live_ranks):
            try:
                for outbox in self._group_outboxes(rank):
                    outbox.drain()
                self._receives[rank].Free()
            except MPI.Exception as error:
                self._handle_death(error)
        return dropped + self._unprocessed
