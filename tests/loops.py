"""A small world for exact tests: quadratic clients in float64, and server runs in a forced order of arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.links.inprocess import InProcess
from mpifl.links.schedule import Plan
from mpifl.serve import serve
from mpifl.work import Worker


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


def quadratics(a: Iterable, c: Iterable, samples: Iterable[int] | None = None) -> list[Quadratic]:
    """One client for each curvature and optimum; scalars make 1-D clients."""
    pairs = [(np.atleast_1d(np.array(p, float)), np.atleast_1d(np.array(q, float))) for p, q in zip(a, c, strict=True)]
    n = len(pairs)
    s = list(samples) if samples else [1] * n
    return [Quadratic(p, q, s[i], s[i] / sum(s), n) for i, (p, q) in enumerate(pairs)]


@dataclass
class Scripted:
    """A clock that consumes updates in a given order of clients, one a second, whoever has been asked."""

    order: Iterable[int]
    time: float = 0.0
    deterministic: bool = True
    out: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._order = iter(self.order)

    def start(self) -> None: ...

    def sent(self, i: int, round: int) -> float:
        self.out.append(i)
        return 0.0

    def next(self, link, deadline):  # type: ignore[no-untyped-def]
        i = next(self._order, None)
        if i is None:
            self.time = deadline
            return None
        self.out.remove(i)
        self.time += 1.0
        return i, link.take(i)


@dataclass
class Log:
    """What happened, and the server's and the clients' states, which `watch` sees after every event."""

    watch: Callable[[Log], None] = lambda log: None
    updates: list[tuple] = field(default_factory=list)  # time, client, version, staleness, steps, bytes, norm
    aggregations: list[tuple] = field(default_factory=list)
    models: list[np.ndarray] = field(default_factory=list)  # the model after each aggregation
    sent: list[tuple[int, Message]] = field(default_factory=list)
    consumed: list[tuple[int, Update]] = field(default_factory=list)
    server: State = field(default_factory=State)
    worker: Worker | None = None
    link: InProcess | None = None

    def update(self, *row) -> None:  # type: ignore[no-untyped-def]
        self.updates.append(row)

    def aggregation(self, *row) -> None:  # type: ignore[no-untyped-def]
        self.aggregations.append(row)
        self.models.append(self.server.x.copy())


class Watched(InProcess):
    """The in-process link, telling a log what passes."""

    def __init__(self, worker: Worker, log: Log) -> None:
        super().__init__(worker)
        self._log, log.worker, log.link = log, worker, self

    def send(self, i: int, message: Message, delay: float) -> None:
        self._log.sent.append((i, message))
        super().send(i, message, delay)

    def take(self, i: int) -> Update:
        update = super().take(i)
        self._log.consumed.append((i, update))
        return update

    @property
    def in_flight(self) -> dict[int, Update]:
        return self._ready


def run(
    algorithm: Algorithm,
    objectives: list[Quadratic],
    order: Iterable[int] | None = None,
    *,
    x0: np.ndarray | float = 0.0,
    watch: Callable[[Log], None] = lambda log: None,
    seed: int = 0,
    clock: object = None,
    rates: np.ndarray | None = None,
    **stop: float,
) -> Log:
    """Runs the server loop in process; the log of what happened."""
    n, d = len(objectives), objectives[0].c.size
    x0 = np.full(d, x0) if np.isscalar(x0) else np.array(x0, float)
    order = list(order) if order is not None else None
    if order is not None:
        stop.setdefault("stop_updates", len(order))
    log = Log(watch)
    link = Watched(Worker(algorithm, x0, dict(enumerate(objectives))), log)
    plan = Plan(clock or Scripted(order), algorithm.when(), seed, **stop)  # type: ignore[arg-type]
    clients = Clients(np.array([o.samples for o in objectives]), rates)
    init = algorithm.init_server

    def init_server(x0, clients):  # type: ignore[no-untyped-def]
        log.server = init(x0, clients)
        return log.server

    def stopped() -> bool:
        watch(log)
        return False

    object.__setattr__(algorithm, "init_server", init_server)
    try:
        serve(algorithm, clients, x0, link, plan, log, lambda *a: False, seed, stopped)
    finally:
        object.__delattr__(algorithm, "init_server")
    return log
