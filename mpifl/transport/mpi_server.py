"""The server's end of the MPI transport, on rank 0; large vectors are received into a bounded pool of buffers.

Client i of n lives on rank 1 + i mod (R-1), until it is moved. An update comes as a frame (`frames`), for which one
persistent receive a rank is posted, and is consumed from the frame's buffer. Vectors too large for a frame wait at the
sender until one of a pool of reused buffers is free. Large messages leave by Isend straight from the model's array,
which lives until its sends are seen to be complete.

Where the MPI reports deaths (ULFM) the transport continues with the live ranks. A failed call only means that some rank
is dead: the transport asks which ones are, forgets what is in flight to or from them, and their clients have failed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import RunFailed
from mpifl.heap import use_huge_pages
from mpifl.transport.backoff import Backoff
from mpifl.transport.base import PartStatus
from mpifl.transport.frames import WITH_TEXT, Frame, FrameFormat, Header, Kind
from mpifl.transport.handshake import array_specs, setup_buffers
from mpifl.transport.mpi import DATA, END, MPI, SETUP, STUCK_TIMEOUT, TEXT, dead_ranks, wait
from mpifl.transport.queues import COPIED_BYTES, Inbox, LargeReceive, Outbox, Requests, VectorSends

log = logging.getLogger(__package__)

POOL_BYTES = 256 << 20  # maximum of the buffers that receive large vectors
POOL_BUFFERS = 32
SLOW = 0.02  # s that the link takes for a large update; from this on updates are received one after the other
STALL_FACTOR = 3.0  # multiple of the mean of that time, after which the next update is received as well
UPDATE = int(Kind.UPDATE)


class MPIServerTransport:
    """The server's end (`server_base.ServerTransport`) for n clients on the other ranks of `comm`."""

    def __init__(
        self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int,
        shard: Callable[[int], Sequence[np.ndarray]] = lambda i: [],
    ) -> None:  # fmt: skip
        """vectors: maximum in a message; shard: the data of a client that moves to another rank."""
        self._comm, self._workers, self._shard = comm, comm.size - 1, shard
        self._format = FrameFormat(d, dtype, vectors)
        self._inline = self._format.inline
        if self._format.vector_bytes > COPIED_BYTES:
            use_huge_pages()
        self._inboxes = [Inbox(comm, rank, self._format) for rank in range(comm.size)]  # by rank; 0's is not used
        self._outboxes = [Outbox(comm, rank, self._format) for rank in range(comm.size)]
        self.rank_of = [1 + i % self._workers for i in range(clients)]
        self.live_ranks = set(range(1, comm.size))
        self._vector_sends = VectorSends(comm)
        self._requests = Requests(comm.size)
        self._pool = ReceivePool(comm, self._format, clients, self._requests)
        # (client, rank) -> an update whose vectors wait, and how many it has; in order
        self._announced: dict[tuple[int, int], tuple[Update, int]] = {}
        self._ready: dict[int, Update] = {}  # complete updates, in order of completion
        # And their buffers, by client: the list to which they return, and the item that is put there.
        self._buffers: dict[int, tuple[list[Any], Any]] = {}
        self._quarantined: list[object] = []  # buffers that MPI may still read or write for a dead rank
        self._closed: set[int] = set()  # ranks that have sent their last frame
        self._unanswered = 0  # messages that these have dropped
        self._errors: dict[int, str] = {}  # client -> why it failed, until its update is due
        self.client_failures: list[tuple[int, str]] = []  # due errors
        self.unresponsive_ranks: set[int] = set()
        # Client -> ranks that no longer host it; what they still send for it is recognised by its source rank.
        self._left: dict[int, set[int]] = {}
        self._rank_error = ""  # why a rank cannot continue, until it is raised
        self.part_statuses: list[PartStatus] = []
        self.signals: list[int] = []
        self.computing: Sequence[int] = ()  # clients compute on other ranks
        self.on_death: Callable[[Mapping[int, int]], None] = lambda hosted: None
        self.stuck_ranks: set[int] = set()
        for rank in range(1, comm.size):
            self._receive_frame(rank, self._inboxes[rank])

    # -- sending -------------------------------------------------------------------------------------------------------
    def send(self, i: int, message: Message, delay: float) -> None:
        rank = self.rank_of[i]
        if rank not in self.live_ranks:
            return
        try:
            self._outboxes[rank].send_message(i, message, delay)
            if not self._inline:
                self._vector_sends.start(message.vectors, rank, DATA + i)
        except MPI.Exception as error:
            self._handle_death(error)

    def _send_frame(self, header: Header, rank: int) -> None:
        """Starts to send a frame that is no message."""
        if rank not in self.live_ranks:
            return
        try:
            outgoing = self._outboxes[rank].take()
            outgoing.frame.write(header)
            self._outboxes[rank].start(outgoing, 0)
        except MPI.Exception as error:
            self._handle_death(error)

    def _send_vectors(self, vectors: Sequence[np.ndarray], rank: int, tag: int) -> None:
        """Starts to send vectors that belong to no message, from where they are."""
        if rank not in self.live_ranks:
            return
        try:
            self._vector_sends.start(vectors, rank, tag)
        except MPI.Exception as error:
            self._handle_death(error)

    def _release_sent(self) -> None:
        """Lets go of the vectors that have been sent."""
        try:
            self._vector_sends.release()
        except MPI.Exception as error:
            self._handle_death(error)

    def send_marker(self, number: int) -> None:
        for rank in sorted(self.live_ranks):
            self._send_frame(Header(Kind.MARKER, number), rank)

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to the rank with the fewest clients, of those that answer and never hosted it."""
        left = self._left.setdefault(i, set())
        left.add(self.rank_of[i])
        able = sorted(self.live_ranks - self.unresponsive_ranks - left)
        if not able:
            return ""
        rank = min(able, key=self.rank_of.count)
        shard = self._shard(i)
        text = {"shard": array_specs(shard), "consumed": array_specs(consumed), "saved": saved}
        buffers = setup_buffers(text, [*shard, *consumed])
        self._errors.pop(i, None)
        self.rank_of[i] = rank
        self._send_frame(Header(Kind.HOST, i), rank)
        self._send_vectors(buffers, rank, SETUP)
        return f"to rank {rank}"

    # -- receiving -----------------------------------------------------------------------------------------------------
    def _receive_vectors(self, i: int, rank: int, update: Update, count: int) -> None:
        """Starts the receives of an announced update into a free buffer."""
        try:
            complete = self._pool.start(i, rank, update, count)
        except MPI.Exception as error:
            self._handle_death(error)
            return
        if complete:
            self._handle_vectors(i, rank, *complete)

    def _receive_announced(self) -> bool:
        """Starts to receive announced updates, while there are buffers, and the link is not busy.

        Returns whether any is complete at once.
        """
        before = len(self._ready)
        while self._announced and self._pool.has_turn():
            i, rank = next(iter(self._announced))
            self._receive_vectors(i, rank, *self._announced.pop((i, rank)))
        return len(self._ready) > before

    def _progress(self, receive_vectors: bool) -> bool:
        """Handles what has arrived, without waiting; returns whether anything arrived. Raises RunFailed."""
        requests = self._requests.all
        arrived = receive_vectors and bool(self._announced) and self._receive_announced()
        try:
            # Open MPI tests before it receives: what arrives during the first call is returned by the second one.
            done = MPI.Request.Testsome(requests) or MPI.Request.Testsome(requests)
        except MPI.Exception as error:
            self._handle_death(error)
            done = self._test_each()
        if not done:
            return arrived
        if len(done) > 1:
            # From the highest down: the last request takes the place of a removed one, and frames may add some.
            done.sort(reverse=True)
        for k in done:
            if k <= self._workers:
                self._handle_frame(k, receive_vectors)
            elif self._pool.received(receive := self._requests.drop(k)):
                self._handle_vectors(receive.client, receive.rank, receive.update, receive.slot)
        if receive_vectors and self._announced:
            self._receive_announced()
        if error_text := self._rank_error:
            self._rank_error = ""
            raise RunFailed(error_text)
        return True

    def _receive_frame(self, rank: int, inbox: Inbox) -> None:
        """Starts the receive of a rank's next frame, if it lives."""
        if rank not in self.live_ranks:
            return
        try:
            self._requests.all[rank] = inbox.start()
        except MPI.Exception as error:
            self._handle_death(error)

    def _handle_frame(self, rank: int, receive_vectors: bool) -> None:
        if rank not in self.live_ranks:  # it has just died
            return
        inbox = self._inboxes[rank]
        incoming = inbox.current
        frame = incoming.frame
        if frame.header[0] == UPDATE and (not self._inline or inbox.free or inbox.has_room()):
            i, update, length = frame.read_update()
            if not self._inline:
                inbox.free.append(incoming)
                if not length:
                    if self.rank_of[i] == rank:
                        self._ready[i] = update
                elif receive_vectors and not self._announced and self._pool.has_turn():
                    self._receive_vectors(i, rank, update, length)
                else:
                    self._announced[i, rank] = update, length
            elif self.rank_of[i] == rank:
                self._ready[i] = update
                self._buffers[i] = inbox.free, incoming
            else:  # it was moved or abandoned
                inbox.free.append(incoming)
        else:
            more = self._handle_other(rank, frame)
            inbox.free.append(incoming)
            if not more:
                return
        self._receive_frame(rank, inbox)

    def _handle_other(self, rank: int, frame: Frame) -> bool:
        """Handles a frame whose buffer is free afterwards; returns False for the last frame of its rank."""
        kind, i, length = frame.read()
        text = self._receive_text(rank, length) if kind in WITH_TEXT else ""
        if kind == Kind.UPDATE:  # there is no room for another frame while this one waits to be consumed
            if self.rank_of[i] == rank:
                _, update, _ = frame.read_update()
                self._ready[i] = update.with_vectors(tuple(v.copy() for v in update.vectors))
        elif kind == Kind.REFUSED:
            if self.rank_of[i] == rank:
                _, update, _ = frame.read_update()
                self._ready[i] = update._replace(vectors=(), refused=text)
        elif kind == Kind.CLIENT_ERROR:
            if i < 0:
                self._rank_error = text
            elif self.rank_of[i] == rank:
                self._errors[i] = text
        elif kind == Kind.PART_STATUS:
            self.part_statuses.append(PartStatus(rank, i, *json.loads(text)))
        elif kind == Kind.SIGNAL:
            self.signals.append(i)
        elif kind == Kind.GOODBYE:
            self._closed.add(rank)
            self._unanswered += i
            return False
        return True

    def _receive_text(self, rank: int, length: int) -> str:
        """The text that follows a frame; incomplete if the rank dies."""
        text = bytearray(length)
        if length:
            try:
                wait(self._comm.Irecv(text, rank, TEXT))
            except MPI.Exception as error:
                self._quarantined.append(text)
                self._handle_death(error)
        return text.decode("utf-8", "replace")

    def _handle_vectors(self, i: int, rank: int, update: Update, slot: int) -> None:
        """Takes an update whose vectors are complete, in a slot of the pool."""
        if self.rank_of[i] != rank:  # it was moved or abandoned
            self._pool.free.append(slot)
            return
        self._ready[i] = update
        self._buffers[i] = self._pool.free, slot

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        ready = self._ready
        if not ready and not self._progress(receive_vectors=True):
            self._await_update(time.perf_counter() + timeout)
        if self._errors:
            for i in [i for i in self._errors if i not in ready]:
                self.client_failures.append((i, self._errors.pop(i)))
        for i in ready:
            return i, ready.pop(i)
        return None

    def _await_update(self, end: float) -> None:
        """Waits until an update is complete, until `end` (perf_counter) at most."""
        backoff = Backoff()
        while not self._ready:
            if self._progress(receive_vectors=True):
                backoff.reset()
            elif (left := end - time.perf_counter()) <= 0:
                break
            else:
                self._rest(backoff, left)

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        end = time.perf_counter() + timeout
        backoff = Backoff()
        while i not in self._ready:
            if i in self._errors:
                self.client_failures.append((i, self._errors.pop(i)))
                return None
            if (key := (i, self.rank_of[i])) in self._announced and self._pool.free:
                self._receive_vectors(*key, *self._announced.pop(key))
            elif self._progress(receive_vectors=False):
                backoff.reset()
            elif (left := end - time.perf_counter()) <= 0:
                return None
            else:
                self._rest(backoff, left)
        return self._ready.pop(i)

    def _rest(self, backoff: Backoff, limit: float) -> None:
        """Pauses between two polls, for `limit` s at most."""
        if time.perf_counter() >= self._vector_sends.next_release:
            self._release_sent()
        backoff.pause(limit)

    def keep_update(self, i: int, update: Update) -> Update:
        kept = update.with_vectors(tuple(v.copy() for v in update.vectors))
        self.release_update(i)
        return kept

    def release_update(self, i: int) -> None:
        if buffer := self._buffers.pop(i, None):
            free, item = buffer
            free.append(item)

    def poll(self) -> None:
        """Handles what has arrived, without waiting; large vectors are left to `receive_from`, which chooses."""
        while self._progress(receive_vectors=False):
            pass

    # -- failures ------------------------------------------------------------------------------------------------------
    def _handle_death(self, error: MPI.Exception) -> None:
        """Forgets what is in flight to or from ranks that have died. Raises the error where none has."""
        died = dead_ranks(self._comm) & self.live_ranks
        if not died and error.Get_error_class() != MPI.ERR_PROC_FAILED:  # else it is of a rank already handled
            raise error
        self.live_ranks -= died
        for rank in died:
            self._requests.all[rank] = MPI.REQUEST_NULL
            self._quarantined += self._vector_sends.abandon(rank)  # MPI may still read them
        for key in [key for key in self._announced if key[1] in died]:
            del self._announced[key]
        for i in [i for i, rank in enumerate(self.rank_of) if rank in died and i not in self._errors]:
            self._errors[i] = f"rank {self.rank_of[i]} died"
        self._pool.abandon(lambda i, rank: rank in died)
        if died:
            self.on_death({rank: self.rank_of.count(rank) for rank in died})

    def _test_each(self) -> list[int]:
        """Which requests are complete, tested one by one: a failed test of all of them does not show that."""
        found = []
        for k in [*(self.live_ranks - self._closed), *range(self._comm.size, len(self._requests.all))]:
            try:
                if self._requests.all[k].Test():
                    found.append(k)
            except MPI.Exception:  # of a rank that has just died: the next test of all finds it
                continue
        return found

    def unreported_client_errors(self) -> set[int]:
        failed = (*self._errors, *(i for i, _ in self.client_failures))
        return {i for i in failed if self.rank_of[i] in self.live_ranks}

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

    def cancel(self, i: int) -> None:
        """Nothing to do: the message has left; what answers it is dropped at the end."""

    def abandon_client(self, i: int) -> None:
        rank, self.rank_of[i] = self.rank_of[i], 0  # of no rank: what it still sends is dropped
        self.unresponsive_ranks.add(rank)
        self._errors.pop(i, None)
        self._pool.abandon(lambda j, r: (j, r) == (i, rank))

    # -- the end -------------------------------------------------------------------------------------------------------
    def _send_end(self, rank: int) -> None:
        """Tells a rank that the run has ended; this overtakes the messages that wait there, which the rank drops."""
        self._send_vectors([np.empty(0)], rank, END)

    def shut_down(self, code: int, timeout: float = inf) -> int:
        for rank in sorted(self.live_ranks):
            self._send_end(rank)
            self._send_frame(Header(Kind.STOP, code), rank)
        for i in [i for i in self._buffers if i not in self._ready]:  # being consumed when the run failed
            self.release_update(i)
        dropped, backoff, end = 0, Backoff(), time.perf_counter() + timeout
        while (running := self.live_ranks - self._closed) or self._pool.active or self._ready or self._announced:
            try:
                if self._progress(receive_vectors=True):
                    backoff.reset()
                    end = time.perf_counter() + timeout
                else:
                    backoff.pause()
            except RunFailed as error:
                log.error("%s", error)
            for i in list(self._ready):
                del self._ready[i]
                self.release_update(i)
                dropped += 1
            if running and running <= self.unresponsive_ranks:  # they may never end
                end = min(end, time.perf_counter() + STUCK_TIMEOUT)
            if time.perf_counter() > end:
                sending = {rank for _, rank in self._announced} | {receive.rank for receive in self._pool.active}
                self.stuck_ranks = running | sending
                return dropped + self._unanswered
        self._drain_sends()
        for rank in sorted(self.live_ranks):
            try:
                self._outboxes[rank].drain()
                self._inboxes[rank].close()
            except MPI.Exception as error:
                self._handle_death(error)
        return dropped + self._unanswered

    def _drain_sends(self) -> None:
        """Waits for all sends of vectors."""
        backoff = Backoff()
        while self._vector_sends:
            self._release_sent()
            backoff.pause()


