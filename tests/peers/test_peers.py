"""Rules beside the classes of other frameworks, on the same numbers: `make peers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Message, Update
from mpifl.algorithms.common.server_optimizers import Adagrad, Adam, Momentum, Optimizer, Yogi
from mpifl.algorithms.fedasync import FedAsync
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.fedcompass import LATE, NONE
from mpifl.algorithms.feddyn import FedDyn
from mpifl.algorithms.fednova import FedNova
from mpifl.algorithms.participation import Trigger
from mpifl.algorithms.scaffold import Scaffold
from mpifl.scheduling.clocks import VirtualClock
from tests.algorithms.test_fedcompass import NOTES, Noted
from tests.algorithms.world import World
from tests.peers.environments import drive, missing
from tests.quadratic_runs import Picked, Quadratic, random_quadratics, run

pytestmark = [pytest.mark.long, pytest.mark.peers]
TOLERANCE = 1e-9
ROUNDS = 30
Record = Callable[[str, object], None]


@pytest.fixture
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Runs a case of a peer's driver; skips the test where the peer is not installed."""
    name = request.param
    if reason := missing(name):
        pytest.skip(reason)
    return lambda case, options, **arrays: drive(name, tmp_path, case, options, **arrays)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", [name], indirect=True)


def compare(record: Record, **pairs: tuple[Any, Any]) -> None:
    """Asserts that ours and theirs differ by at most TOLERANCE, relative to the largest number where that exceeds 1."""
    for name, (ours, theirs) in pairs.items():
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype == np.float64, name
        assert np.isfinite(ours).all() and np.ptp(ours) > 0.01, f"{name}: nothing happens"
        apart = float(np.abs(ours - theirs).max() / max(1.0, np.abs(ours).max()))
        record(f"largest difference of {name}", f"{apart:.1e}")
        print(f"{name}: largest difference {apart:.1e}")
        assert apart <= TOLERANCE, name


class Noting(World):
    """Notes the updates of each round, and vectors of the server's state after it."""

    def __init__(self, algorithm: Any, clients: list[Quadratic], *names: str) -> None:
        super().__init__(algorithm, clients, np.ones(clients[0].c.size))
        self.uploads: list[list] = []
        self.noted: dict[str, list] = {name: [] for name in names}
        self._draw = np.random.default_rng(5)

    def next_round(self) -> None:
        """A round of a random cohort."""
        self.uploads.append([])
        size, n = self.algorithm.cohort, len(self.objectives)  # type: ignore[attr-defined]
        self.round(self._draw.choice(n, size or n, replace=False).tolist())
        for name, values in self.noted.items():
            values.append(getattr(self.server, name).copy())

    def receive(self, i: int) -> Update:
        update = super().receive(i)
        self.uploads[-1].append((i, update))
        return update


# -- Flower: server optimisers -----------------------------------------------------------------------------------------
ADAPTIVE = {"eta": 0.05, "tau": 1e-3, "beta_1": 0.9, "beta_2": 0.99}
FLOWER: dict[str, tuple[Optimizer, dict[str, float]]] = {  # ours starts v at 0, as Flower does
    "FedAvgM": (Momentum(beta=0.7), {"server_learning_rate": 0.5, "server_momentum": 0.7}),
    "FedAdagrad": (Adagrad(tau=1e-3, v0=0.0), {"eta": 0.5, "tau": 1e-3}),
    "FedAdam": (Adam(beta1=0.9, beta2=0.99, tau=1e-3, v0=0.0), ADAPTIVE),
    "FedYogi": (Yogi(beta1=0.9, beta2=0.99, tau=1e-3, v0=0.0), ADAPTIVE),
}


