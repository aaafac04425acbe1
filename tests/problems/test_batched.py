"""Clients computed together send what they send one by one, in few calls of vmap, or the reason why not is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpifl import problems
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Algorithm, Message, State, Update
from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedpd import FedPD
from mpifl.algorithms.fedprox import FedProx
from mpifl.algorithms.scaffold import Scaffold
from mpifl.client.worker import Worker
from mpifl.objective import Objective
from mpifl.problems import ProblemConfig
from mpifl.problems.models.networks import TorchLogistic, TorchMlp
from mpifl.problems.partitions import Iid
from mpifl.problems.problem import ComputeResources, HostedClients
from mpifl.problems.settings import Torch
from mpifl.problems.torch import batched
from mpifl.problems.torch.examples import Examples, Windows
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import Shared, TorchObjective
from tests.tiers import long

CPU = torch.device("cpu")
SIZES = (23, 30, 11, 30, 27, 30, 27, 27, 27, 27, 30)  # rows of the clients; with batches of 10, ends of 3, 1 and 7
STEPS = {"step_size": 0.1, "local_steps": 3}
Case = tuple[Algorithm, Callable[[np.ndarray, int], Message]]
CASES: dict[str, Case] = {
    "fedavg": (FedAvg(**STEPS), lambda x, i: Message((x,))),
    "fedavg, epochs": (FedAvg(step_size=0.1, local_epochs=2), lambda x, i: Message((x,))),
    "fedavg, gd": (FedAvg(**STEPS, solver=Gd()), lambda x, i: Message((x,))),
    "fedprox": (FedProx(0.1, local_epochs=3, mu=0.5, drop_percent=0.5), lambda x, i: Message((x,), (1 + i % 3,))),
    "scaffold": (Scaffold(**STEPS, option="I"), lambda x, i: Message((x, 0.1 * x))),
    "fedpd": (FedPD(**STEPS, eta=0.5, solver=Gd()), lambda x, i: Message((x,), (2,))),
    "area": (Area(step_size=0.5, step_weights="relative"), lambda x, i: Message((x,), (0.5,))),
}


def host(
    module: nn.Module,
    sizes: tuple[int, ...] = SIZES,
    dtype: torch.dtype = torch.float64,
    shape: tuple[int, ...] = (6,),
    batch: int | None = 10,
    rows: Callable[[int, int], Tensor | Windows] | None = None,
    **options: Any,
) -> tuple[HostedClients, np.ndarray]:
    """Clients with random rows of 4 classes, and a first model."""
    torch.manual_seed(0)
    l2 = options.pop("l2", 0.0)
    settings = Torch(**{"batched": True, **options})
    config = ProblemConfig(model=TorchMlp(), clients=len(sizes), batch_size=batch, l2=l2, torch=settings)
    shared = Shared(Flat(module, CPU, dtype, settings.buffers == "averaged"), cross_entropy, CPU, config)
    meta = {"samples": list(sizes), "clients": len(sizes)}

    def client(i: int, s: int) -> TorchObjective:
        x = rows(i, s) if rows else torch.randn(s, *shape, dtype=dtype)
        return TorchObjective(shared, config, meta, i, 0, Examples(x, torch.randint(0, 4, (s,))), None)

    objectives = {i: client(i, s) for i, s in enumerate(sizes)}
    return batched.host_clients(shared, objectives, settings, {"transfers": "host"}), shared.flat.values().numpy()


def mlp(dtype: torch.dtype = torch.float64, hidden: int = 5) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 4)).to(dtype)


def trainer(hosted: HostedClients) -> batched.BatchTrainer:
    return hosted.train_batch.__self__  # type: ignore[union-attr]


def spied(hosted: HostedClients) -> list[tuple[int, ...]]:
    """Records (clients, rows) of each call of vmap from now on."""
    calls: list[tuple[int, ...]] = []
    inner = trainer(hosted)._gradients

    def call(weights: Any, x: Tensor, y: Tensor) -> Any:
        assert all(len(weight) == len(x) for weight in weights.values())
        calls.append(tuple(y.shape))
        return inner(weights, x, y)

    trainer(hosted)._gradients = call
    return calls


@pytest.mark.parametrize("rows", [[1, 2, 20], [-1, 0, 3]])
def test_numbers_of_no_row_are_errors(rows: list[int]) -> None:
    hosted, _ = host(mlp(), (20, 20, 20))
    requests = [batched.Request(f, None, [np.array(rows)], None) for f in hosted.objectives.values()]
    with pytest.raises(IndexError):
        batched.read_batches(requests)


def answers(algorithm: Algorithm, message: Any, hosted: HostedClients, x: np.ndarray, together: bool) -> list[Any]:
    """The updates of every client in each of three contacts, whose models differ."""
    worker = Worker(algorithm, x, hosted.objectives, hosted.train_batch if together else None)
    result = []
    for k in range(3):
        messages = [(i, message(x + 0.05 * k, i)._replace(round=k)) for i in hosted.objectives]
        result += worker.train_all(messages)
    return result


def agree(algorithm: Algorithm, message: Any, hosted: HostedClients, x: np.ndarray, tolerance: float) -> None:
    calls = spied(hosted)
    alone = answers(algorithm, message, hosted, x, False)
    assert not calls
    hosted.objectives[0].loss(x)  # for which the module is not in training
    together = answers(algorithm, message, hosted, x, True)
    assert max(clients for clients, _ in calls) >= 5
    for a, b in zip(together, alone, strict=True):
        assert (a.local_steps, a.round, a.numbers) == (b.local_steps, b.round, b.numbers)
        for v, w in zip(a.vectors, b.vectors, strict=True):
            assert abs(w).max() > 1e-3  # there is something to compare
            assert abs(v - w).max() <= tolerance * abs(w).max()


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), long("float32", 1e-5)])
@pytest.mark.parametrize("case", CASES)
def test_every_rule_sends_the_same(case: str, dtype: str, tolerance: float) -> None:
    """Clients of four sizes, whose epochs end with smaller batches and at different times."""
    algorithm, message = CASES[case]
    hosted, x = host(mlp(getattr(torch, dtype)), dtype=getattr(torch, dtype), l2=0.1)
    agree(algorithm, message, hosted, x, tolerance)


def test_models_on_a_data_set() -> None:
    shared = {"clients": 12, "partition": Iid(), "batch_size": 20, "dtype": "float64"}
    config = ProblemConfig(model=TorchLogistic(bias=True), torch=Torch(batched=True), **shared)  # type: ignore[arg-type]
    problem = problems.load(config)
    shards = {i: problem.shard(i) for i in range(12)}
    hosted = problems.host(config.model, config.settings, problem.meta, shards, 0, ComputeResources())
    assert hosted.facts["batched"] is True
    agree(*CASES["fedavg, epochs"], hosted, problem.initial(0), 1e-12)
    config = replace(config, torch=Torch(batched=False))
    hosted = problems.host(config.model, config.settings, problem.meta, shards, 0, ComputeResources())
    assert hosted.train_batch is None and hosted.facts["batched"] == "no: problem.torch.batched is false"


def test_a_step_is_one_call_but_of_few_clients() -> None:
    """12 clients of 20 or 27 rows, 2 epochs: the first have finished when the last batch of the others is computed."""
    hosted, x = host(mlp(), (20, 27) * 6)
    calls = spied(hosted)
    worker = Worker(FedAvg(local_epochs=2), x, hosted.objectives, hosted.train_batch)
    worker.train_all([(i, Message((x,))) for i in range(12)])
    assert calls == [(12, 10)] * 2 + [(6, 10)] * 2 + [(6, 7)] + [(6, 10)] * 2 + [(6, 7)]
    calls.clear()
    worker = Worker(FedProx(local_steps=4), x, hosted.objectives, hosted.train_batch)
    worker.train_all([(i, Message((x,))) for i in range(12)])
    assert calls == [(12, 10)] * 4
    hosted, x = host(mlp(), (20,) * 6)
    calls = spied(hosted)
    worker = Worker(FedAvg(local_steps=2), x, hosted.objectives, hosted.train_batch)
    plain = Worker(FedAvg(local_steps=2), x, hosted.objectives)
    for count in (1, 4):
        messages = [(i, Message((x,), round=count)) for i in range(count)]
        for a, b in zip(worker.train_all(messages), plain.train_all(messages), strict=True):
            assert (a.vectors[0] == b.vectors[0]).all()
    assert not calls
    worker.train_all([(i, Message((x,))) for i in range(5)])
    assert calls == [(5, 10)] * 2


def test_steps_and_gradients_at_the_same_time() -> None:
    """Clients of which every other one asks for steps: each kind is a call. Results are in order, each client gets a
    gradient of its own, and x is not changed; the first task asks for nothing."""
    hosted, x = host(mlp(), (20,) * 12)
    before, ys = x.copy(), [x.copy() for _ in range(12)]

    def task(i: int) -> Any:
        client, rows = hosted.objectives[i], np.arange(i, i + 8)
        return client.gradient(x, rows) if i % 2 else client.descend(ys[i], [rows] * 2, 0.1)  # type: ignore[attr-defined]

    calls = spied(hosted)
    tasks = [lambda: "nothing", *(lambda i=i: task(i) for i in range(12))]
    first, *results = hosted.train_batch(tasks)  # type: ignore[arg-type]
    assert calls == [(6, 8)] * 3 and first == "nothing" and (x == before).all()
    results[1] += 1
    for i in (0, *range(2, 12)):
        y, rows = x.copy(), np.arange(i, i + 8)
        for _ in range(0 if i % 2 else 2):
            y -= 0.1 * hosted.objectives[i].gradient(y, rows)
        np.testing.assert_allclose(ys[i], y, rtol=1e-12)
        if i % 2:
            assert results[i].flags.c_contiguous
            assert results[i].base.untyped_storage().nbytes() == results[i].nbytes
            np.testing.assert_allclose(results[i], hosted.objectives[i].gradient(x, rows), rtol=1e-12, atol=1e-15)


def test_rows_in_a_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many clients as have 80 rows together; none with a batch that is work enough by itself."""
    monkeypatch.setattr(batched, "MAX_ROWS", 80)
    hosted, x = host(mlp(), (20,) * 13)
    calls = spied(hosted)
    agree(FedAvg(**STEPS), CASES["fedavg"][1], hosted, x, 1e-12)
    assert calls == ([(8, 10)] * 3 + [(5, 10)] * 3) * 3
    calls.clear()
    trainer(hosted).rows = 9
    answers(*CASES["fedavg"], hosted, x, True)
    assert not calls


