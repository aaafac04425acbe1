"""What an evaluation records: the metrics of the global model, and those of the clients' own models."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import open_run
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.client.worker import Worker
from mpifl.config.job import Evaluate, Keep, Stop
from mpifl.objective import Objective, Vector
from mpifl.problems import Problem, load, objective
from mpifl.runfile.fairness import summarise
from mpifl.runfile.tables import ClientEvaluationRow, EvaluationRow
from mpifl.server.evaluator import EvaluationRequest, Evaluator
from tests.quadratic_runs import Quadratic, close

FIRST = np.array([0.2, 0.4, 0.6, nan])  # the first model's accuracies; the last client has no test rows
NEW = np.full(4, nan)  # nobody was heard


class Fake:
    """A problem with known metrics, and what was recorded of it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.asked = 0
        self.clients: list[ClientEvaluationRow] = []

    def begin_evaluation(self, version: int) -> None: ...

    def evaluate(self, x: Vector, training: bool = True) -> dict[str, float]:
        return {"train_loss": 2.0 if training else nan, "test_loss": 3.0, "test_accuracy": 0.5}

    def gradient(self, x: Vector) -> np.ndarray:
        self.asked += 1
        return 4 * np.abs(x)

    def evaluate_with_clients(self, x: Vector, training: bool = True) -> tuple[dict[str, float], np.ndarray]:
        return {**self.evaluate(x, training), "client_accuracy_mean": 0.4}, FIRST

    def extend(self, rows: list[ClientEvaluationRow]) -> None:
        self.clients += rows

    def append(self, row: EvaluationRow) -> None:
        assert row.age == 0
        known = row._replace(age=nan)._asdict()
        self.rows.append({name: value for name, value in list(known.items())[3:] if not isnan(value)})

    def initial(self, seed: int) -> None: ...

    def client_accuracies(self, x0: None) -> np.ndarray:
        return self.first

    def counts(self) -> dict[str, int]:
        return {"evaluations": self.earlier}

    def look(
        self, *personal: np.ndarray | None, x: float = 1.0, first: np.ndarray = NEW, earlier: int = 0,
        penalty: Callable[[Vector], float] = lambda x: 0.0, mapping: Any = lambda x, gradient: None, **evaluate: Any,
    ) -> list[dict[str, float]]:  # fmt: skip
        """The rows of evaluations with these personal accuracies, after `earlier` ones; first: the first model's."""
        self.first, self.earlier = first, earlier
        job: Any = SimpleNamespace(
            seed=0, algorithm=SimpleNamespace(penalty=penalty, gradient_mapping=mapping), keep=Keep(),
            stop=Stop(time=1), evaluate=Evaluate(updates=1, **evaluate),
        )  # fmt: skip
        evaluator = Evaluator(self, self, job, deterministic=True)  # type: ignore[arg-type]
        for k, known in enumerate(personal):
            evaluator(EvaluationRequest(float(k), k, k, np.array([x, -x]), known))
        evaluator.close()
        assert evaluator.latest == self.rows[-1]
        return self.rows


def test_a_penalty_belongs_to_the_training_loss() -> None:
    (row,) = Fake().look(None, x=3.0, penalty=lambda x: 0.5 * float(np.abs(x).sum()))
    assert row == {"train_loss": 5.0, "test_loss": 3.0, "test_accuracy": 0.5}
    (row,) = Fake().look(None, penalty=lambda x: np.inf)
    assert row["train_loss"] == np.inf


def test_the_training_loss_at_every_third_evaluation() -> None:
    """Counted from the first evaluation of the run, 4 of which an earlier session made; likewise the gradient."""
    fake = Fake()
    rows = fake.look(*[None] * 6, train_every=3, gradient=True, earlier=4)
    assert [k for k, row in enumerate(rows, 4) if "train_loss" in row] == [6, 9] and fake.asked == 2
    assert all(row["test_accuracy"] == 0.5 for row in rows)


@pytest.mark.parametrize("data", ["digits", None])
def test_evaluations_without_the_training_loss_are_otherwise_the_same(data: str | None, tmp_path: Path) -> None:
    problem = {"data": data, "clients": 5} if data else {"clients": 5, "model": "quadratic"}
    made = [
        job(tmp_path / f"{k}.h5", {"name": "fedavg"}, problem=problem, evaluate={"updates": 4, "train_every": k})
        for k in (1, 3)
    ]
    every, third = (mpifl.run(each).evaluations for each in made)
    assert third.train_loss.notna().tolist() == [k % 3 == 0 for k in range(len(every))]
    assert third.train_loss.dropna().equals(every.train_loss[::3])
    assert third.drop(columns="train_loss").equals(every.drop(columns="train_loss"))


