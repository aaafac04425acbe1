"""What a user's outputs predict: accuracies by hand, and none where outputs say nothing about labels."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import problems
from mpifl.api import job_yaml
from mpifl.problems import ProblemConfig
from tests.mpi import cases
from tests.problems.conftest import refusal

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from mpifl.problems.torch.predictions import find_prediction  # noqa: E402

HERE = __name__


class Identity(nn.Module):
    """Outputs are the rows, times a parameter that is 1 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return self.factor * x

    def opposite(self, outputs: Any) -> Any:
        """Predicted labels, where outputs are distances."""
        return outputs.argmin(1)


def ordinal(outputs: Any, y: Any) -> Any:
    """Of K labels: output j is the logit of y > j."""
    return F.binary_cross_entropy_with_logits(outputs, (y[:, None] > torch.arange(outputs.shape[1])).float())


def hazards(outputs: Any, y: Any) -> Any:
    """Output j is the logit of y = j, given y >= j."""
    at, columns = y[:, None], torch.arange(outputs.shape[1])
    losses = F.binary_cross_entropy_with_logits(outputs, (columns == at).float(), reduction="none")
    return (losses * (columns <= at)).sum(1).mean()


def focal(outputs: Any, y: Any) -> Any:
    p = F.softmax(outputs, 1).gather(1, y[:, None])
    return -((1 - p) ** 2 * p.log()).mean()


def two_heads(outputs: Any, y: Any) -> Any:
    return F.cross_entropy(outputs[:, :-1], y) + (outputs[:, -1] ** 2).mean()


