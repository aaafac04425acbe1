"""Evaluates models in a thread of its own, so that aggregation never waits for an evaluation."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np

from mpifl.checkpoint.snapshot import EvaluatorState, PendingEvaluation
from mpifl.errors import ConfigError, RunFailed
from mpifl.interpreter_turns import InterpreterTurns
from mpifl.objective import Vector
from mpifl.runfile.fairness import summarise
from mpifl.runfile.tables import ClientEvaluationRow, EvaluationRow, EventRow, MetricRow
from mpifl.server.evaluation_metrics import load_metrics, measure

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.runfile.writer import RunWriter

log = logging.getLogger(__package__)

QUEUE_LIMIT = 4  # models that may wait to be evaluated


class Watch:
    """The best value of a metric so far."""

    def __init__(self, metric: str, values: Iterable[float] = ()) -> None:
        """values: at the evaluations so far."""
        self.metric, self.value, self.row, self.rows = metric, nan, -1, 0
        for value in values:
            self.add(value)

    def add(self, value: float) -> bool:
        """Takes note of the next evaluation's value; whether it is better than all before."""
        higher = self.metric.endswith("accuracy")
        better = not isnan(value) and (isnan(self.value) or (value > self.value if higher else value < self.value))
        if better:
            self.value, self.row = value, self.rows
        self.rows += 1
        return better

    @property
    def age(self) -> int:
        """The number of evaluations after the best one."""
        return self.rows - 1 - self.row


