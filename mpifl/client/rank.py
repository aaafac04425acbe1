"""What every rank but 0 does: it waits for its part, hosts its clients, and says what becomes of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from mpifl.client.checkpoint import Saver, restore
from mpifl.client.worker import Worker, work
from mpifl.config.job import Job, job_from_dict
from mpifl.errors import ConfigError, described
from mpifl.problems import Place, host
from mpifl.server.in_process import resume, vectors
from mpifl.server.launch import survives
from mpifl.signals import SignalRecorder
from mpifl.storage.checkpoint_set import folder_of
from mpifl.transport import handshake
from mpifl.transport.frames import SAVED
from mpifl.transport.mpi import MPI, STUCK, dead
from mpifl.transport.mpi_client import ClientEnd


def follow(comm: MPI.Comm) -> int:
    """The exit code. Where rank 0 dies there is nobody left to follow."""
    try:
        return _follow(comm)
    except MPI.Exception:
        if 0 not in dead(comm):
            raise
        print(f"mpifl: rank {comm.rank} ends: rank 0 died", file=sys.stderr, flush=True)
        return 3


def _follow(comm: MPI.Comm) -> int:
    heard = SignalRecorder()  # what this rank hears the server is told
    try:
        handshake.say(comm, handshake.myself())
        part = handshake.part(comm)
        if "code" in part:
            return int(part["code"])
        x0 = handshake.array(comm, part["d"], part["dtype"])
        shards = {i: [handshake.array(comm, *a) for a in arrays] for i, arrays in part["clients"]}
        try:
            job = job_from_dict(part["job"])
            hosted = host(job.problem, part["meta"], shards, job.seed, Place(*part["place"]))
            worker = Worker(
                job.algorithm, x0, hosted.objectives, hosted.together, hosted.memory, job.faults.norm, comm.rank
            )
            handshake.say(comm, {"facts": hosted.facts})
        except ConfigError as error:
            expected = f"{shorten(error.expected, 2000)} (rank {comm.rank})"
            handshake.say(comm, {"error": [error.key, shorten(str(error.value), 500), expected]})
        verdict = handshake.part(comm)
        if "code" in verdict:
            return int(verdict["code"])
        end = ClientEnd(comm, part["n"], x0.size, x0.dtype, vectors(job.algorithm), hosted.memory)
        end.signals = heard.numbers
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # a run may diverge; its losses say so
                Client(comm, job, part, worker, end).work()
        except MPI.Exception:
            raise
        except Exception as error:
            end.fail(error)
        return end.code
    finally:
        heard.forget()


class Client:
    """A rank's clients while a run goes on: what they do besides computing."""

    def __init__(self, comm: MPI.Comm, job: Job, part: dict[str, Any], worker: Worker, end: ClientEnd) -> None:
        self._comm, self._job, self._part, self._worker, self._end = comm, job, part, worker, end
        self._saver = Saver(folder_of(Path(job.output)), comm.rank, worker, end.holding)
        end.marked, end.idle, end.hosting = self._saver.save, self._tell, self._host
        end.ending = self._saver.close  # no part appears after the goodbye

    def work(self) -> None:
        """To the end of the run."""
        try:
            if self._part["saved"]:
                resume(self._worker, self._end, self._part["saved"])
            work(self._worker, self._end, self._patient if survives() else nullcontext)
        finally:
            self._saver.close()

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """Ends this rank where its clients compute for so long that they are given up; the others go on without it.

        The default action of the signal does that, whatever holds the interpreter.
        """
        if not (patience := self._job.faults.patience):
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, patience + STUCK)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _tell(self) -> None:
        for written in self._saver.done():
            self._end.say(SAVED, written.number, written.bytes, written.crc, text=written.error)

    def _host(self, i: int) -> None:
        """Takes over a client that another rank can no longer host."""
        asked = handshake.part(self._comm)
        shard = [handshake.array(self._comm, *a) for a in asked["shard"]]
        consumed = [handshake.array(self._comm, *a) for a in asked["consumed"]]
        try:
            place = Place(*self._part["place"])
            hosted = host(self._job.problem, self._part["meta"], {i: shard}, self._job.seed, place)
            self._worker.adopt(hosted.objectives)
            pending = None
            if asked["saved"]:
                update, _ = restore(self._worker, asked["saved"], [i])[i]
                pending = update if asked["saved"]["pending"] else None
            self._worker.correct(i, consumed, pending)
        except Exception as error:
            self._worker.reject(i, described(self._comm.rank, error))  # told when it is sent something