@of("flower")
@pytest.mark.parametrize("name", FLOWER)
def test_server_optimizers_agree_with_flower(name: str, peer: Any, record_property: Record) -> None:
    """FedAdam's step is Flower's eta sqrt(1 - beta2^(t+1))/(1 - beta1^(t+1)) in round t = 1, 2, ..."""
    optimizer, arguments = FLOWER[name]
    eta: float = arguments.get("eta", arguments.get("server_learning_rate", 0.0))
    clients = random_quadratics(3, 4)
    algorithm = FedAvg(step_size=0.1, local_steps=3, weights="samples", optimizer=optimizer, server_step=eta)
    world = Noting(algorithm, clients, "x")
    for t in range(1, ROUNDS + 1):
        if name == "FedAdam":
            corrected = eta * (1 - 0.99 ** (t + 1)) ** 0.5 / (1 - 0.9 ** (t + 1))
            world.algorithm = replace(algorithm, server_step=corrected)
        world.next_round()
    sent = [[dict(one)[i].vectors[0] for i in range(4)] for one in world.uploads]
    samples = [c.samples for c in clients]
    assert len(set(samples)) > 1
    options = {"class": name, "arguments": arguments}
    theirs = peer("rounds", options, x0=np.ones(3), models=np.array(sent), samples=samples)
    compare(record_property, models=(world.noted["x"], theirs["models"]))


# -- FedLab ------------------------------------------------------------------------------------------------------------
def after_rounds(algorithm: Any, clients: list[Quadratic], *names: str) -> tuple[list, dict[str, list]]:
    """The updates of each round, and vectors of the server's state after each."""
    world = Noting(algorithm, clients, *names)
    for _ in range(ROUNDS):
        world.next_round()
    assert world.version == ROUNDS
    return world.uploads, world.noted


@of("fedlab")
def test_fednova_agrees_with_fedlab(peer: Any, record_property: Record) -> None:
    """Cohorts of two: FedLab's weights are float32, and exact where 1/|S| is."""
    clients = random_quadratics(4, 6)
    algorithm = FedNova(step_size=0.05, steps=[1, 2, 3, 5, 8, 13], cohort=2)
    uploads, states = after_rounds(algorithm, clients, "x")
    x = np.array([np.ones(3), *states["x"][:-1]])  # at the start of each round
    models = [[x[k] - u.vectors[0] for _, u in one] for k, one in enumerate(uploads)]
    taus = [[u.local_steps for _, u in one] for one in uploads]
    theirs = peer("fednova", {"clients": 6}, x0=np.ones(3), models=np.array(models), taus=taus)
    compare(record_property, models=(states["x"], theirs["models"]))


@of("fedlab")
def test_the_server_of_feddyn_agrees_with_fedlab(peer: Any, record_property: Record) -> None:
    """Cohorts of one: FedLab subtracts x once from the sum of the members' models, whatever their number."""
    clients = random_quadratics(5, 4)
    uploads, states = after_rounds(FedDyn(step_size=0.1, local_steps=5, alpha=0.5, cohort=1), clients, "x", "h")
    x = np.array([np.ones(3), *states["x"][:-1]])
    models = [[x[k] + u.vectors[0] for _, u in one] for k, one in enumerate(uploads)]
    theirs = peer("feddyn", {"clients": 4, "alpha": 0.5}, x0=np.ones(3), models=np.array(models))
    compare(record_property, models=(states["x"], theirs["models"]), h=(states["h"], theirs["h"]))


@of("fedlab")
def test_feddyn_server_with_two_members(peer: Any, record_property: Record) -> None:
    """FedLab's h <- h - (alpha/n) (th_1 + th_2 - x), where the paper has -2 x: x is another after the first round."""
    clients, alpha = random_quadratics(5, 4), 0.5
    uploads, states = after_rounds(FedDyn(step_size=0.1, local_steps=5, alpha=alpha, cohort=2), clients, "x")
    starts = np.array([np.ones(3), *states["x"][:-1]])
    models = np.array([[starts[k] + u.vectors[0] for _, u in one] for k, one in enumerate(uploads)])
    theirs = peer("feddyn", {"clients": 4, "alpha": alpha}, x0=np.ones(3), models=models)
    x, h, expected = np.ones(3), np.zeros(3), []
    for one in models:
        h = h - alpha / 4 * (one.sum(0) - x)
        x = one.mean(0) - h / alpha
        expected.append(x)
    compare(record_property, models=(expected, theirs["models"]))
    assert np.abs(states["x"][0] - theirs["models"][0]).max() > 0.1


