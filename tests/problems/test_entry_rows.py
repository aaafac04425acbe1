"""Rows of a user that are dicts, or that a function makes batches of, and test rows for each client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.problems import ProblemConfig, load

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

CLIENTS, SIZES = 3, (7, 4, 9)
DRAW = torch.Generator().manual_seed(5)
X = [torch.randn(s, 4, generator=DRAW) for s in (*SIZES, 6)]
Y = [(x.sum(1) > 0).long() for x in X]


class Linear(nn.Linear):  # type: ignore[misc]
    """Takes the features in one tensor, or in the parts a and b of a dict."""

    def forward(self, x: Any) -> Any:
        return super().forward(x if isinstance(x, torch.Tensor) else torch.cat([x["a"], x["b"]], 1))


def entry(kind: str, tests: str = "one") -> Any:
    sets: list[Any] = [*map(TensorDataset, X, Y)]
    if kind == "dict":
        sets = [[({"a": x[:1], "b": x[1:]}, y) for x, y in rows] for rows in sets]
    *clients, test = sets
    found = {"one": test, "own": clients, "some": [clients[0], None, clients[2]], "none": None}
    return {"module": Linear(4, 2), "loss": cross_entropy, "datasets": clients, "test": found[tests]}


def configured(kind: str, tests: str = "one", **more: Any) -> ProblemConfig:
    return ProblemConfig(entry=f"{__name__}:entry", options={"kind": kind, "tests": tests}, batch_size=3, **more)


def run(folder: Path, kind: str, tests: str = "one", **more: Any) -> mpifl.Run:
    job = {
        "name": kind.replace(" ", "-") + tests, "seed": 2, "output": str(folder / f"{kind}{tests}.h5"),
        "problem": {"entry": f"{__name__}:entry", "options": {"kind": kind, "tests": tests}, "batch_size": 3},
        "algorithm": {"name": "fedavg", "step_size": 0.5, "local_epochs": 1},
        "clock": {"mode": "virtual", "delay": "exponential"}, "stop": {"updates": 12}, "evaluate": {"updates": 6},
    }  # fmt: skip
    return mpifl.run({**job, **more})


@pytest.mark.parametrize("split", [None, 0.25])
def test_rows_that_are_collated_are_held_out_and_drawn_as_tensors_are(split: float | None) -> None:
    one, other = (
        load(configured(k, validation_split=0.25, evaluation_rows=9, test_split=split)) for k in ("dict", "tensors")
    )
    x = one.initial(0)
    assert one.samples.tolist() == other.samples.tolist() and one.validation_rows == other.validation_rows > 0
    found, expected = one.evaluate(x), other.evaluate(other.initial(0))
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True)
    np.testing.assert_allclose(one.gradient(x), other.gradient(x), rtol=1e-5, atol=1e-7)


def right(weight: Any, x: Any, y: Any) -> float:
    """The fraction of rows whose highest score is that of their class."""
    scores = x @ weight[:8].reshape(2, 4).T + weight[8:]
    return float(np.mean(scores.argmax(1) == y))


@pytest.mark.parametrize("kind", ["tensors", "dict"])
def test_each_client_has_test_rows_of_its_own(kind: str) -> None:
    """Accuracies by hand; the rows of all clients together are the test rows."""
    problem = load(configured(kind, "some"))
    x = problem.initial(1)
    rows = [(X[i].numpy(), Y[i].numpy()) for i in (0, 2)]
    metrics, own = problem.evaluate_with_clients(x)
    expected = [right(x, *each) for each in rows]
    assert own.tolist() == pytest.approx([expected[0], np.nan, expected[1]], nan_ok=True)
    assert metrics["client_accuracy_mean"] == pytest.approx(np.mean(expected))
    together = [np.concatenate(part) for part in zip(*rows, strict=True)]
    assert metrics["test_accuracy"] == pytest.approx(right(x, *together))


def test_test_split_holds_out_rows_of_each_client() -> None:
    """int(0.3 s_i) of the rows of client i, which do not train; all of them together are the test rows."""
    problem = load(configured("tensors", "none", test_split=0.3))
    held = [int(0.3 * s) for s in SIZES]
    assert problem.samples.tolist() == [s - h for s, h in zip(SIZES, held, strict=True)]
    x = problem.initial(1)
    metrics, own = problem.evaluate_with_clients(x)
    assert [round(h * a, 6) % 1 for h, a in zip(held, own, strict=True)] == [0, 0, 0]
    assert metrics["test_accuracy"] == pytest.approx(np.dot(held, own) / sum(held))


def test_accuracies_of_clients_are_recorded(tmp_path: Path) -> None:
    with run(tmp_path, "tensors", "own", evaluate={"updates": 6, "clients": True}) as made:
        rows = made.client_evaluations
        last = rows[rows.evaluation == rows.evaluation.max()]
        assert last.client.tolist() == [0, 1, 2]
        expected = [right(made.model, X[i].numpy(), Y[i].numpy()) for i in range(CLIENTS)]
        assert last.accuracy.tolist() == pytest.approx(expected)


def test_a_personal_model_is_tested_on_its_clients_rows(tmp_path: Path) -> None:
    algorithm = {"name": "apfl", "step_size": 0.1, "local_epochs": 1}
    with run(tmp_path, "dict", "own", algorithm=algorithm) as made:
        assert made.evaluations.personal_accuracy_mean.notna().all()
