"""A small world for exact tests: quadratic clients in float64, and server runs in a forced order of arrivals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.checkpoint.snapshot import PendingEvaluation
from mpifl.client.worker import Worker
from mpifl.runfile.tables import AggregationRow, Row, UpdateRow
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.replayed_schedule import ReplaySchedule
from mpifl.server.loop import Ending, ServerLoop
from mpifl.transport.in_process import InProcessTransport

EXACT = 1e-12  # the tolerance of what holds exactly, but for rounding


def close(actual: object, expected: object, tolerance: float = EXACT) -> None:
    """Asserts equality up to `tolerance`, relative to the largest number expected where that exceeds 1."""
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))  # type: ignore[arg-type, call-overload]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)  # type: ignore[arg-type, call-overload]


# -- clients -----------------------------------------------------------------------------------------------------------
@dataclass
class Quadratic:
    """f(x) = 1/2 (x-c)' A (x-c), A given as its diagonal (d,) or a matrix (d, d)."""

    a: np.ndarray
    c: np.ndarray
    samples: int = 1
    share: float = 1.0
    clients: int = 1

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[slice]:
        return [slice(None)] * (epochs or steps)

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return self.a * (x - self.c) if self.a.ndim == 1 else self.a @ (x - self.c)

    def loss(self, x: np.ndarray, rows: object = None) -> float:
        return float((x - self.c) @ self.gradient(x)) / 2

    def fisher(self, x: np.ndarray) -> np.ndarray:
        return np.diag(self.matrix).copy()

    def accuracy(self, x: np.ndarray) -> float:
        return float("nan")

    @property
    def matrix(self) -> np.ndarray:
        return np.diag(self.a) if self.a.ndim == 1 else self.a

    def steps(self, x: np.ndarray, step: float, count: int = 1) -> np.ndarray:
        """G^count(x): gradient descent, written down independently of `mpifl.algorithms.common.local_solver`."""
        for _ in range(count):
            x = x - step * self.matrix @ (x - self.c)
        return x


def quadratics(
    a: Iterable, c: Iterable, samples: Iterable[int] | None = None, kind: type[Quadratic] = Quadratic
) -> list[Quadratic]:
    """One client for each curvature and optimum; scalars make 1-D clients."""
    pairs = [(np.atleast_1d(np.array(p, float)), np.atleast_1d(np.array(q, float))) for p, q in zip(a, c, strict=True)]
    n = len(pairs)
    s = list(samples) if samples else [1] * n
    return [kind(p, q, s[i], s[i] / sum(s), n) for i, (p, q) in enumerate(pairs)]


def random_quadratics(seed: int, n: int, d: int = 3, low: float = 0.5, high: float = 3.0) -> list[Quadratic]:
    """Clients with full matrices of eigenvalues in [low, high], optima from N(0, 1) and unequal sample counts."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(n)]
    return quadratics(
        [q @ np.diag(rng.uniform(low, high, d)) @ q.T for q in bases],
        rng.standard_normal((n, d)),
        rng.integers(1, 9, n).tolist(),
    )


def optimum(objectives: Sequence[Quadratic], weights: Iterable[float] | None = None) -> np.ndarray:
    """argmin sum_i w_i f_i."""
    w = [1.0] * len(objectives) if weights is None else list(weights)
    lhs = sum(p * o.matrix for p, o in zip(w, objectives, strict=True))
    return np.linalg.solve(lhs, sum(p * o.matrix @ o.c for p, o in zip(w, objectives, strict=True)))  # type: ignore[arg-type]


# -- orders of arrival -------------------------------------------------------------------------------------------------
@dataclass
class Scripted:
    """A clock that consumes updates in a given order of clients, one a second, whoever has been asked."""

    order: Iterable[int]
    time: float = 0.0
    deterministic: bool = True
    out: list[int] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self._order = iter(self.order)

    timed_out = is_stalled = False
    held = 0
    timeline = None

    @property
    def has_in_flight(self) -> bool:
        return bool(self.out)

    def start(self) -> None: ...

    def cancel(self, i: int) -> None:
        self.out.remove(i)

    def now(self) -> float:
        return self.time

    def on_seconds(self, i: int, seconds: float) -> float:
        return seconds

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        self.out.append(i)
        return 0.0

    def choose(self) -> int | None:
        """Whose update is next; None: nobody's."""
        return next(self._order, None)

    def next_update(self, source, deadline, stop=inf):  # type: ignore[no-untyped-def]
        deadline, due = min(deadline, stop), self.count + 1.0
        if due <= self.time:  # all were waiting for an aggregation
            due = self.time + 1.0
        if due > deadline or (i := self.choose()) is None:
            self.time = deadline
            return None
        self.out.remove(i)
        self.count += 1
        self.time = due
        return i, source.receive_from(i, inf)