@of("fedlab")
def test_the_duals_of_feddyn_agree_with_fedlab_and_its_models_do_not(peer: Any, record_property: Record) -> None:
    """FedLab's local steps leave out both terms of FedDyn, which it computes of parameters without a gradient; the dual
    is FedDyn's."""
    targets, alpha, step = np.array([1.0, -2.0, 0.5]), 0.5, 0.1
    one = Quadratic(np.ones(3), targets)
    x = np.random.default_rng(0).normal(size=(6, 3))
    theirs = peer("feddyn_client", {"epochs": 4, "step": step, "alpha": alpha}, x=x, targets=targets)
    algorithm, duals, exact = FedDyn(step_size=step, local_steps=4, alpha=alpha), [], []
    client = algorithm.init_client(np.zeros(3), 0)
    for k in range(6):
        (change,) = algorithm.train(client, Message((x[k],)), one).vectors
        exact.append(x[k] + change)
        client.q = client.q - change + (theirs["models"][k] - x[k])  # as if it had come to their model
        duals.append(-alpha * client.q)
    compare(
        record_property,
        duals=(duals, theirs["duals"]),
        models=([one.steps(start, step, 4) for start in x], theirs["models"]),
    )
    assert np.abs(np.array(exact) - theirs["models"]).max() > 0.1


@of("fedlab")
def test_scaffold_agrees_with_fedlab(peer: Any, record_property: Record) -> None:
    clients = random_quadratics(6, 8)
    algorithm = Scaffold(step_size=0.05, local_steps=3, cohort=4, server_step=0.8)
    uploads, states = after_rounds(algorithm, clients, "x", "c")
    dy, dc = (np.array([[u.vectors[k] for _, u in one] for one in uploads]) for k in (0, 1))
    theirs = peer("scaffold", {"clients": 8, "server_step": 0.8}, x0=np.ones(3), dy=dy, dc=dc)
    compare(record_property, models=(states["x"], theirs["models"]), c=(states["c"], theirs["c"]))


# -- APPFL -------------------------------------------------------------------------------------------------------------
def compare_arrivals(peer: Any, record: Record, name: str, algorithm: Any, clients: list, **arguments: Any) -> None:
    """A run in a random order of arrivals, with staleness up to several times the number of clients."""
    count, n, every = 90, len(clients), arguments.get("K", 1)
    order = np.random.default_rng(2).geometric(0.3, count)  # the first of those at work are picked most
    log = run(algorithm, clients, clock=Picked(order.tolist()), stop_updates=count, x0=1.0)
    assert max(row[3] for row in log.updates) > n
    theirs = peer(
        "arrivals", {"class": name, "arguments": {"alpha": 0.9, "num_clients": n, **arguments}}, x0=np.ones(3),
        clients=[i for i, _ in log.consumed], uploads=[u.vectors[0] for _, u in log.consumed],
    )  # fmt: skip
    compare(record, models=(log.models, theirs["models"][every - 1 :: every]))


@of("appfl")
@pytest.mark.parametrize("staleness", ["constant", "polynomial", "hinge"])
def test_fedasync_agrees_with_appfl(staleness: str, peer: Any, record_property: Record) -> None:
    """APPFL's weight of a model is alpha s(tau)/n."""
    n, a, b = 5, 0.7, 3.0
    algorithm = FedAsync(step_size=0.1, mixing=0.9 / n, staleness=staleness, staleness_a=a, staleness_b=b)  # type: ignore[arg-type]
    shape = {"constant": {}, "polynomial": {"a": a}, "hinge": {"a": a, "b": b}}[staleness]
    compare_arrivals(
        peer, record_property, "fedasync", algorithm, random_quadratics(7, n),
        staleness_fn=staleness, staleness_fn_kwargs=shape,
    )  # fmt: skip