def test_a_client_not_heard_from_counts_with_the_first_model() -> None:
    """A client counts with its accuracy under the first model until its first update; 0.5, 0.4, 1.0 are 0.4, 0.5, 1.0
    in order."""
    (row,) = Fake().look(np.array([0.5, nan, 1.0, nan]), first=FIRST)
    found = {name.removeprefix("personal_accuracy_"): v for name, v in row.items() if name.startswith("personal")}
    assert found == pytest.approx({"mean": 1.9 / 3, "q25": 0.45, "median": 0.5, "q75": 0.75, "best": 1.9 / 3})
    (row,) = Fake().look(NEW, first=FIRST)
    assert row["personal_accuracy_mean"] == pytest.approx(0.4) and row["personal_accuracy_q75"] == pytest.approx(0.5)


def test_a_client_without_test_rows_does_not_count() -> None:
    """It has no accuracy, not even under the first model; if no client has test rows, there is no metric."""
    (row,) = Fake().look(np.array([1.0, 1.0, 1.0, nan]), first=FIRST)
    assert row["personal_accuracy_mean"] == row["personal_accuracy_q25"] == 1.0
    rows = Fake().look(NEW, np.array([0.5, nan, nan, nan]), first=np.full(4, nan))
    assert "personal_accuracy_mean" not in rows[0] and rows[1]["personal_accuracy_mean"] == 0.5