class Picked(Scripted):
    """Any order at all: each number of `order` picks one of the clients that are at work."""

    def choose(self) -> int | None:
        pick = next(self._order, None) if self.out else None
        return None if pick is None else sorted(self.out)[pick % len(self.out)]


class Answers:
    """A source of updates whose clients answer at once, with nothing."""

    def receive_from(self, i: int, timeout: float = inf) -> Update:
        return Update((), 1)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        return None


@dataclass(frozen=True)
class Rounds:
    """A cohort for each round, as listed."""

    members: Sequence[list[int]]

    def sample(self, round: int, lost: Collection[int] = (), off: Collection[int] = ()) -> list[int]:
        return self.members[min(round, len(self.members) - 1)]


# -- runs --------------------------------------------------------------------------------------------------------------
@dataclass
class Log:
    """What happened, and the server's and the clients' states.

    `watch` sees it after every receipt, after every aggregation, and again when the event's answers are out.
    """

    watch: Callable[[Log], None] = lambda log: None
    updates: list[tuple] = field(default_factory=list)  # as `RunWriter.update` takes them
    aggregations: list[tuple] = field(default_factory=list)  # time, updates
    evaluations: list[tuple] = field(default_factory=list)  # time, updates, version
    events: list[tuple] = field(default_factory=list)  # time, kind, client, text, updates, version
    states: dict[int, str] = field(default_factory=dict)  # of the clients that are not live
    ages: list[float] = field(default_factory=list)  # of the evaluations
    evaluated: list[np.ndarray] = field(default_factory=list)
    models: list[np.ndarray] = field(default_factory=list)  # the model after each aggregation
    trail: list[np.ndarray] = field(default_factory=list)  # the model after each receipt and each aggregation
    sent: list[tuple[int, Message]] = field(default_factory=list)
    consumed: list[tuple[int, Update]] = field(default_factory=list)
    bases: list[np.ndarray] = field(default_factory=list)  # the models that the consumed updates started from
    memories: dict[int, np.ndarray] = field(default_factory=dict)  # y_i in the last update consumed of each client
    server: State = field(default_factory=State)
    worker: Worker | None = None
    link: Watched | None = None

    @property
    def x(self) -> np.ndarray:
        return self.server.x

    @property
    def order(self) -> list[int]:
        return [row[1] for row in self.updates]

    def append(self, row: Row) -> None:
        if isinstance(row, UpdateRow):
            self.updates.append(row)
        elif isinstance(row, AggregationRow):
            self.aggregations.append(row)
            self.models.append(self.server.x.copy())
        else:
            self.events.append(row)

    def set_client_state(self, client: int, state: str) -> None:
        self.states[client] = state

    def record(self, timed: bool) -> ReplaySchedule:
        """The order of events, as a run file gives it to a replay."""
        updates = [(*row[:2], *row[8:11]) for row in self.updates]
        evaluations = [(*row, age) for row, age in zip(self.evaluations, self.ages, strict=True)]
        return ReplaySchedule(updates, self.aggregations, evaluations, timed)  # type: ignore[arg-type]