@of("appfl")
def test_fedbuff_agrees_with_appfl(peer: Any, record_property: Record) -> None:
    """With `gradient_based` uploads base - y; APPFL's step is alpha s(tau)/n for each, so eta_g = alpha K/n. (For
    uploaded models it takes y - x, x the model at the arrival: another rule than FedBuff's.)"""
    n, K = 5, 3
    algorithm = FedBuff(
        step_size=0.1, local_steps=2, server_step=0.9 * K / n, staleness="inverse-sqrt", trigger=Trigger(every=K)
    )
    compare_arrivals(
        peer, record_property, "fedbuff", algorithm, random_quadratics(8, n), K=K, gradient_based=True,
        staleness_fn="polynomial", staleness_fn_kwargs={"a": 0.5},
    )  # fmt: skip


class Newest(Noted):
    """Of a client whose late model waits for a group, and that uploads again, the newer model alone counts."""

    def receive(self, server: Any, i: int, update: Any, staleness: int) -> None:
        late = server.weights.get(LATE, 0.0)
        super().receive(server, i, update, staleness)
        if server.weights.get(LATE, 0.0) > late:
            self.forget(server, i)
            WAITING[i] = update.vectors[0].copy()

    def aggregate(self, server: Any) -> None:
        if server.due != NONE:
            for i in [i for i in server.arrived if server.group[i] == server.due]:
                self.forget(server, i)
            WAITING.clear()
        super().aggregate(server)

    def forget(self, server: Any, i: int) -> None:
        if (old := WAITING.pop(i, None)) is not None:
            FORGOTTEN.append(i)
            server.sums[LATE] = server.sums[LATE] - old
            server.weights[LATE] -= 1


WAITING: dict[int, np.ndarray] = {}  # late models that no group has applied
FORGOTTEN: list[int] = []


@of("appfl")
@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_fedcompass_agrees_with_appfl(spread: float, peer: Any, record_property: Record) -> None:
    """Models, and whom the server asks when for how many steps; with clients whose speed changes there are groups that
    close by their timer, and latecomers.

    Staleness is constant: APPFL's is that at the aggregation, ours at the arrival. Ours applies all late models of a
    client, APPFL the newest (`Newest`).
    """
    n, base = 5, (1.0, 1.4, 2.1, 3.0, 6.0)
    drawn = np.random.default_rng(1).lognormal(0, spread, (n, 400))
    clock = VirtualClock(lambda i, r: 0.0, lambda i, r, work: (work * base[i] * drawn[i, r], 0.0))
    for noted in (NOTES, WAITING, FORGOTTEN):
        noted.clear()  # type: ignore[attr-defined]
    algorithm = Newest(step_size=0.01, min_steps=4, max_steps=20, alpha=0.9, speed_momentum=0.9, latest_factor=1.2)
    log = run(algorithm, random_quadratics(2, n), clock=clock, stop_updates=120, x0=1.0)
    theirs = peer(
        "fedcompass",
        {
            "aggregator": {"alpha": 0.9, "num_clients": n},
            "scheduler": {
                "min_local_steps": 4, "max_local_steps": 20, "speed_momentum": 0.9, "latest_time_factor": 1.2,
                "num_clients": n,
            },
        },
        x0=np.ones(3), times=[row[0] for row in log.updates], clients=[i for i, _ in log.consumed],
        uploads=[u.vectors[0] for _, u in log.consumed],
    )  # fmt: skip
    answers = sorted(map(tuple, theirs["answers"]))
    compare(
        record_property,
        models=(log.models[: len(theirs["models"])], theirs["models"]),
        answers=(np.array(sorted(NOTES[n:]), float)[: len(answers)], np.array(answers)),
    )
    assert len(answers) > 100 and bool(FORGOTTEN) == bool(spread)