LOSSES: dict[str, Any] = {
    "ce": F.cross_entropy,
    "module": nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([1.0, 2.0, 0.5])),
    "prior": lambda o, y: F.cross_entropy(o + torch.tensor([0.0, -1.0, -3.0]), y),
    "padding 0": lambda o, y: F.cross_entropy(o, y, ignore_index=0),
    "log softmax": F.nll_loss,
    "softmax": lambda o, y: F.nll_loss(o.log(), y),
    "focal": focal,
    "distances": lambda o, y: F.cross_entropy(-o, y),
    "ordinal": ordinal,
    "hazards": hazards,
    "two heads": two_heads,
    "poisson": lambda o, y: F.poisson_nll_loss(o[:, 0], y.float()),
    "count": lambda o, y: F.mse_loss(o[:, 0], y.float()),
    "bce": lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.float()),
    "bce flat": lambda o, y: F.binary_cross_entropy_with_logits(o, y),
    "bce masked": lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.float().clamp(0), weight=(y >= 0).float()),
    "probability": lambda o, y: F.binary_cross_entropy(o[:, 0], y.float()),
    "logistic": lambda o, y: F.soft_margin_loss(o[:, 0], y.float()),
    "hinge": lambda o, y: (1 - o[:, 0] * y).clamp(0).mean(),
    "squares": F.mse_loss,
    "many labels": lambda o, y: F.binary_cross_entropy_with_logits(o, y.float()),
    "one hot": lambda o, y: F.cross_entropy(o, y.float()),
}
THREE = [[2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [2.0, 0.0, 1.0]]  # classes 0, 1, 2, 0 have the largest
ONE = [[-0.5], [0.2], [0.7], [1.5]]


def entry(loss: str, rows: list[Any], y: list[Any], predict: str = "") -> Any:
    """One client, whose rows are the test rows, too."""
    module, data = Identity(), TensorDataset(torch.tensor(rows), torch.tensor(y))
    own = {"": (), "opposite": (module.opposite,), "round": (lambda o: o[:, 0].exp().round().long(),)}
    own |= {"ordinal": (lambda o: (o > 0).sum(1),)}
    return module, LOSSES[loss], [data], data, *own[predict]


def loaded(**options: Any) -> problems.Problem:
    return problems.load(ProblemConfig(entry=f"{HERE}:entry", options=options))


@pytest.mark.parametrize(
    ("loss", "rows", "y", "right"),
    [
        ("ce", THREE, [0, 1, 1, 2], 2 / 4),
        ("ce", [[*row, 0.0] for row in THREE], [0, 1, 1, 2], 2 / 4),  # a class that no row has
        ("ce", THREE, [0, 1, -100, 2], 2 / 3),
        ("module", THREE, [0, 1, -100, 2], 2 / 3),
        ("padding 0", THREE, [0, 1, 1, 2], 1 / 3),
        ("padding 0", THREE, [1, 1, 1, 2], 1 / 4),
        ("prior", THREE, [0, 1, 1, 2], 2 / 4),
        ("log softmax", [[x - 3 for x in row] for row in THREE], [0, 1, 1, 2], 2 / 4),
        ("softmax", [[0.2 + x / 10 for x in row] for row in THREE], [0, 1, 1, 2], 2 / 4),
        ("focal", THREE, [0, 1, 1, 2], 2 / 4),
        ("bce", ONE, [0, 0, 1, 1], 3 / 4),
        ("bce", ONE, [False, False, True, True], 3 / 4),
        ("bce masked", ONE, [0, 0, -1, 1], 2 / 3),
        ("bce flat", [row[0] for row in ONE], [0.0, 0.0, 1.0, 1.0], 3 / 4),
        ("bce flat", ONE, [[0.0], [0.0], [1.0], [1.0]], 3 / 4),
        ("probability", [[0.1], [0.4], [0.6], [0.9]], [0, 1, 1, 1], 3 / 4),
        ("logistic", ONE, [-1, -1, 1, -1], 2 / 4),
        ("hinge", ONE, [-1, -1, 1, 1], 3 / 4),
        # outputs that are no scores of labels
        ("distances", THREE, [0, 1, 1, 2], None),
        ("ordinal", [row[:2] for row in THREE], [0, 1, 1, 2], None),
        ("hazards", THREE, [0, 1, 1, 2], None),
        ("two heads", [[*row, 0.0] for row in THREE], [0, 1, 1, 2], None),
        ("poisson", ONE, [0, 3, 1, 0], None),
        ("poisson", ONE, [0, 1, 1, 0], None),
        ("count", ONE, [0, 1, 1, 0], None),
        ("many labels", THREE, [[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 1]], None),
        ("one hot", THREE, [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]], None),
        ("ce", [[[2.0, 0.0], [0.0, 1.0]]] * 2, [[0, 1], [1, 0]], None),  # a class for each of two pixels
        # targets that are no labels
        ("squares", ONE, [[0.3], [0.0], [1.0], [2.0]], math.nan),
        ("squares", ONE, [[0.0], [0.0], [1.0], [1.0]], math.nan),  # a linear model
        # labels that a function of the user's predicts
        ("distances, opposite", THREE, [2, 0, 1, 1], 3 / 4),  # the smallest: 2, 0, 0, 1
        ("distances, opposite", THREE, [2, 0, -100, 2], 2 / 3),
        ("ordinal, ordinal", [[-1.0, -2.0], [1.0, -1.0], [3.0, -1.0], [1.0, 1.0]], [0, 1, 2, 2], 3 / 4),
        ("poisson, round", [[0.0], [math.log(3)], [math.log(2.2)]], [1, 3, 1], 2 / 3),
    ],
)
def test_accuracies_are_those_by_hand_and_nan_where_there_are_none(
    loss: str, rows: Any, y: Any, right: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """None: there are none, which one line says."""
    loss, _, predict = loss.partition(", ")
    problem = loaded(loss=loss, rows=rows, y=y, predict=predict)
    found = problem.evaluate(problem.initial(0))["test_accuracy"]
    assert found == pytest.approx(math.nan if right is None else right, rel=1e-15, nan_ok=True)
    says = f"problem.entry={HERE}:entry: accuracies are NaN: "
    assert [says in line and "\n" not in line for line in caplog.messages] == [True] * (right is None)


def test_many_labels_and_classes_take_little_time() -> None:
    """Of 20,000 classes, of which 0 is ignored: those of the rows 0 to 3 are 0, 5, 9,999 and 19,999."""
    y, predicted = [0, 5, 9_999, 19_999], [0, 5, 9_998, 19_999]
    rows = torch.zeros(4, 20_000)
    rows[range(4), predicted] = 1
    every = torch.arange(20_000)
    prediction, _ = find_prediction(LOSSES["padding 0"], [rows], [every], every, None)
    assert prediction is not None and prediction.count(rows, torch.tensor(y)) == (2, 3)


@pytest.mark.parametrize(
    ("loss", "rows", "y", "labels", "scores"),
    [
        ("bce", [[0.0], [math.log(3)]], [0, 1], [0, 1], [[1 / 2, 1 / 2], [1 / 4, 3 / 4]]),
        ("logistic", [[0.0], [math.log(3)]], [-1, 1], [0, 1], [[1 / 2, 1 / 2], [1 / 4, 3 / 4]]),
        ("probability", [[0.25], [0.5]], [1, 0], [1, 0], [[3 / 4, 1 / 4], [1 / 2, 1 / 2]]),
        ("softmax", [[0.25, 0.75], [0.5, 0.5]], [1, 0], [1, 0], [[1 / 4, 3 / 4], [1 / 2, 1 / 2]]),
        ("ce", [[0.0, math.log(3)], [0.0, 9.0], [1.0, 1.0]], [0, -100, 1], [0, 1], [[1 / 4, 3 / 4], [1 / 2, 1 / 2]]),
    ],
)
def test_scores_are_probabilities(loss: str, rows: Any, y: Any, labels: Any, scores: Any) -> None:
    problem = loaded(loss=loss, rows=rows, y=y)
    found = problem.test_scores(problem.initial(0))
    assert found is not None and found[0].tolist() == labels
    np.testing.assert_allclose(found[1], scores, rtol=1e-6)


def job(path: Path, more: dict[str, Any], **options: Any) -> dict[str, Any]:
    problem = {"entry": f"{HERE}:entry", "options": {"rows": ONE, "y": [0, 0, 1, 1], **options}}
    return {"name": "p", "output": str(path), **cases.job({"name": "fedavg"}, problem), **more}


AUROC = {"evaluate": {"updates": 1, "metrics": ["auroc"]}}
NO_ACCURACY = "stop.accuracy=0.5: this problem has no test accuracy; expected null"


@pytest.mark.parametrize(
    ("more", "options", "says"),
    [
        ({"stop": {"accuracy": 0.5}}, {"loss": "poisson"}, NO_ACCURACY),
        ({"stop": {"accuracy": 0.5}, "problem": {"model": "quadratic", "clients": 2}}, {}, NO_ACCURACY),
        (AUROC, {"loss": "poisson"}, "no scores of the classes"),
        (AUROC, {"loss": "bce", "predict": "round"}, "no scores of the classes"),
    ],
)
def test_what_needs_an_accuracy_or_scores_is_refused_before_the_run(
    more: Any, options: Any, says: str, tmp_path: Path
) -> None:
    with refusal(re.escape(says)):
        mpifl.run(job(tmp_path / "run.h5", more, **options))
    assert not (tmp_path / "run.h5").exists()
    with refusal(re.escape(says)):  # `mpifl check --data`
        job_yaml(mpifl.load_job(job(tmp_path / "run.h5", more, **options)), load_data=True)
