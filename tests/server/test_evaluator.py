"""What an evaluation records: the metrics of the global model, and those of the clients' own models."""
# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, repeat
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
from mpifl.cli import main
from mpifl.client.worker import Worker
from mpifl.config.job import Evaluate, Keep, Stop
from mpifl.config.trust import outside_code, split_overrides
from mpifl.errors import ConfigError, RunFailed
from mpifl.objective import Objective, Vector
from mpifl.problems import Problem, ProblemConfig, load, objective
from mpifl.problems.data import FedPDSynthetic
from mpifl.problems.metrics import METRICS, softmax
from mpifl.problems.models import Logistic, Mlp, NonconvexLogistic
from mpifl.runfile.fairness import summarise
from mpifl.runfile.reader import Run
from mpifl.runfile.tables import ClientEvaluationRow, EvaluationRow
from mpifl.server.evaluation_metrics import measure
from mpifl.server.evaluator import Evaluator
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


def guess() -> Any:
    """Scores of two classes that are noise."""
    import torch

    class Guess(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any) -> Any:
            return self.w * x + torch.randn_like(x)

    data = [torch.utils.data.TensorDataset(torch.zeros(200, 2), torch.arange(200) % 2) for _ in range(3)]
    return Guess(), torch.nn.functional.cross_entropy, data, data[0]