@dataclass(frozen=True)
class Interrupts(FedAvg):
    """Client 2 raises after its local steps."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        if objective.i == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return update


def test_what_one_client_raises_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of a batch that fails as a whole are trained one by one."""
    hosted, x = host(mlp(), (20,) * 6)
    messages = [(i, Message((x,))) for i in range(6)]
    worker = Worker(Interrupts(**STEPS), x, hosted.objectives, hosted.train_batch)
    results = worker.train_all(messages)
    assert [isinstance(result, Update) for result in results] == [True, True, False, True, True, True]
    assert list(worker.failed_clients) == [2]

    def fails(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(batched.BatchTrainer, "compute", fails)
    worker = Worker(FedAvg(**STEPS), x, hosted.objectives, hosted.train_batch)
    assert all(isinstance(result, Update) for result in worker.train_all(messages)) and not worker.failed_clients


def test_an_error_in_one_client_gives_up_the_others() -> None:
    hosted, x = host(mlp(), (20,) * 6)
    ended: list[int] = []

    def task(i: int) -> Iterator[None]:
        try:
            hosted.objectives[i].gradient(x)
            if i == 2:
                raise ZeroDivisionError("client 2")
            return hosted.objectives[i].gradient(x)
        finally:
            ended.append(i)

    with pytest.raises(ZeroDivisionError, match="client 2") as error:
        hosted.train_batch([lambda i=i: task(i) for i in range(6)])  # type: ignore[misc]
    assert sorted(ended) == [0, 1, 2, 3, 4, 5] and error  # which holds the others' frames
    assert hosted.objectives[0].shared.executor is None  # type: ignore[attr-defined]
    agree(*CASES["fedavg"], hosted, x, 1e-12)


# -- which models, and why others are not ------------------------------------------------------------------------------
class Bag(nn.Module):
    """The mean of the tokens' vectors, times a number that is a parameter; in training doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 3, padding_idx=0), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(self.embedding(x).mean(1)) * (2 if self.training else 1)


@pytest.mark.long
def test_texts_rows_of_unlike_lengths_convolutions_and_bfloat16_send_the_same() -> None:
    tokens = np.random.default_rng(0).integers(0, 9, 200).astype(np.uint8)

    def windows(i: int, s: int) -> Windows:
        return Windows(tokens, np.arange(i, i + s).reshape(-1, 1), 5, CPU)

    hosted, x = host(Bag().double(), rows=windows)
    assert hosted.facts["batched"] is True
    agree(*CASES["fedavg, epochs"], hosted, x, 1e-12)
    module = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.AdaptiveAvgPool1d(6), nn.Flatten(), mlp()).double()
    hosted, x = host(module, (20,) * 11, rows=lambda i, s: torch.randn(s, 8 + i % 2, dtype=torch.float64))
    calls = spied(hosted)
    agree(*CASES["fedprox"], hosted, x, 1e-12)
    assert {clients for clients, _ in calls} <= {5, 6}
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.GroupNorm(3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    )  # fmt: skip
    hosted, x = host(module.double(), shape=(1, 4, 4))
    agree(*CASES["fedavg, epochs"], hosted, x, 1e-12)
    hosted, x = host(mlp(torch.float32), dtype=torch.float32, autocast="bfloat16")
    full, _ = host(mlp(torch.float32), dtype=torch.float32)
    agree(*CASES["fedavg, epochs"], hosted, x, 2e-2)
    half, single = (answers(*CASES["fedavg"], h, x, True)[0].vectors[0] for h in (hosted, full))
    assert 1e-5 < abs(half - single).max() < 1e-2  # it was done in bfloat16, both ways


class Branch(nn.Module):
    """What it computes depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores if x.sum() > 0 else -scores


class Counting(Branch):
    """What it computes depends on how often it was called."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        scores: Tensor = self.inner(x)
        return self.calls * scores


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.lstm(x[..., None])[0][:, -1]


@pytest.mark.parametrize(
    "module, reason",
    [
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), "the module has buffers"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), "vmap: called random operation"),
        (Recurrent, "not yet implemented the batching rule"),
        (Branch, "data-dependent control flow"),
        (Counting, "gradients under vmap are others"),
        (lambda: nn.Sequential(nn.Linear(6, 60_000), nn.Linear(60_000, 4)), "one client's batch is enough work"),
    ],
)
def test_models_that_are_computed_one_by_one(module: Callable[[], nn.Module], reason: str) -> None:
    hosted, x = host(module(), (20,) * 6, torch.float32)
    assert hosted.train_batch is None
    assert hosted.facts["batched"].startswith("no: ") and reason in hosted.facts["batched"]
    assert len(hosted.facts["batched"]) < 210 and "\n" not in hosted.facts["batched"]
    answers(*CASES["fedavg"], hosted, x, True)


def test_clients_of_a_rank_must_be_several_with_little_work_each() -> None:
    """And of more ranks than clients some have none."""
    few = "no: fewer than 5 clients on this rank, or with rows of one shape"
    assert host(mlp(), (20,) * 4)[0].facts["batched"] == few
    hosted, _ = host(mlp(), (20,) * 5)
    assert hosted.facts["batched"] is True
    shared = hosted.objectives[0].shared  # type: ignore[attr-defined]
    assert batched.host_clients(shared, {}, Torch(batched=True), {"transfers": "host"}).facts["batched"] == few
    assert host(mlp(), (20,) * 5, rows=lambda i, s: torch.randn(s, 6 + i % 2))[0].facts["batched"] == few
    operations = 2 * (2 * 6 * 5000 + 3 * 5000 * 4)
    hosted, _ = host(mlp(hidden=5000), (200,) * 6, batch=50)
    assert trainer(hosted).rows == 15 * 10**6 // operations == 62
    hosted, _ = host(mlp(hidden=5000), (200,) * 6, batch=63)
    assert hosted.facts["batched"] == "no: one client's batch is enough work for a CPU: it has more than 62 rows"
