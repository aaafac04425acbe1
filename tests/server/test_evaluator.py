"""What an evaluation records: the metrics of the global model, and those of the clients' own models."""
# ruff: noqa: F401, F811 - fixtures

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
from mpifl.problems import Problem, ProblemConfig, load, objective
from mpifl.runfile import Run
from mpifl.runfile.fairness import summarise
from mpifl.runfile.tables import ClientEvaluationRow, EvaluationRow
from mpifl.server.evaluator import EvaluationRequest, Evaluator
from tests.mpi.cases import EXPONENTIAL
from tests.mpi.files import differing
from tests.quadratic_runs import Quadratic, close
from tests.server.test_resume import kept


def job(path: Path, algorithm: dict[str, Any], **more: Any) -> mpifl.Job:
    base = {
        "name": "personal", "seed": 2, "output": str(path), "algorithm": algorithm, "stop": {"time": 8},
        "problem": {"clients": 5, "partition": {"name": "dirichlet", "alpha": 0.3, "min_samples": 3},
                    "test_split": 0.2, "dtype": "float64", "l2": 0.01},
        "clock": {"mode": "virtual", "delay": {"name": "fixed", "seconds": [1, 0.5, 1.5, 3, 20]}},
        "evaluate": {"every": 1},
    }  # fmt: skip
    return mpifl.load_job({**base, **more})


@pytest.mark.parametrize("data", ["digits", None])
def test_training_loss_and_gradient_at_every_third_evaluation(
    data: str | None, tmp_path: Path, kept: list[Path]
) -> None:
    """Counted from the first evaluation of the run, 4 of which an earlier session made; the rest is the same."""
    problem = {"data": data, "clients": 5} if data else {"clients": 5, "model": "quadratic"}
    made = {}
    for k in (1, 3):
        more: dict[str, Any] = {"evaluate": {"updates": 4, "train_every": k, "gradient": True}, "stop": {"updates": 24}}
        more["checkpoint"] = {"updates": 14}
        made[k] = mpifl.run(job(tmp_path / f"{k}.h5", {"name": "fedavg"}, problem=problem, **more)).path
    every, third = (open_run(path).evaluations for path in made.values())
    sparse = ["train_loss", "gradient_norm"]
    for name in sparse:
        assert third[name].notna().tolist() == [k % 3 == 0 for k in range(len(every))]
        assert third[name].dropna().equals(every[name][::3])
    assert third.drop(columns=sparse).equals(every.drop(columns=sparse))
    mpifl.resume(kept[1]).close()
    assert not differing(made[3], kept[1], but=("events",))


def test_personal_accuracies_recomputed(tmp_path: Path) -> None:
    """APFL with alpha = 1 is plain descent of every client, so its model after k contacts is known.

    Rounds last as long as their slowest member, client 4 for 20 s, and evaluations fall between the members.
    """
    path = tmp_path / "run.h5"
    section = {"name": "apfl", "mixing": 1.0, "step_size": 1.0, "local_steps": 2, "cohort": 3}
    # Steps so rough that accuracies fall as well, and a client with too few rows to be tested.
    rough = {"clients": 5, "partition": {"name": "dirichlet", "alpha": 0.1}, "test_split": 0.06, "batch_size": 2}
    rough["dtype"] = "float64"
    made = job(path, section, stop={"time": 60}, evaluate={"every": 0.75}, problem=rough)
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
        assert not all(len(shard) > 2 for shard in mine), "who has no test rows does not count"
        close(rows.client_accuracy_mean.iloc[-1], np.nanmean([accuracy(run.model, i) for i in range(5)]))
    nobody = mpifl.run(job(tmp_path / "nobody.h5", section, problem={"clients": 5})).evaluations
    assert nobody.filter(like="personal").isna().all(axis=None), "no client has test rows"


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
    section["regulariser"] = {"name": "box", "low": 0.001}
    outside = mpifl.run(job(tmp_path / "outside.h5", section, clock=clock)).evaluations
    assert outside.train_loss[0] == np.inf and np.isfinite(outside.train_loss.iloc[-1]), "the penalty is infinite"


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


# -- modules that draw in evaluation too: draws belong to the seed and the model's version -----------------------------
def noisy(rows: int = 40) -> Any:
    """w x and noise, also in evaluation."""
    import torch

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return self.w * x + torch.randn_like(x)

    data = [torch.utils.data.TensorDataset(torch.zeros(rows, 2), torch.full((rows, 2), 0.5)) for _ in range(3)]
    return Noisy(), torch.nn.functional.mse_loss, data, data[0]


def draws(path: Path, **more: Any) -> Run:
    problem = {"entry": f"{__name__}:noisy", "batch_size": 4, **more.pop("problem", {})}
    keys = {"problem": problem, "stop": {"updates": 24}, "evaluate": {"updates": 6}, "clock": EXPONENTIAL, **more}
    return mpifl.run(job(path, {"name": "fedavg", "local_steps": 3, "step_size": 0.1}, **keys))


def test_neither_evaluations_nor_training_change_the_others_draws(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    often, rarely = draws(tmp_path / "often.h5", evaluate={"updates": 3}), draws(tmp_path / "rarely.h5")
    again = draws(tmp_path / "again.h5", evaluate={"updates": 3})
    for other in (rarely, again):
        np.testing.assert_array_equal(often.updates.norm, other.updates.norm)
        np.testing.assert_array_equal(often.model, other.model)
    columns = ["train_loss", "test_loss"]
    np.testing.assert_array_equal(often.evaluations[columns], again.evaluations[columns])
    few = rarely.evaluations.set_index("version")[columns]
    np.testing.assert_array_equal(often.evaluations.set_index("version").loc[few.index, columns], few)
    assert often.evaluations.test_loss.nunique() == 9  # of nine versions
    other = draws(tmp_path / "seed.h5", seed=1)
    assert other.evaluations.test_loss[0] != often.evaluations.test_loss[0], "the model is the same"
    assert often.evaluations.test_loss[0] == pytest.approx(5 / 4, abs=0.6)  # E (noise - 1/2)^2, of 80 rows' noise


def test_draws_of_a_replay_and_under_the_real_clock(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = {"torch": {"batched": False, "deterministic": True, "threads": 1}}
    first = draws(tmp_path / "real.h5", clock={"mode": "real"}, problem=options)
    again = mpifl.replay(first.path, output=str(tmp_path / "again.h5"), trust=True)
    np.testing.assert_array_equal(first.model, again.model)
    np.testing.assert_array_equal(first.evaluations.test_loss, again.evaluations.test_loss)
