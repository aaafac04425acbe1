"""The server's side of checkpoints: Chandy-Lamport snapshots of a running job, and moving clients to other ranks.

A snapshot is taken between two events. The server saves its state and sends every rank a marker over the channel of the
messages. A rank that receives the marker has processed everything it was sent before; it saves each client's state and
last update. The server's snapshot lists the updates in flight, which it has not consumed, so no update is lost and no
process waits. A checkpoint is valid once every part and the rows up to the snapshot are durable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from mpifl.checkpoint.part import PartWriter
from mpifl.checkpoint.segments import Segment, extend_segments, keep_segments
from mpifl.checkpoint.sets import Manifest, commit, discard
from mpifl.checkpoint.snapshot import ServerSnapshot
from mpifl.client.checkpointing import ResumePayload
from mpifl.objective import Vector
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.run_lock import Lock
from mpifl.runfile.tables import EventRow
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.text import list_numbers
from mpifl.transport.backoff import Backoff
from mpifl.transport.server_end import QUIET_INTERVAL, QUIET_SECONDS

if TYPE_CHECKING:
    from mpifl.runfile.writer import RunWriter
    from mpifl.server.evaluator import Evaluator
    from mpifl.server.loop import ServerLoop

log = logging.getLogger(__package__)
MAX_SHARE = 0.02  # the largest share of the wall time that checkpoints by wall time take


class Checkpointer:
    """Takes the checkpoints of a run; where clients may move, also sums the increments consumed from each client."""

    def __init__(
        self, loop: ServerLoop, schedule: LiveSchedule, writer: RunWriter, evaluator: Evaluator,
        wall_seconds: Callable[[], float], rehost: bool, base: ServerSnapshot | None = None,
        segments: Sequence[Segment] = (), interval: float | None = None,
    ) -> None:  # fmt: skip
        """wall_seconds returns the run's time so far; `base` is the snapshot that the run resumed from, `segments` its
        rows. interval: seconds of wall time between two checkpoints; longer where they take long."""
        self.folder = folder_of(writer.path)
        self._loop, self._ranks, self._schedule = loop, loop.transport, schedule
        self._writer, self._evaluator = writer, evaluator
        self._wall_seconds, self._part = wall_seconds, PartWriter(self.folder, 0)
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._names = [k for k, name in enumerate(loop.algorithm.increment_of) if name] if rehost else []
        # Sums of the increments consumed from each client: from the last complete checkpoint up to the one in
        # progress, and after that one began.
        self._sums: dict[int, list[np.ndarray]] = {}
        self._since: dict[int, list[np.ndarray]] = {}
        self._base = base and base.without_arrays()  # snapshot of the last complete checkpoint
        self._number = base.number if base else 0
        self._resumes = base.resumes + 1 if base else 0
        self._segments = list(segments)  # rows of the last complete checkpoint; the pool's thread sets them
        self._parts: dict[int, tuple[int, int]] = {}
        self._awaited: set[int] = set()
        self._current: ServerSnapshot | None = None  # snapshot of the checkpoint in progress
        self._began = 0.0  # perf_counter when it was begun
        self._committing: Future[None] | None = None
        self._alive: Lock | None = None
        self._interval = interval or inf
        self._schedule.next_checkpoint = time.perf_counter() + self._interval
        self.busy = False
        self.failed = 0  # checkpoints abandoned in succession
        self.failure = ""  # why the last of them was abandoned
        self.complete = 0  # number of the last complete checkpoint that this run has taken

    # -- snapshots -----------------------------------------------------------------------------------------------------
    def begin(self, time_: float) -> None:
        """Begins a checkpoint, unless the one before is still being written."""
        self._schedule.next_checkpoint = time.perf_counter() + self._interval
        if self.busy:
            self._record(time_, "checkpoint-skipped", f"checkpoint {self._number} is still being written")
            return
        # Not only when their updates are due: no part of the checkpoint would contain these.
        for i, why in self._ranks.clients_on_dead_ranks():
            self._loop.client_failed(time_, i, why)
        self._began = time.perf_counter()
        self._number += 1
        snapshot = self._server_snapshot(time_)
        self._part.save(self._number, lambda: replace(snapshot, algorithm=self._loop.server.save()))
        self._current = snapshot.without_arrays()
        self._parts, self._awaited = {}, {0, *self._needed()}
        self._ranks.send_marker(self._number)
        self.busy = True

    def _server_snapshot(self, time_: float) -> ServerSnapshot:
        """The server's present state, except the algorithm's."""
        evaluator, evaluated = self._evaluator.save()
        rows = {**self._writer.counts(), **evaluated}
        return ServerSnapshot(
            number=self._number, run=self._writer.id, session=self._writer.session,
            resumed_from=self._writer.resumed_from, resumes=self._resumes, started=self._writer.started,
            began=self._writer.began, config=self._writer.config, time=time_, wall_seconds=self._wall_seconds(),
            rows=rows, client_rank=list(self._ranks.rank_of), loop=self._loop.save(), schedule=self._schedule.save(),
            evaluator=evaluator, algorithm={},
        )  # fmt: skip

    def poll(self, time_: float) -> None:
        """Takes note of the parts that are durable; completes or abandons the checkpoint in progress. Never waits."""
        self._ranks.poll()
        statuses = self._part.done() + self._ranks.part_statuses
        self._ranks.part_statuses.clear()
        for part in statuses:
            if part.number != self._number or not self.busy:
                self._pool.submit(discard, self.folder, part.number)  # a part of an abandoned checkpoint
                continue
            if part.error and part.rank in self._awaited:
                self._abandon(time_, f"rank {part.rank}: {part.error}")
                return
            if not part.error:
                self._parts[part.rank] = part.bytes, part.crc
        if self._committing is None:
            missing = self._awaited - self._parts.keys()
            hanging = self._ranks.unresponsive_ranks - self._needed()
            if lost := (missing - {0} - self._ranks.live_ranks) | (missing & hanging):
                self._abandon(time_, f"rank {min(lost)} was lost")
            elif not missing and (raised := self._saved_errors()):
                self._abandon(time_, f"client {min(raised)} raised")
            elif not missing and self._current:
                self._committing = self._pool.submit(self._commit, self._current, dict(self._parts))
        elif self._committing.done():
            committing, self._committing = self._committing, None
            if error := committing.exception():
                self._abandon(time_, str(error))
                return
            self._alive = Lock(self.folder)  # each time: the folder may have been removed and made again
            self.failed = 0
            self.busy, self.complete = False, self._number
            self._base, self._sums, self._since = self._current, self._since, {}
            size, seconds = sum(n for n, _ in self._parts.values()), time.perf_counter() - self._began
            self._schedule.next_checkpoint = self._began + max(self._interval, seconds / MAX_SHARE)
            text = f"{self._number}: {len(self._parts)} parts, {size / 1e6:.3g} MB, {seconds:.3g} s"
            self._record(time_, "checkpoint", text)
            log.debug("checkpoint %s", text)

    def _needed(self) -> set[int]:
        """The ranks that host live clients."""
        return {rank for i, rank in enumerate(self._ranks.rank_of) if i not in self._loop.clients.inactive}

    def _saved_errors(self) -> set[int]:
        """Clients whose errors are in the checkpoint in progress, where an error fails the run.

        A run that resumed from there would fail again.
        """
        if self._loop.failures.faults.lost != "stop":
            return set()
        assert self._current
        saved = self._current.loop.clients
        return {
            i
            for i in self._ranks.unreported_client_errors()
            if i in saved.in_flight and saved.rounds[i] == self._loop.clients.rounds[i]
        }

    def _commit(self, snapshot: ServerSnapshot, parts: Mapping[int, tuple[int, int]]) -> None:
        """Stores the rows, then makes the checkpoint valid; runs in the pool's thread."""
        stored = keep_segments(self.folder, self._segments, self._writer.read)
        segments = extend_segments(self.folder, snapshot.number, stored, snapshot.rows, self._writer.read)
        manifest = Manifest(
            number=snapshot.number, run=snapshot.run, session=snapshot.session, resumed_from=snapshot.resumed_from,
            resumes=snapshot.resumes, parts=parts, segments=segments,
        )  # fmt: skip
        self._writer.check_not_replaced()
        commit(self.folder, manifest)
        self._segments = segments

    def _abandon(self, time_: float, why: str) -> None:
        self.busy, self._committing = False, None
        self.failed, self.failure = self.failed + 1, why
        for i, sums in self._since.items():
            self._add(self._sums, i, sums)
        self._since = {}
        self._pool.submit(discard, self.folder, self._number)
        text = f"checkpoint {self._number} could not be completed: {why}"
        log.warning(text)
        self._record(time_, "checkpoint-failed", text)

    def _record(self, time_: float, kind: str, text: str) -> None:
        self._writer.append(EventRow(time_, kind, -1, text, self._loop.updates, self._loop.version))

    def finish(self, time_: float, patience: float) -> None:
        """Waits for the checkpoint in progress, at most `patience` seconds for the other ranks."""
        backoff, begin = Backoff(), time.perf_counter()
        notice = begin + QUIET_SECONDS
        while self.busy:
            self.poll(time_)
            now = time.perf_counter()
            if self.busy and not self._committing and now > begin + patience:
                self._abandon(time_, f"no answer for {patience:g} s")
            elif self.busy and now > notice:
                notice += QUIET_INTERVAL
                ranks = list_numbers("rank", sorted(self._awaited - self._parts.keys()))
                what = f"the parts of {ranks}; faults.patience limits that" if not self._committing else "the disk"
                log.warning("checkpoint %d waits for %s", self._number, what)
            backoff.pause()

    def close(self) -> None:
        if self._alive:
            self._alive.release()
        self._part.close()
        self._pool.shutdown()
        discard(self.folder, self._number)  # keeps a complete set

    # -- clients that move ---------------------------------------------------------------------------------------------
    def consumed(self, i: int, vectors: tuple[Vector, ...]) -> None:
        """Adds the increments of an update to its client's sums."""
        if self._names:
            self._add(self._since if self.busy else self._sums, i, [vectors[k] for k in self._names])

    @staticmethod
    def _add(sums: dict[int, list[np.ndarray]], i: int, vectors: Sequence[np.ndarray]) -> None:
        if i in sums:
            for total, v in zip(sums[i], vectors, strict=True):
                total += v
        else:
            sums[i] = [v.copy() for v in vectors]

    def rehost(self, i: int, time_: float) -> str:
        """Moves client i to another rank, restored from the last complete checkpoint; a clause on where, or ""."""
        if self._committing:  # once this set is complete, the one that `_base` describes may be removed
            self._committing.exception()
            self.poll(time_)
        if self.busy:  # the checkpoint's parts would have this client on its old rank
            self._abandon(time_, f"client {i} moves")
        saved = None
        if base := self._base:
            in_flight = [i] if i in base.loop.clients.in_flight else []
            payload = ResumePayload(str(self.folder.absolute()), base.number, [(i, base.client_rank[i])], in_flight)
            saved = payload._asdict()
        return self._ranks.rehost(i, saved, self._sums.get(i, []))
