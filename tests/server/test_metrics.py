"""Metrics of class scores: by hand, by scikit-learn, in a run, and a user's own."""

from __future__ import annotations

import sys
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.cli import main
from mpifl.config.trust import outside_code, split_overrides
from mpifl.errors import ConfigError, RunFailed
from mpifl.problems import ProblemConfig, load
from mpifl.problems.data import FedPDSynthetic
from mpifl.problems.metrics import METRICS, softmax
from mpifl.problems.models import Logistic, Mlp, NonconvexLogistic
from mpifl.server.evaluation_metrics import measure

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
    """They count in F1 alone, where they are predicted: 0 of class 2."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    found = {name: metric(labels, SCORES) for name, metric in METRICS.items()}
    assert found["auroc"] == pytest.approx((6.5 / 9 + 6 / 9) / 2)
    assert found["balanced_accuracy"] == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert found["macro_f1"] == pytest.approx((2 / 5 + 2 / 5 + 0) / 3)
    assert np.isnan(METRICS["auroc"](np.zeros(6, int), SCORES))


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


def test_scores_that_are_not_finite_give_nan() -> None:
    scores = softmax(np.array([[np.inf, 1.0], [0.0, 1.0]]))
    assert np.isnan(list(measure({**METRICS, "own:f": fails}, np.array([0, 1]), scores).values())).all()


def fails(labels: np.ndarray, scores: np.ndarray) -> float:
    raise KeyError("lost")


# -- a user's own ------------------------------------------------------------------------------------------------------
def top2(labels: np.ndarray, scores: np.ndarray) -> float:
    """The fraction of rows whose label is among the two most probable classes."""
    assert not labels.flags.writeable and not scores.flags.writeable
    return float((np.argsort(scores, 1)[:, -2:] == labels[:, None]).any(1).mean())


HERE = "tests.server.test_metrics"
OWN = f"{HERE}:top2"


def job(path: Path, *overrides: str, **more: Any) -> mpifl.Job:
    base = {
        "name": "metrics", "seed": 2, "output": str(path), "stop": {"updates": 40},
        "problem": {"clients": 5, "batch_size": 8}, "algorithm": {"name": "area", "step_size": 10},
        "clock": {"mode": "virtual", "delay": "exponential"},
        "evaluate": {"updates": 10, "metrics": ["auroc", OWN, "macro_f1"]},
    }  # fmt: skip
    return mpifl.load_job({**base, **more}, *overrides)


def test_metrics_in_the_run_file(tmp_path: Path) -> None:
    """A column each, beside those of every run, and the last row is of the final model."""
    made = job(tmp_path / "run.h5")
    mpifl.run(made).close()
    mpifl.run(job(tmp_path / "plain.h5", evaluate={"updates": 10})).close()
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


def test_a_run_file_does_not_import_its_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A metric of one's own is code: a replay needs trust, or the same names on the command line."""
    mpifl.run(job(tmp_path / "run.h5")).close()
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
        (None, "cannot be imported: module 'tests.server.test_metrics' has no attribute 'own'"),
    ],
)
def test_a_wrong_function_is_named_before_any_work(
    metric: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if metric is not None:
        monkeypatch.setattr(sys.modules[__name__], "own", metric, raising=False)
    with pytest.raises(ConfigError) as raised:
        mpifl.run(job(tmp_path / "run.h5", f"evaluate.metrics=[auroc, '{HERE}:own']"))
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
        mpifl.run(job(tmp_path / "run.h5", f"evaluate.metrics=['{HERE}:own']"))
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
        ("problem={model: quadratic}", "the model quadratic has no class labels; expected none"),
        ("problem={data: fedpd-synthetic, model: nonconvex-logistic}", "there are no test rows"),
        ("problem={entry: tests.problems.test_validation:entry}", "there are no test rows"),
        (f"problem={{entry: {HERE}:regression}}", "this problem has no class labels, or no scores of the classes;"),
    ],
)
def test_wrong_metrics(override: str, says: str, tmp_path: Path) -> None:
    if "entry" in override:
        pytest.importorskip("torch")
    with pytest.raises(ConfigError) as raised:
        mpifl.run(job(tmp_path / "run.h5", override))
    assert says in str(raised.value) and not (tmp_path / "run.h5").exists()


def regression() -> Any:
    from tests.problems.test_validation import entry

    module, loss, datasets = entry()
    return module, loss, datasets, datasets[0]
