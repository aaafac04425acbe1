"""Server and client side of an algorithm without a loop: a test decides on messages, updates and lost clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.algorithms.common.server_optimizers import Adagrad, Adam, AmsGrad, Momentum, Plain, Yogi
from mpifl.rng import stream
from tests.quadratic_runs import Log, Quadratic, random_quadratics, run


class World:
    """A server and its clients; `in_flight` has the updates that were sent and not received."""

    def __init__(
        self, algorithm: Algorithm, objectives: Sequence[Any], x0: np.ndarray, samples: Sequence[int] | None = None
    ) -> None:
        self.algorithm, self.objectives = algorithm, objectives
        self.clients = Clients(np.array(samples or [o.samples for o in objectives]), seed=3)
        self.server = algorithm.init_server(x0, self.clients)
        self.states = {i: algorithm.init_client(x0, i) for i in range(len(objectives))}
        self.messages_sent = dict.fromkeys(self.states, 0)  # number of messages to each client
        self.version = 0
        self.in_flight: dict[int, Update] = {}
        self.received_states = dict(self.states)  # state of each client as of its last received update
        self._after: dict[int, State] = {}

    def message(self, i: int) -> Message:
        """The next message to client i."""
        sent = self.algorithm.message(self.server, i)._replace(version=self.version, round=self.messages_sent[i])
        self.messages_sent[i] += 1
        return sent

    def contact(self, i: int) -> Update:
        """A message to client i and its update, which is then in flight."""
        update = self.algorithm.train(self.states[i], self.message(i), self.objectives[i])
        self.in_flight[i], self._after[i] = update._replace(compute=0.1, exchange=0.1), snapshot(self.states[i])
        return update

    def receive(self, i: int) -> Update:
        """The server receives the update of client i."""
        update = self.in_flight.pop(i)
        self.algorithm.receive(self.server, i, update, 0)
        self.received_states[i] = self._after[i]
        return update

    def aggregate(self) -> None:
        self.algorithm.aggregate(self.server)
        self.version += 1

    def arrival(self, i: int) -> bool:
        """A contact of client i and its consequences, without rounds: whether the server has aggregated."""
        self.contact(i)
        self.receive(i)
        if aggregates := self.algorithm.ready(self.server) is not False:
            self.aggregate()
        return aggregates

    def round(self, members: Iterable[int], lost: int | None = None, after: int = 0) -> None:
        """A synchronous round; the member `lost` is lost after `after` updates of the others."""
        members = list(members)
        unique = list(dict.fromkeys(members))
        self.algorithm.begin_round(self.server, members)
        for i in unique:
            self.contact(i)
        others = [i for i in unique if i != lost]
        for k, i in enumerate([*others, None]):
            if k == after and lost is not None:
                self.algorithm.on_client_lost(self.server, lost)
                del self.in_flight[lost]
            if i is not None:
                self.receive(i)
        self.aggregate()


def snapshot(state: State) -> State:
    """The state as it is now: client rules change no vector in place."""
    return State(**vars(state))


OPTIMIZERS = [Plain(), Momentum(), Adagrad(), Adam(), Yogi(), AmsGrad()]


class ByHand:
    """An optimiser of d coordinates, one by one with Python's floats."""

    def __init__(self, optimizer: Any, d: int) -> None:
        self.optimizer, self.name = optimizer, optimizer.name
        self.tau, v0 = getattr(optimizer, "tau", 0.0), getattr(optimizer, "v0", 0.0)
        self.m, self.v = [0.0] * d, [self.tau**2 if v0 is None else v0] * d
        self.top = list(self.v)

    def change(self, ds: np.ndarray, eta: float) -> np.ndarray:
        """By how much x moves with the mean update d."""
        return np.array([eta * self.direction(k, d) for k, d in enumerate(ds.tolist())])

    def direction(self, k: int, d: float) -> float:
        o, square, v = self.optimizer, d**2, self.v
        if self.name == "plain":
            return d
        if self.name == "momentum":
            self.m[k] = o.beta * self.m[k] + d
            return self.m[k]
        self.m[k] = o.beta1 * self.m[k] + (1 - o.beta1) * d
        if self.name == "adagrad":
            v[k] += square
        elif self.name == "yogi":
            v[k] -= (1 - o.beta2) * square * ((v[k] > square) - (v[k] < square))
        else:
            v[k] = o.beta2 * v[k] + (1 - o.beta2) * square
        self.top[k] = max(self.top[k], v[k])
        return self.m[k] / ((self.top[k] if self.name == "amsgrad" else v[k]) ** 0.5 + self.tau)


class Passes(Quadratic):
    """A quadratic an epoch of which is `samples` batches; batch j adds (-1)^j/(1 + j) to each entry of the gradient."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list:
        return [j % self.samples for j in range(epochs * self.samples if epochs else steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return super().gradient(x) + ((-1) ** rows / (1 + rows) if isinstance(rows, int) else 0.0)


@dataclass
class Noisy(Quadratic):
    """A quadratic of 12 rows whose gradients differ, with random batches of two; all rows together are the quadratic.

    Row r adds e_r + h_r x to the gradient, and the sums of e_r and h_r are zero.
    """

    def __post_init__(self) -> None:
        rng = np.random.default_rng(crc32(self.c.tobytes()))
        self.e, self.h = rng.standard_normal((2, 12, self.c.size))
        self.e -= self.e.mean(0)
        self.h -= self.h.mean(0)
        self.keys: list[int] = []  # of all batches so far

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list:
        self.keys.append(round)
        rng = stream(0, "batch", round=round)
        return [rng.choice(12, 2, replace=False) for _ in range(epochs * 6 if epochs else steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        exact = super().gradient(x)
        return exact if rows is None else exact + (self.e[rows] + 0.3 * self.h[rows] * x).mean(0)  # type: ignore[index]


def noisy(seed: int, n: int) -> list[Noisy]:
    return [Noisy(o.a, o.c, o.samples, o.share, o.clients) for o in random_quadratics(seed, n)]


def in_rounds(
    algorithm: Algorithm, clients: Sequence[Quadratic], rounds: int, **more: Any
) -> tuple[Log, list[list[int]]]:
    """A run of so many rounds (or phases), and the members of each; a client that is drawn twice answers once."""
    drawn = algorithm.participation(Clients(np.array([o.samples for o in clients])), 0)
    assert drawn
    members = [drawn.sample(r) for r in range(rounds)]
    return run(algorithm, clients, [i for m in members for i in dict.fromkeys(m)], **more), members


def by_arrivals(
    order: Iterable[int], n: int, rule: Callable[[int, np.ndarray, int, np.ndarray], np.ndarray | None], reply: str
) -> list[np.ndarray]:
    """The models of an asynchronous rule by hand, from x = (1, 1, 1).

    rule(i, base, tau, x) is the model after an update of client i from `base`, tau models ago, or None where the update
    makes no new one; the client is then sent the model from before or after it.
    """
    x, version, models = np.ones(3), 0, []
    bases = [(x, 0)] * n
    for i in order:
        base, then = bases[i]
        new, old = rule(i, base, version - then, x), (x, version)
        if new is not None:
            x, version = new, version + 1
            models.append(x)
        bases[i] = (x, version) if reply == "after" else old
    return models


def random_sets(n: int, size: int, rounds: int) -> list[list[int]]:
    """So many of n clients a round, drawn at random."""
    rng = np.random.default_rng(5)
    return [sorted(rng.choice(n, size, replace=False).tolist()) for _ in range(rounds)]
