"""A run on rank 0, from the moment when all ranks are ready to its end: the loop, what watches it, what is written."""

from __future__ import annotations

import logging
import resource
import signal
import sys
import time
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from mpifl.algorithms.base import Clients, State
from mpifl.errors import RunFailed
from mpifl.scheduling.live import LiveSchedule
from mpifl.scheduling.replay import ReplaySchedule
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.evaluator import EvaluationRequest, Evaluator
from mpifl.server.loop import ServerLoop
from mpifl.server.outcome import Outcome
from mpifl.server.progress import progress_bar, summary
from mpifl.signals import SignalRecorder, exit_code
from mpifl.storage.tables import EventRow
from mpifl.transport.base import ServerTransport

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.server.resume import ResumePoint
    from mpifl.storage import RunWriter
    from mpifl.storage.checkpoint import ServerSnapshot


log = logging.getLogger("mpifl")


class Session:
    """One run. Raises nothing that it has not recorded."""

    def __init__(
        self, job: Job, problem: Problem, server: State, clients: Clients, link: ServerTransport,
        schedule: LiveSchedule | ReplaySchedule, writer: RunWriter, resumed: ResumePoint | None,
        signals: SignalRecorder,
    ) -> None:  # fmt: skip
        self._job, self._link, self._writer, self._schedule = job, link, writer, schedule
        self._error = ""  # why the run failed, or was not saved
        self._stuck: set[int] = set()  # ranks that have not ended
        self._signals = signals
        plan = schedule if isinstance(schedule, LiveSchedule) else None
        snapshot = resumed.snapshot if resumed else None
        self._earlier = snapshot.wall_seconds if snapshot else 0.0  # s of the run, before it was resumed
        self.evaluator = Evaluator(
            problem, writer, deterministic=schedule.deterministic,
            accuracy=job.stop.accuracy if plan else None,  # a record ends where it ends
            gradient=job.evaluate.gradient, penalty=job.algorithm.penalty,
            first=problem.client_accuracies(problem.initial(job.seed)),
            best=snapshot.evaluator.best if snapshot else np.nan,
        )  # fmt: skip
        updates = snapshot.loop.updates if snapshot else 0
        self._bar = progress_bar(job.stop, self.evaluator, updates)
        self.checkpointer = None
        if plan:
            self.checkpointer = Checkpointer(
                writer, self.evaluator, link, plan, job.algorithm, self._wall_seconds, job.faults.lost == "rehost",
                snapshot,
            )  # fmt: skip
        self.loop = ServerLoop(
            job.algorithm, server, clients, link, schedule, writer, self.evaluator, job.seed, job.faults,
            self.checkpointer, [self._bar] if self._bar else [],
        )  # fmt: skip
        if resumed:
            self._resume(resumed.snapshot, resumed.passed)

    def _wall_seconds(self) -> float:
        """Since the run began, earlier sessions included."""
        return self._earlier + time.perf_counter() - self._begin

    def _resume(self, snapshot: ServerSnapshot, passed: Sequence[str]) -> None:
        """Restores the server; passed: why newer checkpoints were passed over."""
        self.loop.load(snapshot.loop)
        self.loop.time = snapshot.time
        self.evaluator.reached = snapshot.evaluator.reached
        for each in snapshot.evaluator.pending:
            request = EvaluationRequest(each.time, each.updates, each.version, each.model, each.accuracies)
            self.evaluator.submit(request)
        text = "; ".join([f"from checkpoint {snapshot.number}", *passed])
        self._writer.append(EventRow(snapshot.time, "resumed", -1, text, self.loop.updates, self.loop.version))

    # -- the run -------------------------------------------------------------------------------------------------------
    def run(self) -> Outcome:
        """Runs it to its end."""
        writer = self._writer
        status, code = "failed", 3
        x: np.ndarray | None = None  # a run that fails keeps the model that it began with
        self._begin, cpu = time.perf_counter(), time.process_time()
        if not self._earlier:
            writer.set_attr("began", time.time())
        try:
            if isinstance(self._schedule, LiveSchedule):
                self._schedule.clock.start()
            with np.errstate(over="ignore", invalid="ignore"):
                ended = self.loop.run(self._stopped, self._interrupted)
            x = self._job.algorithm.model(self.loop.server)
            status, code = ("completed", 0) if ended else ("interrupted", exit_code(self._signals.numbers[0]))
        except RunFailed as error:
            self._report("the run failed", error)
            lines = str(error).splitlines()  # of a rank's traceback: where, and what
            writer.append(EventRow(self._at(), "failed", -1, " ".join(dict.fromkeys([lines[0], lines[-1]]))))
        except Exception as error:
            writer.append(EventRow(self._at(), "failed", -1, f"{type(error).__name__}: {error}"))
            raise
        finally:
            whole = self._end(status, code, x, cpu)
        if not whole:
            status, code = "failed", 3
        line = summary(self.loop.updates, self.loop.time, self.evaluator.latest)
        line = f"{self._job.output}: {status}, {line}{self._goes_on(status)}"
        return Outcome(self._job.output, status, code, line, self._error, frozenset(self._stuck))

    def _report(self, what: str, error: RunFailed) -> None:
        """Logs at once what went wrong: the end of the other ranks may take long."""
        self._error = str(error)
        log.error("%s: %s", what, error)

    def _end(self, status: str, code: int, x: np.ndarray | None, cpu: float) -> bool:
        """Whether the file has all that it should."""
        writer, at = self._writer, self._at()
        wall, cpu = time.perf_counter() - self._begin, time.process_time() - cpu
        writer.set_attr("wall_seconds", self._earlier + wall)
        writer.set_attr("server_cpu_share", cpu / wall)
        writer.set_attr("peak_rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if self._bar:
            self._bar.close()
        unexpected, whole = sys.exc_info()[0] is not None, True  # an unexpected error ends all ranks at once
        if status == "interrupted":  # a launcher may leave us half a second: the file first
            name = signal.Signals(self._signals.numbers[0]).name
            writer.append(EventRow(at, "interrupted", -1, f"by {name}; updates under way are not applied"))
            whole = self._close(status, x)
        if self.checkpointer and not unexpected and self._signals.numbers:
            self._save_last(at)
        dropped = 0 if unexpected else self._link.shut_down(code, self._job.faults.patience or inf)
        self._stuck = self._link.stuck_ranks
        if self.checkpointer:
            self.checkpointer.close()
        if status != "interrupted":
            if dropped:
                writer.append(
                    EventRow(at, "dropped", -1, f"{dropped} updates were under way at the end and not applied")
                )
            whole = self._close(status, x)
        return whole

    def _at(self) -> float:
        """The time (s) of what comes after all that was told so far."""
        now = self._schedule.clock.time if isinstance(self._schedule, LiveSchedule) else 0.0
        return max(self.loop.time, now)

    def _save_last(self, at: float) -> None:
        """Waits for the checkpoint that a signal asked for."""
        assert self.checkpointer
        try:
            self.checkpointer.finish(at, self.loop)
        except RunFailed as error:
            self._report("the run was not saved at its end", error)

    def _close(self, status: str, x: np.ndarray | None) -> bool:
        """Whether all was written; the ranks end as they would."""
        try:
            self.evaluator.close()
            self._writer.close(status, x)
        except RunFailed as error:
            if status != "failed":  # else it is known why
                self._report("the run failed", error)
            return False
        return True

    def _goes_on(self, status: str) -> str:
        if status == "completed" or not self.checkpointer or not self.checkpointer.complete:
            return ""
        return f"; saved, mpifl resume {self._job.output} goes on"

    def _interrupted(self) -> bool:
        """Whether a signal ends the run."""
        if self._link.signals and not self._signals.numbers:  # our own may still come, and is not a second one
            self._signals.numbers.append(self._link.signals[0])
        return bool(self._signals.numbers)

    def _stopped(self) -> bool:
        """Whether a target ends the run now. Raises RunFailed where rows could not be written."""
        self._writer.check()
        return self.evaluator.reached