class ReceivePool:
    """Receives of vectors too large for a frame, into a bounded number of buffers that are reused.

    On a slow link updates are received one after the other: the first one's answer then leaves while the second
    arrives. Received all at once, they would share the link and end at about the same time, and so would the answers;
    each direction would be idle while the other is busy.
    """

    def __init__(self, comm: MPI.Comm, format: FrameFormat, clients: int, requests: Requests) -> None:
        """requests: those of its receives are added to them."""
        self._comm, self._format, self._requests = comm, format, requests
        size = format.vectors * format.d * format.dtype.itemsize
        count = 0 if format.inline else max(2, min(POOL_BUFFERS, clients, POOL_BYTES // size))
        self._buffers = [self._new_buffer() for _ in range(count)]  # by slot
        self._quarantined: list[object] = []  # buffers that MPI may still write, although nobody waits
        self.free = list(range(count))  # slots
        self.active: set[LargeReceive] = set()
        self._link_time = 0.0  # s of the link that an update takes, a moving average
        self._last_turn = 0.0  # perf_counter when an update was complete, or the only receive was started
        self._last_start = 0.0  # perf_counter

    def _new_buffer(self) -> tuple[np.ndarray, ...]:
        """Room for the vectors of an update, (d,) each."""
        return tuple(np.empty((self._format.vectors, self._format.d), self._format.dtype))

    def has_turn(self) -> bool:
        """Whether another update may be received now: there is a buffer, and the link is not busy."""
        if not self.free:
            return False
        if not self.active or self._link_time < SLOW:
            return True
        return time.perf_counter() - max(self._last_turn, self._last_start) > STALL_FACTOR * self._link_time

    def start(self, i: int, rank: int, update: Update, count: int) -> tuple[Update, int] | None:
        """Receives the vectors of client i's announced update into a free slot.

        Returns update and slot if the vectors are complete at once, as they often are; else `received` tells when.
        """
        slot, pending = self.free.pop(), []
        vectors = self._buffers[slot][:count]
        update = update.with_vectors(vectors)
        try:
            for v in vectors:
                request = self._comm.Irecv(v, rank, DATA + i)
                if not request.Test():
                    pending.append(request)
        except Exception:
            self.active.add(LargeReceive(i, rank, slot, update, count))  # until it is abandoned
            raise
        if not pending:
            self._link_time *= 0.8  # the link took no time
            return update, slot
        self._last_start = time.perf_counter()
        if not self.active:
            self._last_turn = self._last_start
        receive = LargeReceive(i, rank, slot, update, len(pending))
        self.active.add(receive)
        for request in pending:
            self._requests.add(request, receive)
        return None

    def received(self, receive: LargeReceive) -> bool:
        """Notes that one more vector has arrived; returns whether it was the last one."""
        receive.missing -= 1
        if receive.missing:
            return False
        self.active.remove(receive)
        now = time.perf_counter()
        self._link_time += 0.2 * (now - self._last_turn - self._link_time)
        self._last_turn = now
        return True

    def abandon(self, which: Callable[[int, int], bool]) -> None:
        """Stops waiting for the updates of the (client, rank) pairs that `which` selects."""
        abandoned = {receive for receive in self.active if which(receive.client, receive.rank)}
        self._requests.drop_where(lambda transfer: transfer in abandoned)
        self.active -= abandoned
        for receive in abandoned:
            self._quarantined.append(self._buffers[receive.slot])
            self._buffers[receive.slot] = self._new_buffer()
            self.free.append(receive.slot)