# -- from the clients to the run file ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Counts(FedAvg):
    """FedAvg with a personal model of one entry: how many contacts the client has had."""

    personal_models = True

    def init_client(self, x0: Vector, i: int) -> State:
        return State(contacts=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        client.contacts += 1
        return super().train(client, message, objective)

    def personal_model(self, client: State) -> Vector:
        return np.array([float(client.contacts)])


class WithRows(Quadratic):
    def accuracy(self, x: Vector) -> float:
        return float(x[0]) / 8


def test_a_contact_ends_with_a_test_of_the_personal_model() -> None:
    """The model after the contact is tested on the client's own rows; a method without personal models is not asked."""
    one = np.ones(1)
    worker = Worker(Counts(), one, {3: WithRows(one, 2 * one)})  # type: ignore[dict-item]
    assert [worker.train(3, Message((one,))).accuracy for _ in range(3)] == [1 / 8, 2 / 8, 3 / 8]
    assert isnan(Worker(FedAvg(), one, {3: Quadratic(one, one)}).train(3, Message((one,))).accuracy)  # type: ignore[dict-item]


def job(path: Path, algorithm: dict[str, Any], **more: Any) -> mpifl.Job:
    base = {
        "name": "personal", "seed": 2, "output": str(path), "algorithm": algorithm, "stop": {"time": 8},
        "problem": {"clients": 5, "partition": {"name": "dirichlet", "alpha": 0.3, "min_samples": 3},
                    "test_split": 0.2, "dtype": "float64", "l2": 0.01},
        "clock": {"mode": "virtual", "delay": {"name": "fixed", "seconds": [1, 0.5, 1.5, 3, 20]}},
        "evaluate": {"every": 1},
    }  # fmt: skip
    return mpifl.load_job({**base, **more})


def test_personal_accuracies_recomputed(tmp_path: Path) -> None:
    """APFL with alpha = 1 is plain descent of every client, so its model after k contacts is known.

    Rounds last as long as their slowest member, client 4 for 20 s, and evaluations fall between the members.
    """
    path = tmp_path / "run.h5"
    section = {"name": "apfl", "mixing": 1.0, "step_size": 1.0, "local_steps": 2, "cohort": 3}
    made = job(path, section, stop={"time": 60}, evaluate={"every": 0.75})
    made = replace(made, problem=replace(made.problem, batch_size=2))  # steps so rough that accuracies fall as well
    mpifl.run(made).close()
    problem = load(made.problem)
    x0 = problem.initial(2)
    mine = [problem.shard(i) for i in range(5)]
    clients = [objective(made.problem, problem.meta, shard, i, 2) for i, shard in enumerate(mine)]

    def accuracy(x: np.ndarray, i: int) -> float:
        return nan if len(mine[i]) == 2 else float(((mine[i][2] @ x.reshape(64, 10)).argmax(1) == mine[i][3]).mean())

    own, known = [[accuracy(x0, i)] for i in range(5)], [x0.copy() for _ in range(5)]
    best = 0.0
    with open_run(path) as run:
        for row in run.evaluations.itertuples():
            now = []
            for i in range(5):
                contacts = int(((run.updates.client == i) & (run.updates.time <= row.time)).sum())
                while len(own[i]) <= contacts:
                    for rows in clients[i].batches(len(own[i]) - 1, 2):
                        known[i] = known[i] - clients[i].gradient(known[i], rows)
                    own[i].append(accuracy(known[i], i))
                now.append(own[i][contacts])
            mean, best = np.nanmean(now), max(best, float(np.nanmean(now)))
            close(row.personal_accuracy_mean, mean)
            close(row.personal_accuracy_best, best)
            close(row.personal_accuracy_median, np.nanmedian(now))
            close([row.personal_accuracy_q25, row.personal_accuracy_q75], np.nanpercentile(now, [25, 75]))
        rows = run.evaluations
        assert rows.personal_accuracy_mean.nunique() > 5 and (np.diff(rows.personal_accuracy_mean) < 0).any()
        assert rows.personal_accuracy_mean[0] == rows.client_accuracy_mean[0], "all have the first model"
        close(rows.client_accuracy_mean.iloc[-1], np.nanmean([accuracy(run.model, i) for i in range(5)]))


def test_accuracies_by_client_in_the_run_file(tmp_path: Path) -> None:
    """One row an evaluation and client; those of the last one are the final model's, and their summary is theirs."""
    made = job(tmp_path / "run.h5", {"name": "area", "step_size": 0.3}, evaluate={"every": 1, "clients": True})
    problem = load(made.problem)
    with mpifl.run(made) as run:
        table, rows = run.client_evaluations, run.evaluations
        tested = np.flatnonzero([len(problem.shard(i)) > 2 for i in range(5)])
        assert table.client.tolist() == tested.tolist() * len(rows)
        assert table.evaluation.tolist() == np.repeat(np.arange(len(rows)), len(tested)).tolist()
        mine = [problem.shard(i)[2:] for i in tested]
        right = [float(((x @ run.model.reshape(64, 10)).argmax(1) == y).mean()) for x, y in mine]
        assert table.accuracy[table.evaluation == len(rows) - 1].tolist() == right
        assert table.personal_accuracy.isna().all() and rows.filter(like="personal").isna().all(axis=None)
        assert rows[["gradient_norm", "gradient_mapping"]].isna().all(axis=None)
        last = rows.iloc[-1]
        close(last.client_accuracy_mean, np.mean(right))
        close(last.client_accuracy_worst, min(right))
        close(last.client_accuracy_variance, np.mean((np.array(right) - np.mean(right)) ** 2))


@pytest.mark.parametrize(("m", "worst"), [(1, 0), (10, 0), (11, 0.5), (20, 0.5), (21, 1), (100, 4.5)])
def test_the_worst_tenth(m: int, worst: float) -> None:
    """The ceil(m/10) lowest of 0, 1, ..., m - 1, in any order, divided by m."""
    accuracies = np.random.default_rng(m).permutation(np.append(np.arange(m) / m, [nan, nan]))
    found = summarise(accuracies)
    assert found["worst"] == pytest.approx(worst / m) and found["mean"] == pytest.approx((m - 1) / (2 * m))
    assert found["variance"] == pytest.approx((m**2 - 1) / (12 * m**2))
    assert summarise(np.full(3, nan)) == {}


def test_gradient_and_penalty_in_the_run_file(tmp_path: Path) -> None:
    """The training loss is f + g at the model; the gradient norm is that of f, the gradient mapping that of f + g."""
    path = tmp_path / "run.h5"
    section = {"name": "feddr", "eta": 0.1, "step_size": 0.1, "regulariser": {"name": "l1", "tau": 0.02}}
    clock = {"mode": "virtual", "delay": "fixed"}
    made = job(path, section, evaluate={"every": 2, "gradient": True}, clock=clock)
    mpifl.run(made).close()
    problem = load(made.problem)
    with open_run(path) as run:
        last, x = run.evaluations.iloc[-1], run.model
        close(last.train_loss, problem.evaluate(x)["train_loss"] + 0.02 * np.abs(x).sum())
        gradient = problem.gradient(x)
        close(last.gradient_norm, np.linalg.norm(gradient))
        v = x - 0.1 * gradient
        close(last.gradient_mapping, np.linalg.norm(x - np.sign(v) * np.maximum(np.abs(v) - 0.002, 0)) / 0.1)
        assert np.abs(x).sum() > 1 and run.evaluations.gradient_norm.nunique() > 1


def test_virtual_time_stops_at_the_evaluation_that_reaches_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No update follows that evaluation, however long evaluations take."""
    evaluate = Problem.evaluate

    def slow(self: Problem, x: np.ndarray, training: bool = True) -> dict[str, float]:
        time.sleep(0.05)
        return evaluate(self, x, training)

    monkeypatch.setattr(Problem, "evaluate", slow)
    stop = {"time": 8, "accuracy": 0.18}
    mpifl.run(job(tmp_path / "run.h5", {"name": "area", "step_size": 3.0}, stop=stop)).close()
    with open_run(tmp_path / "run.h5") as run:
        reached = run.evaluations.test_accuracy >= 0.18
        assert reached.iloc[-1] and not reached.iloc[:-1].any()
        assert len(run.updates) == run.evaluations.updates.iloc[-1] > 0
