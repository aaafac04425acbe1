"""The server's end of the MPI link, on rank 0; bounded memory.

Client i of n lives on rank 1 + i mod (R-1), until it is moved. An update comes as a frame (see `wire`), for which one
persistent receive a rank is posted; vectors too large for it wait at the sender until one of a pool of reused buffers
is free. Large messages leave by Isend straight from the model's array, which lives until its sends are complete.

Where the MPI tells of deaths (ULFM) the link goes on with the living: a failed call only says that somebody is dead, so
the dead are looked up, what is under way to or from them is forgotten, and their clients are lost.
"""

from __future__ import annotations

import sys
import time
from math import inf

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import RunFailed
from mpifl.transport import frames as wire
from mpifl.transport.backoff import Backoff
from mpifl.transport.base import PartStatus
from mpifl.transport.frames import Frames
from mpifl.transport.mpi import FRAME, MPI, SETUP, STUCK, TEXT, Outgoing, dead, post, wait
from mpifl.transport.receive_pool import ReceivePool

UNSEEN = 64  # sends of small frames, which are copies, that may go without a look at whether they are done


class ServerEnd:
    """The server's end: a link for n clients on the other ranks of `comm`; at most `vectors` vectors a message."""

    def __init__(self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int) -> None:
        self._comm, self._workers = comm, comm.size - 1
        self._frames = frames = Frames(d, dtype, vectors)
        self._arriving = [frames.empty() for _ in range(self._workers)]
        self._posts = [comm.Recv_init(f, r, FRAME) for r, f in enumerate(self._arriving, 1)]
        self.rank_of = [1 + i % self._workers for i in range(clients)]
        self.live_ranks = set(range(1, comm.size))  # ranks that take part in the run
        self._requests: list[MPI.Request] = [*self._posts]  # the frames' receives, then those of vectors
        self._fetches = ReceivePool(comm, frames, clients, self._requests)
        self._announced: dict[tuple[int, int], list[float]] = {}  # (client, rank) -> head of an update, in order
        self._rounds: dict[int, int] = {}  # client -> round of its last message
        self._ready: dict[int, Update] = {}  # complete updates, in order of completion
        self._slots: dict[int, int] = {}  # and their slots, by client
        self._outgoing = Outgoing(self._bury)
        self._graves: list[object] = []  # buffers that a dead rank's messages may still touch
        self._gone: set[int] = set()  # ranks that have said goodbye
        self._failed: dict[int, str] = {}  # clients that were lost, and why, until `pop_client_failures` returns them
        self._missed: list[tuple[int, str]] = []
        self.unresponsive_ranks: set[int] = set()  # ranks of clients that were given up
        self._broken = ""  # what made a rank unable to go on, until it is raised
        self.part_statuses: list[PartStatus] = []  # of checkpoints, as ranks tell of them
        self.signals: list[int] = []  # that client ranks have heard
        self.stuck_ranks: set[int] = set()  # ranks that did not say goodbye
        for rank in range(1, comm.size):
            self._listen(rank)

    # -- out -----------------------------------------------------------------------------------------------------------
    def expect_update(self, i: int, round: int) -> None:
        """Client i was sent the message of this round before: its update comes of itself."""
        self._rounds[i] = round

    def send(self, i: int, message: Message, delay: float) -> None:
        buffers = self._frames.pack(wire.message_head(i, message, delay), message.vectors)
        self._rounds[i] = message.round
        self._post(buffers, self.rank_of[i], i)
        if not self._frames.inline or len(self._outgoing) >= UNSEEN:
            self._outgoing.look()

    def _post(self, buffers: list[np.ndarray], rank: int, client: int = 0) -> None:
        if rank in self.live_ranks:
            self._outgoing.add(lambda: post(self._comm, buffers, rank, client), buffers, rank)

    def send_marker(self, number: int) -> None:
        """Has every rank write its part of a checkpoint, when it has worked off what it was sent before."""
        for rank in sorted(self.live_ranks):
            self._post(self._frames.pack((wire.MARK, number)), rank)

    def move(self, i: int, rank: int, words: list[np.ndarray]) -> None:
        """Has a rank host client i, of which `words` say all it needs (`mpifl.transport.handshake`)."""
        self._failed.pop(i, None)
        self.rank_of[i] = rank
        self._post(self._frames.pack((wire.HOST, i)), rank)
        self._outgoing.add(lambda: [self._comm.Isend(w, rank, SETUP) for w in words], words, rank)

    # -- in ------------------------------------------------------------------------------------------------------------
    def _fetch(self, key: tuple[int, int]) -> None:
        """Starts the receives of an announced update into a free buffer."""
        try:
            self._fetches.start(*key, self._announced.pop(key))
        except MPI.Exception as error:
            self._bury(error)

    def _progress(self, fetch: bool) -> bool:
        """Takes in what has arrived, without waiting; whether anything had. Raises RunFailed for a rank's error."""
        while fetch and self._announced and self._fetches.free:
            self._fetch(next(iter(self._announced)))
        try:
            done = MPI.Request.Testsome(self._requests) or ()
        except MPI.Exception as error:
            self._bury(error)
            done = self._done()
        self._fetches.over(done)
        for k in done:
            if k < self._workers:
                self._frame(k + 1)
            else:
                self._vector(k)
        if broken := self._broken:
            self._broken = ""
            raise RunFailed(broken)
        return bool(done)

    def _listen(self, rank: int) -> None:
        """Waits for a rank's next frame."""
        try:
            if rank in self.live_ranks:
                self._posts[rank - 1].Start()
        except MPI.Exception as error:
            self._bury(error)

    def _frame(self, rank: int) -> None:
        if rank not in self.live_ranks:  # it died just now
            return
        head = self._frames.head(self._arriving[rank - 1])
        kind, i = int(head[0]), int(head[1])
        text = self._text(rank, int(head[wire.TEXTS[kind]])) if kind in wire.TEXTS else ""
        here = kind in (wire.UPDATE, wire.REFUSED, wire.RAISED) and self.rank_of[i] == rank
        if kind == wire.UPDATE and not self._frames.inline:
            self._announced[i, rank] = head
        elif kind == wire.UPDATE and here:
            vectors = self._frames.body(self._arriving[rank - 1], int(head[2]))
            self._ready[i] = wire.to_update(head, vectors, self._rounds[i])
        elif kind == wire.REFUSED and here:
            self._ready[i] = wire.to_update(head, (), self._rounds[i])._replace(refused=text)
        elif kind == wire.RAISED and i < 0:
            self._broken = text
        elif kind == wire.RAISED and here:
            self._failed[i] = text
        elif kind == wire.SAVED:
            self.part_statuses.append(PartStatus(rank, i, int(head[2]), int(head[3]), text))
        elif kind == wire.SIGNAL:
            self.signals.append(i)
        elif kind == wire.BYE:
            self._gone.add(rank)
            return  # nothing follows
        self._listen(rank)

    def _text(self, rank: int, length: int) -> str:
        """The text that follows a frame; what there is of it, where the rank dies."""
        text = bytearray(length)
        if length:
            try:
                wait(self._comm.Irecv(text, rank, TEXT))
            except MPI.Exception as error:
                self._graves.append(text)
                self._bury(error)
        return text.decode("utf-8", "replace")

    def _vector(self, k: int) -> None:
        if not (complete := self._fetches.arrived(k)):
            return
        slot, i, rank, head = complete
        if self.rank_of[i] != rank:  # it was given up, and lives elsewhere
            self._fetches.free.append(slot)
            return
        self._ready[i] = wire.to_update(head, self._fetches.vectors(slot, int(head[2])), self._rounds[i])
        self._slots[i] = slot

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        end = time.perf_counter() + timeout
        backoff = Backoff()
        while not self._ready:
            if self._progress(fetch=True):
                backoff.reset()
            elif (left := end - time.perf_counter()) <= 0:
                break
            else:
                backoff.sleep(left)
        for i in [i for i in self._failed if i not in self._ready]:
            self._missed.append((i, self._failed.pop(i)))
        i = next(iter(self._ready), -1)
        return (i, self._ready.pop(i)) if i >= 0 else None

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        end = time.perf_counter() + timeout
        backoff = Backoff()
        while i not in self._ready:
            if i in self._failed:
                self._missed.append((i, self._failed.pop(i)))
                return None
            if (key := (i, self.rank_of[i])) in self._announced and self._fetches.free:
                self._fetch(key)
            if self._progress(fetch=False):
                backoff.reset()
            elif (left := end - time.perf_counter()) <= 0:
                return None
            else:
                backoff.sleep(left)
        return self._ready.pop(i)

    def release_update(self, i: int) -> None:
        if i in self._slots:
            self._fetches.free.append(self._slots.pop(i))

    # -- what goes wrong -----------------------------------------------------------------------------------------------
    def _bury(self, error: MPI.Exception) -> None:
        """Forgets what has to do with ranks that have died. Raises the error where nobody has."""
        died = dead(self._comm) & self.live_ranks
        if not died and error.Get_error_class() != MPI.ERR_PROC_FAILED:  # else it is of a rank that is buried already
            raise error
        self.live_ranks -= died
        for rank in died:
            self._requests[rank - 1] = MPI.REQUEST_NULL
        for key in [key for key in self._announced if key[1] in died]:
            del self._announced[key]
        for i in [i for i, rank in enumerate(self.rank_of) if rank in died and i not in self._failed]:
            self._failed[i] = f"rank {self.rank_of[i]} died"
        self._fetches.drop(lambda i, rank: rank in died)
        self._outgoing.bury(died)

    def _done(self) -> list[int]:
        """Which requests are over, looked at one by one: a call for all of them that fails does not say."""
        found = []
        for k in [*(rank - 1 for rank in self.live_ranks - self._gone), *self._fetches.coming]:
            try:
                if self._requests[k].Test():
                    found.append(k)
            except MPI.Exception:  # of a rank that died just now: the next call for all finds it
                continue
        return found

    def pop_client_failures(self) -> list[tuple[int, str]]:
        missed, self._missed = self._missed, []
        return missed

    def unreported_client_errors(self) -> set[int]:
        return {i for i in (*self._failed, *(i for i, _ in self._missed)) if self.rank_of[i] in self.live_ranks}

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        found = [i for i, rank in enumerate(self.rank_of) if rank and rank not in self.live_ranks]
        for i in found:
            self._failed.pop(i, None)
            if self._ready.pop(i, None):
                self.release_update(i)
        self._missed = [(i, why) for i, why in self._missed if i not in found]
        return [(i, f"rank {self.rank_of[i]} died") for i in found]

    def has_arrived(self, i: int) -> bool:
        self.poll()
        return i in self._ready or i in self._failed or (i, self.rank_of[i]) in self._announced

    def abandon_client(self, i: int) -> None:
        rank, self.rank_of[i] = self.rank_of[i], 0  # of no rank: what it still sends is dropped
        self.unresponsive_ranks.add(rank)
        self._failed.pop(i, None)
        self._fetches.drop(lambda j, r: (j, r) == (i, rank))

    def poll(self) -> None:
        """Handles what has arrived, without waiting; receives no large vectors, of which `receive_from` chooses."""
        while self._progress(fetch=False):
            pass

    # -- the end -------------------------------------------------------------------------------------------------------
    def shut_down(self, code: int, timeout: float = inf) -> int:
        for rank in sorted(self.live_ranks):
            self._post(self._frames.pack((wire.STOP, code)), rank)
        for i in [i for i in self._slots if i not in self._ready]:  # in use when the run broke off
            self.release_update(i)
        dropped, backoff, end = 0, Backoff(), time.perf_counter() + timeout
        while (missing := self.live_ranks - self._gone) or self._fetches.slots or self._ready or self._announced:
            try:
                if self._progress(fetch=True):
                    backoff.reset()
                    end = time.perf_counter() + timeout
                else:
                    backoff.sleep()
            except RunFailed as error:
                print(error, file=sys.stderr)
            for i in list(self._ready):
                del self._ready[i]
                self.release_update(i)
                dropped += 1
            if missing and missing <= self.unresponsive_ranks:  # who may never come
                end = min(end, time.perf_counter() + STUCK)
            if time.perf_counter() > end:
                waiting = {rank for _, rank in self._announced} | {rank for _, rank, *_ in self._fetches.slots.values()}
                self.stuck_ranks = missing | waiting
                return dropped
        self._outgoing.drain()
        for rank in self.live_ranks:
            self._posts[rank - 1].Free()
        return dropped
