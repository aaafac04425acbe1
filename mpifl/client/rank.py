"""What every rank but 0 runs: the handshake, then its clients, until the server ends the run."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifl.client.checkpoint import ResumePayload, attach_checkpoints, restore, resume
from mpifl.client.worker import Worker, serve_clients
from mpifl.config.job import Job
from mpifl.config.read import job_from_dict
from mpifl.errors import ConfigError, RunFailed, format_client_error
from mpifl.problems import ComputeResources, host
from mpifl.signals import SignalRecorder, exit_code
from mpifl.storage.checkpoint_set import folder_of
from mpifl.transport import handshake
from mpifl.transport.base import max_vectors
from mpifl.transport.handshake import ClientSetup
from mpifl.transport.launcher import is_fault_tolerant
from mpifl.transport.mpi import MPI, STUCK_TIMEOUT, dead_ranks
from mpifl.transport.mpi_client import MPIClientTransport

log = logging.getLogger(__package__)


class RankEnd(NamedTuple):
    """How a client rank's command ended."""

    code: int
    error: ConfigError | RunFailed | None = None  # that rank 0 ended the command with
    job: Job | None = None  # the job that was run


def run_client_rank(comm: MPI.Comm, process_ends: bool = False) -> RankEnd:
    """Hosts this rank's clients for one command of rank 0, from the handshake to the end of the run.

    process_ends: whether this process ends with the command (`SignalRecorder`).
    """
    try:
        with SignalRecorder(process_ends) as signals:
            signals.record()  # each is reported to the server
            return _host_clients(comm, signals)
    except handshake.Released as released:
        return RankEnd(released.code, released.error)
    except MPI.Exception:
        if 0 not in dead_ranks(comm):
            raise
        log.error("rank %d ends: rank 0 died", comm.rank)
        return RankEnd(3, RunFailed("rank 0 died"))


def _host_clients(comm: MPI.Comm, signals: SignalRecorder) -> RankEnd:
    handshake.send_hello(comm)
    setup = handshake.receive_setup(comm)
    try:
        job = job_from_dict(setup.job)
        hosted = host(job.problem, setup.meta, setup.shards, job.seed, ComputeResources(*setup.resources))
        x0, n = setup.x0, setup.clients
        worker = Worker(
            job.algorithm, x0, hosted.objectives, hosted.train_batch, hosted.memory, job.faults.norm, comm.rank
        )
        handshake.report_ready(comm, hosted.facts)
    except ConfigError as error:
        handshake.report_error(comm, error)
    handshake.await_start(comm)
    transport = MPIClientTransport(comm, n, x0.size, x0.dtype, max_vectors(job.algorithm), hosted.memory)
    transport.signals = signals.numbers
    signals.watch(job.faults.grace + STUCK_TIMEOUT, lambda number: os._exit(exit_code(number)))
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # a run may diverge; its losses show it
            ClientRank(comm, job, setup, worker, transport).run()
    except MPI.Exception:
        raise
    except Exception as error:
        transport.fail(error)
    return RankEnd(*handshake.await_release(comm), job)


class ClientRank:
    """A rank that hosts clients, during a run: checkpoints, resume, clients that move here, the time limit."""

    def __init__(
        self, comm: MPI.Comm, job: Job, setup: ClientSetup, worker: Worker, transport: MPIClientTransport
    ) -> None:
        self._comm, self._job, self._setup, self._worker, self._transport = comm, job, setup, worker, transport
        self._checkpointer = attach_checkpoints(transport, worker, folder_of(Path(job.output)), comm.rank)
        transport.on_host = self._host

    def run(self) -> None:
        """Computes until the server ends the run."""
        try:
            if self._setup.resume:
                resume(self._worker, self._transport, ResumePayload.from_dict(self._setup.resume))
            serve_clients(self._worker, self._transport, self._time_limit if is_fault_tolerant() else nullcontext)
        finally:
            self._checkpointer.close()

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Ends this process if the block takes longer than `patience` + STUCK_TIMEOUT; the run continues without it.

        A timer signal's default action does that, also while native code holds the interpreter.
        """
        if not (patience := self._job.faults.patience):
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, patience + STUCK_TIMEOUT)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _host(self, i: int) -> None:
        """Takes over a client that another rank can no longer host."""
        text = handshake.receive_json(self._comm)
        shard = handshake.receive_arrays(self._comm, text["shard"])
        consumed = handshake.receive_arrays(self._comm, text["consumed"])
        try:
            resources = ComputeResources(*self._setup.resources)
            hosted = host(self._job.problem, self._setup.meta, {i: shard}, self._job.seed, resources)
            self._worker.add_clients(hosted.objectives)
            pending = None
            if text["saved"]:
                payload = ResumePayload.from_dict(text["saved"])
                update, _ = restore(self._worker, payload, [i])[i]
                pending = update if i in payload.in_flight else None
            self._worker.roll_back(i, consumed, pending)
        except Exception as error:
            # reported when the client is sent its next message
            self._worker.add_failed_client(i, format_client_error(self._comm.rank, error))
