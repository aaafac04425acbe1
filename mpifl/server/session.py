"""A run on rank 0, from ready ranks to the closed run file: the server loop, evaluator, checkpointer and signals."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mpifl.algorithms.base import Clients, State
from mpifl.errors import RunFailed, RunResult, describe_unexpected, first_and_last_line
from mpifl.runfile.reader import open_run
from mpifl.runfile.tables import EventRow
from mpifl.scheduling.clocks import RealClock
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.overload import describe_overload, describe_slow_contacts
from mpifl.scheduling.replayed_schedule import ReplaySchedule
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.evaluator import Evaluator
from mpifl.server.loop import Ending, ServerLoop
from mpifl.server.progress import ProgressBar, summary
from mpifl.server.run_log import RunLog
from mpifl.signals import SignalRecorder, exit_code, is_from_signal
from mpifl.text import list_numbers
from mpifl.transport.in_process import InProcessTransport
from mpifl.transport.launcher import is_mpi_error
from mpifl.transport.server_end import ServerTransport

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.runfile.reader import Run
    from mpifl.runfile.writer import RunWriter
    from mpifl.server.resume import ResumePoint


log = logging.getLogger(__package__)

CLOSE_TIMEOUT = 5.0  # s in which the run file is closed when the run is out of time


class RowsObserver(Protocol):
    """Watches a run by the rows that its file gets, as the live TensorBoard export does; it must never block."""

    def begin(self, began: Callable[[], float], resumed: Run | None) -> None:
        """Called once before the first rows.

        began: returns the Unix time (s) at which the run's clock started. resumed: the file of a run that is resumed.
        """

    def put(self, blocks: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Called by the thread that writes the run file, with the new rows by table and column."""

    def close(self) -> str:
        """Called after the last rows; returns a clause for the run's final line, "" where there is nothing to say."""