class Watched(InProcessTransport):
    """The in-process link, telling a log what passes."""

    def __init__(self, worker: Worker, log: Log) -> None:
        super().__init__(worker)
        self._log = log
        self.in_flight = self._arrived
        self._bases: dict[int, np.ndarray] = {}
        log.worker, log.link = worker, self

    def send(self, i: int, message: Message, delay: float) -> None:
        assert i not in self._arrived, f"client {i} was sent a message while it was at work"
        self._log.sent.append((i, message))
        if message.vectors:  # else the client goes on with what it has
            self._bases[i] = message.vectors[0].copy()
        super().send(i, message, delay)
        self.send_marker(0)  # the client computes at once, as it would on a rank of its own

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        update = super().receive_from(i, timeout)
        return update and self._passes(i, update)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        got = super().receive_any(timeout)
        return got and (got[0], self._passes(*got))

    def _passes(self, i: int, update: Update) -> Update:
        log = self._log
        log.consumed.append((i, update))
        log.bases.append(self._bases[i])
        assert log.worker
        if "y" in vars(log.worker.states[i]):
            log.memories[i] = log.worker.states[i].y
        return update


def run(
    algorithm: Algorithm,
    objectives: Sequence[Quadratic],
    order: Iterable[int] | None = None,
    *,
    x0: np.ndarray | float = 0.0,
    watch: Callable[[Log], None] = lambda log: None,
    seed: int = 0,
    clock: object = None,
    rates: np.ndarray | None = None,
    replay: ReplaySchedule | None = None,
    rounds: Sequence[list[int]] | None = None,
    **stop: float,
) -> Log:
    """Runs the server loop in process; the log of what happened.

    In a given order of arrivals, by a clock, or by the record of an earlier run. `rounds` makes any algorithm
    synchronous: each listed cohort starts from the newest model, and the server aggregates when all have answered
    (wants reply="deferred").
    """
    n, d = len(objectives), objectives[0].c.size
    x0 = np.full(d, x0) if np.isscalar(x0) else np.array(x0, float)
    log = Log(watch)
    hooks: dict[str, Callable] = {}
    for rule in ("receive", "aggregate"):
        hooks[rule] = _watched(getattr(algorithm, rule), log)
    if rounds is not None:
        order = [i for members in rounds for i in members]
        hooks["participation"] = lambda clients, seed: Rounds(rounds)
        hooks["aggregation_trigger"] = lambda: None
    order = list(order) if order is not None else None
    if order is not None:
        stop.setdefault("stop_updates", len(order))
    link = Watched(Worker(algorithm, x0, dict(enumerate(objectives))), log)
    trigger = hooks.get("aggregation_trigger", algorithm.aggregation_trigger)
    schedule = replay or LiveSchedule(clock or Scripted(order or ()), trigger(), seed, **stop)  # type: ignore[arg-type]
    clients = Clients(np.array([o.samples for o in objectives]), rates, seed)
    log.server = algorithm.init_server(x0, clients)
    log.memories.update(dict.fromkeys(range(n), x0))

    def evaluate(request: PendingEvaluation) -> bool:
        log.evaluations.append((request.time, request.updates, request.version))
        log.ages.append(request.age)
        log.evaluated.append(request.model.copy())
        return False

    def ending() -> Ending:
        watch(log)
        return ""

    for name, hook in hooks.items():
        object.__setattr__(algorithm, name, hook)
    try:
        ServerLoop(algorithm, log.server, clients, link, schedule, log, evaluate, seed).run(ending)
    finally:
        for name in hooks:
            object.__delattr__(algorithm, name)
    return log


def _watched(rule: Callable, log: Log) -> Callable:
    def watched(*args) -> None:  # type: ignore[no-untyped-def]
        rule(*args)
        log.trail.append(log.server.x)
        log.watch(log)

    return watched
