"""Evaluation beside the run: models are measured in a thread of their own, so that aggregation never waits for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import isnan, nan
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mpifl.objective import Vector

if TYPE_CHECKING:
    from mpifl.storage import RunWriter

QUEUE = 4  # models that may wait to be measured
Asked = tuple[float, int, int, Vector, np.ndarray | None]  # time (s), updates, version, model (d,), accuracies (n,)


class Evaluator:
    """Measures models in order of submission and records the results.

    Under the real clock a model that finds `QUEUE` others waiting is passed over, and an event says so; a
    deterministic run waits instead, and where it may end by accuracy it waits for every result.
    """

    def __init__(
        self,
        problem: Measured,
        record: RunWriter,
        *,
        deterministic: bool,
        accuracy: float | None,
        gradient: bool = False,
        penalty: Callable[[Vector], float] = lambda x: 0.0,
        first: np.ndarray | float = nan,
        best: float = nan,
    ) -> None:
        """gradient: whether its norm is measured as well; penalty(x): added to the training loss;
        first (n,): what stands for the personal accuracy of a client that has told none yet; best: BMTA so far."""
        self._problem, self._record = problem, record
        self._gradient, self._penalty, self._first, self.best = gradient, penalty, first, best
        self._deterministic, self._accuracy = deterministic, accuracy
        self._pool = ThreadPoolExecutor(1, "evaluate")
        self._pending: deque[tuple[Future[float], Asked]] = deque()
        self._best = best  # BMTA of the models that are no longer pending
        self._submitted = 0
        self._passed_over: Asked | None = None
        self.reached = False
        self.latest: dict[str, float] = {}

    def __call__(self, time: float, updates: int, version: int, x: Vector, personal: np.ndarray | None = None) -> bool:
        """Queues a model; whether the target accuracy has been reached. Raises what an earlier measurement raised.

        personal (n,): the clients' accuracies under their own models, NaN where a client has told none yet.
        """
        while self._pending and self._pending[0][0].done():
            self._best = self._pending.popleft()[0].result()
        if len(self._pending) >= QUEUE:
            if not self._deterministic:
                self._passed_over = (time, updates, version, x, personal)
                self._record.event(time, "evaluation-skipped", -1, f"{QUEUE} models were still waiting")
                return self.reached
            self._best = self._pending.popleft()[0].result()
        self._passed_over = None
        self.submit((time, updates, version, x, personal))
        if self._deterministic and self._accuracy is not None:
            self._best = self._pending.pop()[0].result()
        return self.reached

    def submit(self, asked: Asked) -> None:
        """Queues a model, however many wait."""
        self._pending.append((self._pool.submit(self._measure, *asked), asked))
        self._submitted += 1

    def pending(self) -> tuple[int, float, list[Asked]]:
        """How many models have been measured, their BMTA, and the models that wait. Raises what measuring raised."""
        while self._pending and self._pending[0][0].done():
            self._best = self._pending.popleft()[0].result()
        return self._submitted - len(self._pending), self._best, [asked for _, asked in self._pending]

    def _measure(self, time: float, updates: int, version: int, x: Vector, personal: np.ndarray | None) -> float:
        metrics = self._problem.evaluate(x)
        metrics["train_loss"] += self._penalty(x)
        if self._gradient:
            metrics["gradient_norm"] = self._problem.gradient_norm(x)
        if personal is not None:
            metrics |= self._spread(np.where(np.isnan(personal), self._first, personal))
        self.latest = metrics
        self._record.evaluation(time, updates, version, **metrics)
        if self._accuracy is not None and metrics.get("test_accuracy", 0.0) >= self._accuracy:
            self.reached = True
        return self.best

    def _spread(self, accuracies: np.ndarray) -> dict[str, float]:
        """Mean, quartiles, and the best mean so far (BMTA), over the clients that have test rows."""
        known = accuracies[~np.isnan(accuracies)]
        if not len(known):
            return {}
        mean, quartiles = float(known.mean()), np.percentile(known, [25, 50, 75]).tolist()
        self.best = max(mean, mean if isnan(self.best) else self.best)
        names = ("mean", "q25", "median", "q75", "best")
        return {f"personal_accuracy_{k}": v for k, v in zip(names, [mean, *quartiles, self.best], strict=True)}

    def close(self) -> None:
        """Finishes what is queued; the run's last model is always measured."""
        if self._passed_over:
            self.submit(self._passed_over)
        try:
            for future, _ in self._pending:
                future.result()
        finally:
            self._pool.shutdown()


class Measured(Protocol):
    """What is evaluated (`mpifl.problems`)."""

    def evaluate(self, x: Vector) -> dict[str, float]: ...

    def gradient_norm(self, x: Vector) -> float: ...