class Evaluator:
    """Evaluates models in order of submission and records the results.

    Under the real clock models are skipped while `QUEUE_LIMIT` others wait, and an event records that; a deterministic
    run waits instead. If it has a target accuracy, a deterministic run waits for every result.
    """

    def __init__(
        self, problem: Problem, writer: RunWriter, job: Job, *, deterministic: bool, ends: bool = True,
        alone: bool = False, saved: EvaluatorState | None = None,
    ) -> None:  # fmt: skip
        """ends: the run ends at the job's target or plateau. deterministic: the order of its events can be repeated.

        alone: wait for each evaluation, since it draws from generators that clients of this process use. saved: the
        state in the checkpoint from which the run continues, whose rows `writer` has.
        """
        self._problem, self._writer, self._settings = problem, writer, job.evaluate
        self._penalty, self._mapping = job.algorithm.penalty, job.algorithm.gradient_mapping
        self._deterministic, self._alone = deterministic, alone
        self._metrics = load_metrics(job.evaluate.metrics)
        self._first = np.empty(0)  # (n,) a client's own accuracy until it reports one
        if job.algorithm.personal_models:
            problem.begin_evaluation(0)
            self._first = problem.client_accuracies(problem.initial(job.seed))
        counts = writer.counts()
        self._rows = counts["evaluations"]
        self._tested = counts["client_evaluations"] // self._rows if self._rows else 0  # clients with rows of their own
        self._accuracy = job.stop.accuracy if ends else None
        plateau = job.stop.plateau if ends else None
        self._patience = plateau.rows(job.evaluate.train_every) if plateau else 0
        self._plateau, self.keep = self._watch(plateau.metric if plateau else None), self._watch(job.keep.best)
        self.reached = saved.reached if saved else False  # whether the target accuracy has been reached
        self.best_personal = saved.best if saved else nan  # the highest mean personal accuracy so far (BMTA)
        self.kept: Vector | None = saved.kept if saved else None  # (d,) the best model by the metric of `keep`
        self._done = self.best_personal, self.kept  # both after the last model that is no longer pending
        self._failed: RunFailed | None = None  # the error of a user's metric
        self._pool = ThreadPoolExecutor(1, "evaluate")
        self._pending: deque[tuple[Future[tuple[float, Vector]], PendingEvaluation]] = deque()
        self._submitted = self._rows  # models, those of earlier sessions included
        self._skipped: PendingEvaluation | None = None  # the last request if it was skipped, else None
        self.latest: dict[str, float] = {}  # the metrics of the last evaluation
        self.turns = InterpreterTurns()
        self.max_age = 0.0  # s, the most by which an evaluation was late
        for each in saved.pending if saved else ():
            self.submit(each)

    def _watch(self, metric: str | None) -> Watch | None:
        """The best value of a metric in the rows so far."""
        return Watch(metric, self._writer.read("evaluations", 0, self._rows)[metric].tolist()) if metric else None

    def __call__(self, request: PendingEvaluation) -> None:
        """Queues a model. Raises what an earlier evaluation raised."""
        self.max_age = max(self.max_age, request.age or 0.0)
        self._collect()
        if len(self._pending) >= QUEUE_LIMIT:
            if not self._deterministic:
                if not self._skipped:  # one event for all until the next evaluation: thousands may come in a second
                    text = f"{QUEUE_LIMIT} models were still waiting"
                    self._writer.append(
                        EventRow(request.time, "evaluation-skipped", -1, text, request.updates, request.version)
                    )
                self._skipped = request
                return
            self._done = self._pending.popleft()[0].result()
        self._skipped = None
        self.submit(request)
        if self._deterministic and (self._accuracy is not None or self._plateau):
            self._done = self._pending.pop()[0].result()

    def submit(self, request: PendingEvaluation) -> None:
        """Queues a model, also beyond `QUEUE_LIMIT`."""
        future = self._pool.submit(self._run, request)
        self._pending.append((future, request))
        self._submitted += 1
        if self._alone:
            wait([future])

    def save(self) -> tuple[EvaluatorState, dict[str, int]]:
        """The state that a resume continues from, and how many rows the run file's tables have by then. Raises what an
        evaluation raised."""
        self._collect()
        best, kept = self._done
        done = self._submitted - len(self._pending)
        rows = {"evaluations": done, "client_evaluations": done * self._tested, "metrics": done * len(self._metrics)}
        return EvaluatorState(best, self.reached, [request for _, request in self._pending], kept), rows

    def _collect(self) -> None:
        while self._pending and self._pending[0][0].done():
            self._done = self._pending.popleft()[0].result()

    def _run(self, request: PendingEvaluation) -> tuple[float, Vector]:
        with self.turns.working():
            self._evaluate(request)
            return self.best_personal, self.kept

    def _evaluate(self, request: PendingEvaluation) -> None:
        x, accuracies = request.model, request.accuracies
        self._problem.begin_evaluation(request.version)
        training = self._rows % self._settings.train_every == 0
        own: np.ndarray | None = None  # (n,) accuracies on the clients' own test rows
        if self._settings.clients:
            metrics, own = self._problem.evaluate_with_clients(x, training)
            metrics |= {f"client_accuracy_{name}": value for name, value in summarise(own).items()}
        else:
            metrics = self._problem.evaluate(x, training)
        metrics["train_loss"] += self._penalty(x)
        if self._settings.gradient and training:
            metrics |= self._gradient_norms(x)
        if accuracies is not None:
            accuracies = np.where(np.isnan(accuracies), self._first, accuracies)
            metrics |= self._personal_accuracies(accuracies)
        self.latest = metrics
        further = self._metric_rows(x)
        if log.isEnabledFor(logging.DEBUG):
            known = ", ".join(f"{key} {value:.4g}" for key, value in metrics.items() if not isnan(value))
            log.debug("evaluation at %.4g s, %s updates: %s", request.time, f"{request.updates:,}", known)
        age = nan if request.age is None else request.age
        self._writer.append(EvaluationRow(request.time, request.updates, request.version, age=age, **metrics))
        if own is not None:
            rows = self._client_rows(own, accuracies)
            self._tested = len(rows)
            self._writer.extend(rows)
        self._writer.extend(further)
        self._rows += 1
        if self._accuracy is not None and metrics.get("test_accuracy", 0.0) >= self._accuracy:
            self.reached = True
        if self.keep and self.keep.add(metrics.get(self.keep.metric, nan)):
            self.kept = x
        if self._plateau:
            self._plateau.add(metrics.get(self._plateau.metric, nan))
            self.reached |= self._plateau.age >= self._patience

    def _gradient_norms(self, x: Vector) -> dict[str, float]:
        with np.errstate(over="ignore", invalid="ignore"):  # the run may have diverged; the setting belongs to a thread
            gradient = self._problem.gradient(x)
            norms = {"gradient_norm": float(np.linalg.norm(gradient))}
            if (mapping := self._mapping(x, gradient)) is not None:
                norms["gradient_mapping"] = float(np.linalg.norm(mapping))
        return norms

    def _personal_accuracies(self, accuracies: np.ndarray) -> dict[str, float]:
        """Mean, quartiles, and the best mean so far (BMTA), over the clients that have test rows."""
        known = accuracies[~np.isnan(accuracies)]
        if not len(known):
            return {}
        mean, quartiles = float(known.mean()), np.percentile(known, [25, 50, 75]).tolist()
        self.best_personal = float(np.fmax(mean, self.best_personal))
        names = ("mean", "q25", "median", "q75", "best")
        return {f"personal_accuracy_{k}": v for k, v in zip(names, [mean, *quartiles, self.best_personal], strict=True)}

    def _metric_rows(self, x: Vector) -> list[MetricRow]:
        """The rows of an evaluation's metrics. Raises RunFailed where a user's function fails, or failed before: no
        evaluation is recorded after one that is missing."""
        if not self._metrics:
            return []
        if self._failed:
            raise self._failed
        found = self._problem.test_scores(x)
        assert found is not None  # `check_evaluation` has checked that
        try:
            return [MetricRow(self._rows, *each) for each in measure(self._metrics, *found).items()]
        except ConfigError as error:
            self._failed = RunFailed(str(error))
            raise self._failed from error

    def _client_rows(self, own: np.ndarray, personal: np.ndarray | None) -> list[ClientEvaluationRow]:
        """The rows of an evaluation's clients, from their accuracies (n,) under the global model and their own."""
        tested = np.flatnonzero(~np.isnan(own))
        columns = [tested, own[tested], np.full(len(tested), nan) if personal is None else personal[tested]]
        row = self._rows
        return [ClientEvaluationRow(row, *each) for each in zip(*(c.tolist() for c in columns), strict=True)]

    def close(self) -> None:
        """Finishes what is queued; the run's last model is always evaluated."""
        if self._skipped:
            self.submit(self._skipped)
        try:
            for future, _ in self._pending:
                future.result()
        finally:
            self._pool.shutdown()