def test_accuracies_of_the_first_model_do_not_depend_on_earlier_draws(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        problem = {"entry": f"{__name__}:guess", "batch_size": 4, "test_split": 0.5}
        algorithm = {"name": "apfl", "local_steps": 1, "step_size": 0.1}
        keys = {"problem": problem, "stop": {"updates": 6}, "evaluate": {"updates": 6}, "clock": EXPONENTIAL}
        found.append(mpifl.run(job(tmp_path / f"{seed}.h5", algorithm, **keys)).evaluations.personal_accuracy_mean[0])
    assert found[0] == found[1] == pytest.approx(0.5, abs=0.2)  # 300 guesses


def test_draws_of_a_replay_and_under_the_real_clock(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = {"torch": {"batched": False, "deterministic": True, "threads": 1}}
    first = draws(tmp_path / "real.h5", clock={"mode": "real"}, problem=options)
    again = mpifl.replay(first.path, output=str(tmp_path / "again.h5"), trust=True)
    np.testing.assert_array_equal(first.model, again.model)
    np.testing.assert_array_equal(first.evaluations.test_loss, again.evaluations.test_loss)


# -- metrics of class scores: by hand, by scikit-learn, in a run, and a user's own -------------------------------------
LABELS = np.array([0, 0, 0, 1, 1, 2])
SCORES = np.array(
    [[0.6, 0.3, 0.1], [0.4, 0.5, 0.1], [0.3, 0.2, 0.5], [0.3, 0.6, 0.1], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]
)


@pytest.mark.parametrize("classes", [2, 5])
def test_as_scikit_learn_has_them(classes: int) -> None:
    from sklearn import metrics

    rng = np.random.default_rng(classes)
    labels = rng.permutation(np.arange(200) % classes)
    scores = softmax(rng.standard_normal((200, classes)).round(1) + 0.7 * np.eye(classes)[labels])
    predicted = scores.argmax(1)
    more = {"multi_class": "ovr", "average": "macro"} if classes > 2 else {}
    area = metrics.roc_auc_score(labels, scores if classes > 2 else scores[:, 1], **more)
    assert METRICS["auroc"](labels, scores) == pytest.approx(area, rel=1e-12)
    assert METRICS["balanced_accuracy"](labels, scores) == metrics.balanced_accuracy_score(labels, predicted)
    assert METRICS["macro_f1"](labels, scores) == metrics.f1_score(labels, predicted, average="macro")


@pytest.mark.filterwarnings("error")
def test_classes_that_no_label_has() -> None:
    """They count in F1 alone, where they are predicted: 0 of class 2. Scores that are not finite have no metric."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    found = {name: metric(labels, SCORES) for name, metric in METRICS.items()}
    assert found["auroc"] == pytest.approx((6.5 / 9 + 6 / 9) / 2)
    assert found["balanced_accuracy"] == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert found["macro_f1"] == pytest.approx((2 / 5 + 2 / 5 + 0) / 3)
    assert np.isnan(METRICS["auroc"](np.zeros(6, int), SCORES))
    infinite = softmax(np.array([[np.inf, 1.0], [0.0, 1.0]]))
    assert np.isnan(list(measure({**METRICS, "own:f": fails}, np.array([0, 1]), infinite).values())).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [Logistic(bias=True), NonconvexLogistic(), Mlp(hidden=5), "torch-mlp"], ids=str)
def test_scores_are_the_probabilities_of_the_test_loss(model: Any, dtype: str) -> None:
    """The test loss is the mean of -log p(label), the test accuracy that of the most probable class."""
    if model == "torch-mlp":
        pytest.importorskip("torch")
        from mpifl.problems.models.networks import TorchMlp

        model = TorchMlp(hidden=[5])
    data = FedPDSynthetic(kind="strong", samples=40) if isinstance(model, NonconvexLogistic) else None
    problem = load(ProblemConfig(data=data, clients=4, model=model, dtype=dtype, test_split=0.2))  # type: ignore[arg-type]
    x = np.random.default_rng(2).standard_normal(problem.d).astype(dtype)
    found = problem.test_scores(x)
    assert found is not None
    labels, scores = found
    assert scores.sum(1) == pytest.approx(np.ones(len(labels)))
    metrics = problem.evaluate(x)
    rows = np.arange(len(labels))
    assert -np.log(scores[rows, labels]).mean() == pytest.approx(metrics["test_loss"], rel=1e-4)
    assert (scores.argmax(1) == labels).mean() == pytest.approx(metrics["test_accuracy"])


def fails(labels: np.ndarray, scores: np.ndarray) -> float:
    raise KeyError("lost")


# -- a user's own ------------------------------------------------------------------------------------------------------
def top2(labels: np.ndarray, scores: np.ndarray) -> float:
    """The fraction of rows whose label is among the two most probable classes."""
    assert not labels.flags.writeable and not scores.flags.writeable
    return float((np.argsort(scores, 1)[:, -2:] == labels[:, None]).any(1).mean())


HERE = __name__
OWN = f"{HERE}:top2"


def metrics_job(path: Path, *overrides: str, **more: Any) -> mpifl.Job:
    base = {
        "name": "metrics", "seed": 2, "output": str(path), "stop": {"updates": 40},
        "problem": {"clients": 5, "batch_size": 8}, "algorithm": {"name": "area", "step_size": 10},
        "clock": {"mode": "virtual", "delay": "exponential"},
        "evaluate": {"updates": 10, "metrics": ["auroc", OWN, "macro_f1"]},
    }  # fmt: skip
    return mpifl.load_job({**base, **more}, *overrides)


def test_metrics_in_the_run_file(tmp_path: Path) -> None:
    """A column each, beside those of every run, and the last row is of the final model."""
    made = metrics_job(tmp_path / "run.h5")
    mpifl.run(made).close()
    mpifl.run(metrics_job(tmp_path / "plain.h5", evaluate={"updates": 10})).close()
    both = mpifl.open_runs(tmp_path).evaluations
    assert both.auroc.notna().tolist() == [False] * 5 + [True] * 5
    with mpifl.open_run(made.output) as run:
        rows = run.evaluations
        assert list(rows)[-3:] == ["auroc", OWN, "macro_f1"] and len(rows) == 5
        assert run.metrics.metric.tolist() == ["auroc", OWN, "macro_f1"] * 5
        assert run.metrics.evaluation.tolist() == np.repeat(np.arange(5), 3).tolist()
        labels, scores = load(made.problem).test_scores(run.model) or (LABELS, SCORES)
        for name, function in (("auroc", METRICS["auroc"]), ("macro_f1", METRICS["macro_f1"])):
            assert rows[name].iloc[-1] == function(labels, scores)
        best, second = np.sort(scores, 1)[:, -1], np.sort(scores, 1)[:, -2]
        mine = scores[np.arange(len(labels)), labels]
        assert rows[OWN].iloc[-1] == ((mine == best) | (mine == second)).mean()
    with mpifl.open_run(tmp_path / "plain.h5") as plain:
        shared = list(plain.evaluations)
        assert plain.evaluations.equals(rows[shared]) and len(plain.metrics) == 0


def test_a_run_file_does_not_import_its_metrics(tmp_path: Path) -> None:
    """A metric of one's own is code: a replay needs trust, or the same names on the command line."""
    mpifl.run(metrics_job(tmp_path / "run.h5")).close()
    with mpifl.open_run(tmp_path / "run.h5") as run:
        config = run.config
    assert outside_code(config) == {"evaluate.metrics[1]": OWN}
    says = f"names code: {HERE}:top2 .evaluate.metrics.1., from .*; to import and run it, give --trust"
    with pytest.raises(ConfigError, match=says):
        mpifl.replay(tmp_path / "run.h5", output=tmp_path / "again.h5")
    named, others = split_overrides(config, Path("run.h5"), [("evaluate.metrics", ["auroc", OWN, "macro_f1"])])
    assert named == {"evaluate.metrics[1]"} and not others
    with pytest.raises(ConfigError, match=r"run\.h5 names other code; expected"):
        split_overrides(config, Path("run.h5"), [("evaluate.metrics", ["auroc", "os:system", "macro_f1"])])
    given = f"evaluate.metrics=[auroc, {OWN}, macro_f1]"
    assert main(["replay", str(tmp_path / "run.h5"), f"output={tmp_path}/again.h5", given]) == 0
    with mpifl.open_run(tmp_path / "run.h5") as one, mpifl.open_run(tmp_path / "again.h5") as other:
        assert one.metrics.equals(other.metrics)


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (fails, "it raised KeyError: 'lost'"),
        (lambda labels, scores: sys.exit(0), "it raised SystemExit: 0"),
        (lambda labels, scores: "high", "it returned 'high' (str)"),
        (lambda labels, scores: None, "it returned NoneType"),
        (lambda labels, scores: True, "it returned True (bool)"),
        (lambda labels, scores: scores, "it returned ndarray"),
        (lambda labels: 0.0, "it raised TypeError: <lambda>() takes 1 positional argument but 2 were given"),
        ("a text", "it is 'a text' (str)"),
        (None, "cannot be imported: module 'tests.server.test_evaluator' has no attribute 'own'"),
    ],
)
def test_a_wrong_function_is_named_before_any_work(
    metric: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if metric is not None:
        monkeypatch.setattr(sys.modules[__name__], "own", metric, raising=False)
    with pytest.raises(ConfigError) as raised:
        mpifl.run(metrics_job(tmp_path / "run.h5", f"evaluate.metrics=[auroc, '{HERE}:own']"))
    assert str(raised.value).startswith(f"evaluate.metrics={HERE}:own: ") and says in str(raised.value)
    assert "\n" not in str(raised.value) and not (tmp_path / "run.h5").exists()


@pytest.mark.parametrize("right", [2, 4, 5])  # calls: one before the run, one at each of 5 evaluations
def test_a_function_that_goes_wrong_later_ends_the_run(
    right: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Any = chain([0.5] * right, repeat([0.5]))
    monkeypatch.setattr(sys.modules[__name__], "own", lambda labels, scores: next(answers), raising=False)
    says = rf"evaluate.metrics={HERE}:own: it returned \[0.5\] \(list\); expected a function"
    with pytest.raises(RunFailed, match=says):
        mpifl.run(metrics_job(tmp_path / "run.h5", f"evaluate.metrics=['{HERE}:own']"))
    with mpifl.open_run(tmp_path / "run.h5") as run:
        assert run.status == "failed" and HERE in run.events[run.events.kind == "failed"].text.iloc[0]
        assert len(run.metrics) == right - 1 and run.model_version == 0


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("evaluate.metrics=[aurc]", "package.module:function; the nearest is auroc"),
        ("evaluate.metrics=[auroc, f1]", "evaluate.metrics[1]=f1: no such metric"),
        ("evaluate.metrics=[auroc, auroc]", "evaluate.metrics=auroc, auroc: a name occurs twice; expected at most 20"),
        ("evaluate.metrics=['a b:c']", "evaluate.metrics[0]=a b:c: not the name of a function, or too long"),
        ("evaluate.metrics=auroc", "evaluate.metrics=auroc: not valid; expected a list of texts"),
        ("problem={model: quadratic}", "the model quadratic has no class labels; expected []"),
        ("problem={data: fedpd-synthetic, model: nonconvex-logistic}", "there are no test rows; expected []"),
        ("problem={entry: tests.problems.test_validation:entry}", "there are no test rows; expected []"),
        (f"problem={{entry: {HERE}:regression}}", "this problem has no class labels, or no scores of the classes;"),
    ],
)
def test_wrong_metrics_are_refused_before_there_is_a_file(override: str, says: str, tmp_path: Path) -> None:
    if "entry" in override:
        pytest.importorskip("torch")
    with pytest.raises(ConfigError) as raised:
        mpifl.run(metrics_job(tmp_path / "run.h5", override))
    assert says in str(raised.value) and not (tmp_path / "run.h5").exists()


def regression() -> Any:
    from tests.problems.test_validation import entry

    module, loss, datasets = entry()
    return module, loss, datasets, datasets[0]
