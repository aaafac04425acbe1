"""The server's side of checkpoints: cuts through a run that goes on, and what moving a client to another rank takes.

A cut lies between two events. The server saves its state there and sends every rank a mark, which travels with the
messages, so that a rank meets it when it has worked off what it was sent before. It then saves each client's state and
last update. Whose update the server still has to consume, the server knows: nothing that is under way is missed, and
nobody waits. A checkpoint is valid once every part of it is durable, and so are the run file's rows up to the cut.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.algorithms.base import Algorithm
from mpifl.objective import Vector
from mpifl.scheduling.live import LiveSchedule
from mpifl.storage.checkpoint_set import Part, commit, discard, folder_of
from mpifl.storage.tables import EventRow
from mpifl.transport.backoff import Backoff
from mpifl.transport.base import PartStatus, ServerTransport

if TYPE_CHECKING:
    from mpifl.server.evaluator import Evaluator
    from mpifl.server.loop import ServerLoop
    from mpifl.storage import RunWriter


class Checkpointer:
    """Takes the checkpoints of a run and, where clients are to be rehosted, adds up what is consumed of each."""

    def __init__(
        self, writer: RunWriter, evaluator: Evaluator, ranks: ServerTransport, schedule: LiveSchedule,
        algorithm: Algorithm, facts: Callable[[], Mapping[str, Any]], rehost: bool, base: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """facts: what more a checkpoint is to say. base: `cut` of the checkpoint that the run resumed from, if any."""
        self.folder = folder_of(writer.path)
        self._writer, self._evaluator, self._ranks, self._schedule = writer, evaluator, ranks, schedule
        self._facts, self._part = facts, Part(self.folder, 0)
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._names = [k for k, name in enumerate(algorithm.increment_of) if name] if rehost else []
        self._sums: dict[int, list[np.ndarray]] = {}  # consumed of each client since the last complete checkpoint
        self._since: dict[int, list[np.ndarray]] = {}  # and since the one under way
        self._base = base
        self._number = base["number"] if base else 0
        self._evaluations = base["evaluations"] if base else 0  # rows of the file that were there before
        self._parts: dict[int, tuple[int, int]] = {}
        self._awaited: set[int] = set()
        self._cut: dict[str, Any] = {}
        self._began, self._took = 0.0, 0.0  # perf_counter; s that the loop was kept from its work
        self._committing: Future[None] | None = None
        self.busy = False
        self.complete = 0  # number of the last complete checkpoint that this run has taken

    # -- cuts ----------------------------------------------------------------------------------------------------------
    def snapshot(self, time_: float, loop: ServerLoop) -> None:
        if self.busy:
            self._tell(time_, "checkpoint-skipped", f"checkpoint {self._number} is still being written", loop)
            return
        for (
            i,
            why,
        ) in (
            self._ranks.clients_on_dead_ranks()
        ):  # else they would be lost when their answers are due: no part has them
            loop.client_failed(time_, i, why)
        self._began = time.perf_counter()
        self._number += 1
        counts, (measured, best, models) = self._writer.counts(), self._evaluator.pending()
        counts["evaluations"] = self._evaluations + measured
        self._cut = {
            "number": self._number, "where": list(self._ranks.rank_of), "out": list(loop.clients.in_flight),
            "evaluations": counts["evaluations"],
        }  # fmt: skip
        now = {
            "run": self._writer.id, "session": self._writer.session, "resumed_from": self._writer.resumed_from,
            "time": time_, "counts": counts, "loop": asdict(loop.save()), "schedule": self._schedule.save(),
            "cut": self._cut, "models": [m[:3] for m in models], "best": best, **self._facts(),
        }  # fmt: skip
        self._manifest = deepcopy(now)  # written when the loop has gone on
        self._part.save_made(self._number, lambda: self._arrays(loop, models))
        self._parts, self._awaited = {}, {0, *self._needed(loop)}
        self._ranks.send_marker(self._number)
        self.busy, self._took = True, time.perf_counter() - self._began

    @staticmethod
    def _arrays(loop: ServerLoop, models: Sequence[Any]) -> dict[str, np.ndarray]:
        """The server's part: its state, and what waits to be evaluated."""
        arrays = {f"server.{name}": value for name, value in loop.server.save().items()}
        for k, (*_, x, personal) in enumerate(models):
            arrays |= {f"model.{k}": x} | ({} if personal is None else {f"personal.{k}": personal})
        return arrays

    def poll(self, time_: float, loop: ServerLoop) -> None:
        self._ranks.poll()
        told = [PartStatus(0, *part) for part in self._part.done()] + self._ranks.part_statuses
        self._ranks.part_statuses.clear()
        for part in told:
            if part.number != self._number or not self.busy:
                self._pool.submit(discard, self.folder, part.number)  # it came too late
                continue
            if part.error and part.rank in self._awaited:
                self._abandon(time_, f"rank {part.rank}: {part.error}", loop)
                return
            if not part.error:
                self._parts[part.rank] = part.bytes, part.crc
        if self._committing is None:
            left = self._awaited - self._parts.keys()
            hung = self._ranks.unresponsive_ranks - self._needed(loop)
            if missing := (left - {0} - self._ranks.live_ranks) | (left & hung):
                self._abandon(time_, f"rank {min(missing)} was lost", loop)
            elif not left and (raised := self._ends_with(loop)):
                self._abandon(time_, f"client {min(raised)} raised", loop)
            elif not left:
                self._committing = self._pool.submit(self._commit, self._number, self._manifest, dict(self._parts))
        elif self._committing.done():
            committing, self._committing = self._committing, None
            if error := committing.exception():
                self._abandon(time_, str(error), loop)
                return
            self.busy, self.complete = False, self._number
            self._base, self._sums, self._since = self._cut, self._since, {}
            size, seconds = sum(n for n, _ in self._parts.values()), time.perf_counter() - self._began
            text = f"{self._number}: {len(self._parts)} parts, {size / 1e6:.3g} MB, {seconds:.3g} s"
            self._tell(time_, "checkpoint", text, loop)

    def _needed(self, loop: ServerLoop) -> set[int]:
        """The ranks that have clients to be saved."""
        return {rank for i, rank in enumerate(self._ranks.rank_of) if i not in loop.clients.inactive}

    def _ends_with(self, loop: ServerLoop) -> set[int]:
        """Clients whose errors are in the checkpoint under way, where an error ends the run, and again each time that
        it goes on from there."""
        if loop.failures.faults.lost != "stop":
            return set()
        rounds = self._manifest["loop"]["clients"]["rounds"]
        return {
            i
            for i in self._ranks.unreported_client_errors()
            if i in self._cut["out"] and rounds[i] == loop.clients.rounds[i]
        }

    def _commit(self, number: int, manifest: Mapping[str, Any], parts: Mapping[int, tuple[int, int]]) -> None:
        self._writer.durable(manifest["counts"])
        commit(self.folder, number, manifest, parts)

    def _abandon(self, time_: float, why: str, loop: ServerLoop) -> None:
        self.busy, self._committing = False, None
        for i, sums in self._since.items():
            self._add(self._sums, i, sums)
        self._since = {}
        self._pool.submit(discard, self.folder, self._number)
        text = f"checkpoint {self._number} could not be completed: {why}"
        print(f"mpifl: {text}", file=sys.stderr, flush=True)
        self._tell(time_, "checkpoint-failed", text, loop)

    def _tell(self, time_: float, kind: str, text: str, loop: ServerLoop) -> None:
        self._writer.append(EventRow(time_, kind, -1, text, loop.updates, loop.version))

    def finish(self, time_: float, loop: ServerLoop) -> None:
        """Waits for the checkpoint that was begun, as long as a client may take."""
        backoff, patience = Backoff(), loop.failures.faults.patience or inf
        end = time.perf_counter() + patience
        while self.busy:
            self.poll(time_, loop)
            if self.busy and not self._committing and time.perf_counter() > end:
                self._abandon(time_, f"no answer for {patience:g} s", loop)
            backoff.sleep()

    def close(self) -> None:
        self._part.close()
        self._pool.submit(discard, self.folder, self._number)  # where it is not complete
        self._pool.shutdown()

    # -- clients that move ---------------------------------------------------------------------------------------------
    def consumed(self, i: int, vectors: tuple[Vector, ...]) -> None:
        if self._names:
            self._add(self._since if self.busy else self._sums, i, [vectors[k] for k in self._names])

    @staticmethod
    def _add(sums: dict[int, list[np.ndarray]], i: int, vectors: Sequence[np.ndarray]) -> None:
        if i in sums:
            for total, v in zip(sums[i], vectors, strict=True):
                total += v
        else:
            sums[i] = [v.copy() for v in vectors]

    def rehost(self, i: int, time_: float, loop: ServerLoop) -> str:
        """Has another rank host client i, from the last complete checkpoint; where, or "" where there is none."""
        if self._committing:  # the set that is about to be the last one; the base of now may be removed with it
            self._committing.exception()
            self.poll(time_, loop)
        if self.busy:  # it would have this client where it was
            self._abandon(time_, f"client {i} moves", loop)
        saved = None
        if self._base:
            saved = {"folder": str(self.folder.absolute()), "number": self._base["number"]}
            saved |= {"where": [(i, self._base["where"][i])], "pending": i in self._base["out"]}
        return self._ranks.rehost(i, saved, self._sums.get(i, []))