@dataclass(eq=False)
class Session:
    """One run on rank 0, once all ranks are ready. Errors are recorded in the run file before they are raised."""

    job: Job
    problem: Problem
    clients: Clients
    server: State  # the algorithm's state
    schedule: LiveSchedule | ReplaySchedule
    transport: ServerTransport
    writer: RunWriter
    signals: SignalRecorder
    resumed: ResumePoint | None = None
    end_process: Callable[[int], None] = os._exit  # ends the process at once, with this exit code
    contained: bool = False  # an unexpected error is a RunFailed: the other ranks end this run, not their program
    observers: Sequence[RowsObserver] = ()

    def __post_init__(self) -> None:
        job, snapshot = self.job, self.resumed.snapshot if self.resumed else None
        live = self.schedule if isinstance(self.schedule, LiveSchedule) else None
        self._error = ""  # why the run failed, or was not saved
        self._observed: list[str] = []  # clauses of the observers for the final line
        self._ended: tuple[str, int, np.ndarray | None] | None = None  # status, exit code, model
        self._closed = threading.Event()  # set once the run file is closed
        self._wall = 0.0  # s of the whole run, once it has ended
        self._earlier = snapshot.wall_seconds if snapshot else 0.0  # s of the run, before it was resumed
        with open_run(self.writer.path) if self.resumed and self.observers else nullcontext() as file:
            for observer in self.observers:
                observer.begin(lambda: self.writer.began, file)
        self.writer.on_rows = [observer.put for observer in self.observers]
        self.evaluator = Evaluator(
            self.problem, self.writer, job, deterministic=self.schedule.clock.deterministic,
            ends=live is not None,  # a replay ends with its record
            alone=self.problem.draws and isinstance(self.transport, InProcessTransport),
            saved=snapshot.evaluator if snapshot else None,
        )  # fmt: skip
        self.loop = ServerLoop(
            job.algorithm, self.server, self.clients, self.transport, self.schedule, recorder=self.writer,
            evaluate=self.evaluator, seed=job.seed, faults=job.faults,
            among_available=job.clock.availability.cohort_from == "available",
        )  # fmt: skip
        self.checkpointer = None
        if live:
            self.loop.checkpointer = self.checkpointer = Checkpointer(
                self.loop, live, self.writer, self.evaluator, self._wall_seconds, rehost=job.faults.lost == "rehost",
                base=snapshot, segments=self.resumed.checkpoint.manifest.segments if self.resumed else (),
                interval=job.checkpoint.wall,
            )  # fmt: skip
        self._reports = self.loop.failures.reports
        if self.resumed:
            self._resume(self.resumed)
        self._progress: list[ProgressBar | RunLog] = []
        if sys.stderr.isatty():
            self._progress = [ProgressBar(job.stop, self.evaluator, self.loop.updates)]
        elif job.log_interval and log.isEnabledFor(logging.INFO):
            self._progress = [RunLog(job, self.evaluator, self.loop, job.log_interval, self.loop.updates)]
        self.loop.observers = [each.on_update for each in self._progress]

    def _wall_seconds(self) -> float:
        """Wall time since the run began, earlier sessions included."""
        return self._earlier + time.perf_counter() - self._begin

    def _resume(self, point: ResumePoint) -> None:
        """Restores the server."""
        snapshot = point.snapshot
        self.loop.load(snapshot.loop)
        origin = "; ".join([f"from checkpoint {snapshot.number}", *point.passed])
        with open_run(self.writer.path) as file:
            refused = file.events[file.events.kind == "refused"]
        for i, reason in zip(refused.client.tolist(), refused.text.tolist(), strict=True):
            self.loop.failures.count_refusal(i, reason, report=False)
        changes = [("changed", f"{key}={new}, before {old}") for key, (old, new) in point.changed.items()]
        for kind, text in [("resumed", origin), *changes]:
            self.writer.append(EventRow(snapshot.time, kind, -1, text, self.loop.updates, self.loop.version))

    # -- the run -------------------------------------------------------------------------------------------------------
    def run(self) -> RunResult:
        """Runs to the end and closes the run file."""
        status, code = "failed", 3
        x: np.ndarray | None = None  # None: the run file keeps its first model
        self.signals.watch(self.job.faults.grace, self._out_of_time)
        self._begin, cpu = time.perf_counter(), time.process_time()
        if not self._earlier:
            self.writer.set_attr("began", time.time())
        try:
            self.schedule.clock.start()
            with np.errstate(over="ignore", invalid="ignore"):
                ended = self.loop.run(self._ending)
            if ended and not self.loop.updates and (count := self.loop.failures.refusals):
                raise RunFailed(f"no update was consumed and {count:,} refused; {self._first_refusal()}")
            x = self.job.algorithm.model(self.loop.server)
            status, code = ("completed", 0) if ended else ("interrupted", exit_code(self.signals.numbers[0]))
        except RunFailed as error:
            self._report("the run failed", error)
            self._record("failed", first_and_last_line(str(error)))  # a traceback's: the rank, and the error
        except BaseException as error:
            if is_from_signal(error):
                status, code, x = self._state_now(self.signals.numbers[0])
                if status == "failed":
                    self._record("failed", "a second signal ended it at once, while a rule may have changed the model")
                raise
            text = describe_unexpected(error)
            self._record("failed", text)
            if not self.contained or is_mpi_error(error):
                raise
            self._report("the run failed", RunFailed(text))
        finally:
            complete = self._end(status, code, x, cpu, ends_all=sys.exc_info()[0] is not None)  # an error is raised
        if not complete:
            status, code = "failed", 3
        line = f"{self.job.output}: {status}, {self._summary()}{self._resume_hint(status)}"
        stuck = frozenset(self.transport.stuck_ranks)
        cause = RunFailed(self._error) if self._error else None
        return RunResult(code, cause, self.job.output, line, stuck, self._wall)

    def _report(self, what: str, error: RunFailed) -> None:
        """Logs an error at once: the shutdown of the other ranks may take long."""
        self._reports.flush(now=True)
        self._error = str(error)
        log.error("%s: %s", what, error)

    def _end(self, status: str, code: int, x: np.ndarray | None, cpu: float, ends_all: bool) -> bool:
        """Ends the ranks and closes the run file; returns whether that is complete.

        cpu: process_time at the start. ends_all: the caller ends the other ranks.
        """
        writer, self._ended = self.writer, (status, code, x)
        wall, cpu = time.perf_counter() - self._begin, time.process_time() - cpu
        self._wall = self._earlier + wall
        writer.set_attr("wall_seconds", self._wall)
        writer.set_attr("server_cpu_share", cpu / wall)
        writer.set_attr("peak_rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        for name, seconds in zip(("contact_delay", "contact_seconds"), self._contact_times(), strict=True):
            writer.set_attr(name, seconds)
        writer.client_on = self._on_fractions()
        for each in self._progress:
            each.close(status == "completed")
        complete = True
        if status == "interrupted":  # close the file first: a launcher may kill this process within 0.5 s
            name = signal.Signals(self.signals.numbers[0]).name
            self._record("interrupted", f"by {name}; updates under way are not applied")
            complete = self._close(status, x)
            if not ends_all and not isinstance(self.transport, InProcessTransport):  # the last line may come too late
                log.warning("%s: interrupted by %s, %s; saving a checkpoint", self.job.output, name, self._summary())
        if self.checkpointer and not ends_all and (status == "completed" or self.signals.numbers):
            self._finish_checkpoint()
        dropped = 0 if ends_all else self.transport.shut_down(self._patience(0.8))
        if self.checkpointer:
            self.checkpointer.close()
        if status != "interrupted":
            dropped += self.schedule.clock.held_count
            if dropped:
                self._record("dropped", f"{dropped} updates were under way at the end and not applied")
            complete = self._close(status, x)
        self._observed = [observer.close() for observer in self.observers]
        self._reports.flush(now=True)
        return complete

    def _contact_times(self) -> tuple[float, float]:
        """Means over the contacts with a delay in real time: what that was, and how long they took (s)."""
        clock = self.schedule.clock
        if not (isinstance(clock, RealClock) and clock.contacts):
            return np.nan, np.nan
        return clock.asked / clock.contacts, clock.took / clock.contacts

    def _on_fractions(self) -> list[float]:
        """(n,) the fraction of the run that each client was on."""
        timeline, end = self.schedule.clock.timeline, self.loop.evaluated
        if timeline is None or not end:
            return [1.0] * self.clients.n
        return [timeline.on_seconds(i, 0.0, end) / end for i in range(self.clients.n)]

    def _record(self, kind: str, text: str) -> None:
        self.writer.append(EventRow(self._event_time(), kind, -1, text))

    def _event_time(self) -> float:
        """The time (s) of an event now: never before the last recorded row."""
        return max(self.loop.time, self.schedule.clock.time)

    def _finish_checkpoint(self) -> None:
        """Waits for the checkpoint that the end or a signal requested, or that is in progress."""
        assert self.checkpointer
        try:
            self.checkpointer.finish(self._event_time(), self._patience(0.7))
        except RunFailed as error:
            self._report("the last checkpoint failed", error)

    def _close(self, status: str, x: np.ndarray | None) -> bool:
        """Finishes evaluations and closes the run file; whether it is complete."""
        complete = True
        try:
            try:
                self.evaluator.close()
            except Exception as error:  # also of a user's metric or loss
                if status != "failed":  # else the cause has been logged
                    text = str(error)
                    if not isinstance(error, RunFailed):
                        log.error("an evaluation failed", exc_info=error)
                        text = describe_unexpected(error)
                    self._report("the run failed", RunFailed(text))
                    self._record("failed", text)
                status, x, complete = "failed", None, False
            if (keep := self.evaluator.keep) and self.evaluator.kept is not None:
                self.writer.best_model = self.evaluator.kept, keep.row
            self.writer.close(status, x)
        except RunFailed as error:
            if status != "failed":
                self._report("the run failed", error)
            return False
        finally:
            self._closed.set()
        return complete

    def _patience(self, share: float) -> float:
        """How long to wait for the other ranks (s): after a signal, at most this share of the time that is left."""
        return min(self.job.faults.patience or inf, share * self.signals.left(self.job.faults.grace))

    def _out_of_time(self, number: signal.Signals) -> None:
        """Closes the run file as it is, and ends the process; a thread calls it when `faults.grace` is over.

        The main thread computes, or waits, and does not come back.
        """
        computing, name = self.transport.computing, number.name
        status, code, x = self._ended or self._state_now(number)
        if self._ended:
            why = "the ranks, the last checkpoint or an evaluation did not end"
        elif computing:
            why = f"{list_numbers('client', computing)} did not end computing"
        else:
            why = "the server did not end what it was doing"
        why = f"{why} within faults.grace={self.job.faults.grace:g} s of {name}"
        if not self._closed.is_set():
            if status != "completed":
                self._record(status, f"by {name}; {why}")
            closing = threading.Thread(target=lambda: self.writer.close(status, x), daemon=True)
            closing.start()
            closing.join(CLOSE_TIMEOUT)  # the disk may be what hangs
        hint = self._resume_hint(status)
        log.error("%s; %s: %s, %s%s", why, self.job.output, status, self._summary(), hint)
        if not (isinstance(self.transport, InProcessTransport) and self.signals.interrupt_main(number)):
            self.end_process(code)

    def _state_now(self, number: int) -> tuple[str, int, np.ndarray | None]:
        """Status, exit code and model of a run that a signal ends at once, where its loop does not come back.

        While clients compute in this process, the server is between two of its rules. Otherwise one of them may have
        half changed the model, so that there is none, as after a failure.
        """
        if self.transport.computing:
            return "interrupted", exit_code(number), self.job.algorithm.model(self.loop.server)
        return "failed", exit_code(number), None

    def _summary(self) -> str:
        return summary(self.loop.updates, self.loop.time, self.evaluator.latest, self._notes())

    def _notes(self) -> list[str]:
        """Clauses of the final line on what a reader of the result has to know; none after an ordinary run."""
        notes = self.loop.failures.notes()
        notes += filter(None, self._observed)
        every = self.job.evaluate.every if isinstance(self.schedule, LiveSchedule) else inf
        one_process = isinstance(self.transport, InProcessTransport)
        if overload := describe_overload(self.evaluator.max_age, every, one_process):
            notes.append(overload)
        notes += filter(None, [describe_slow_contacts(*self._contact_times())])
        if self.checkpointer and self.checkpointer.failed > 1:
            notes.append(f"the last {self.checkpointer.failed} checkpoints failed: {self.checkpointer.failure}")
        if not self.loop.updates and self.loop.failures.refusals:
            notes.append(self._first_refusal())
        return notes

    def _first_refusal(self) -> str:
        return f"the first refusal: {self.loop.failures.first_refusal}"

    def _resume_hint(self, status: str) -> str:
        if status == "completed" or not self.checkpointer or not self.checkpointer.complete:
            return ""
        return f"; to continue: mpifl resume {self.job.output}"

    def _ending(self) -> Ending:
        """Why the run ends now, if it does: a target, or a signal. Lets threads that write and evaluate run.

        Raises RunFailed where rows could not be written.
        """
        if self.transport.signals and not self.signals.numbers:
            self.signals.add(self.transport.signals[0])
        if self.signals.numbers:
            return "interrupted"
        self.writer.check()
        self.evaluator.turns.give()
        if self._reports.waiting:
            self._reports.flush()
        return "stopped" if self.evaluator.reached else ""
