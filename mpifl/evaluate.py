"""Evaluation beside the run: models are measured in a thread of their own, so that aggregation never waits for one."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from mpifl.algorithms.base import Vector

if TYPE_CHECKING:
    from mpifl.records import RunWriter

QUEUE = 4  # models that may wait to be measured


class Evaluator:
    """Measures models in order of submission and records the results.

    Under the real clock a model that finds `QUEUE` others waiting is passed over, and an event says so; a
    deterministic run waits instead, and where it may end by accuracy it waits for every result.
    """

    def __init__(self, problem: Measured, record: RunWriter, *, deterministic: bool, accuracy: float | None) -> None:
        self._problem, self._record = problem, record
        self._deterministic, self._accuracy = deterministic, accuracy
        self._pool = ThreadPoolExecutor(1, "evaluate")
        self._pending: deque[Future[None]] = deque()
        self._passed_over: tuple[float, int, int, Vector] | None = None
        self.reached = False
        self.latest: dict[str, float] = {}

    def __call__(self, time: float, updates: int, version: int, x: Vector) -> bool:
        """Queues a model; whether the target accuracy has been reached. Raises what an earlier measurement raised."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        if len(self._pending) >= QUEUE:
            if not self._deterministic:
                self._passed_over = (time, updates, version, x)
                self._record.event(time, "evaluation-skipped", -1, f"{QUEUE} models were still waiting")
                return self.reached
            self._pending.popleft().result()
        self._passed_over = None
        self._pending.append(self._pool.submit(self._measure, time, updates, version, x))
        if self._deterministic and self._accuracy is not None:
            self._pending.pop().result()
        return self.reached

    def _measure(self, time: float, updates: int, version: int, x: Vector) -> None:
        self.latest = metrics = self._problem.evaluate(x)
        self._record.evaluation(time, updates, version, **metrics)
        if self._accuracy is not None and metrics.get("test_accuracy", 0.0) >= self._accuracy:
            self.reached = True

    def close(self) -> None:
        """Finishes what is queued; the run's last model is always measured."""
        if self._passed_over:
            self._pending.append(self._pool.submit(self._measure, *self._passed_over))
        try:
            for future in self._pending:
                future.result()
        finally:
            self._pool.shutdown()


class Measured(Protocol):
    """What is evaluated (`mpifl.problems`)."""

    def evaluate(self, x: Vector) -> dict[str, float]: ...
