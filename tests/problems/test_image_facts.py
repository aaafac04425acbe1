"""The real image sets against published facts about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpifl.problems import DATA, ProblemConfig, Rows, load
from mpifl.problems.data import Digits, Mnist
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.models import Logistic
from mpifl.problems.partitions import NearIid
from tests.problems.conftest import refusal

MNIST_COUNTS = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def read(root: Path, name: str) -> Rows:
    if not (root / name).is_dir():
        pytest.skip(f"no {name} under MPIFL_DATA")
    return DATA[name]().read(root, False, None)


@pytest.mark.parametrize(
    ("name", "train", "test", "classes", "mean", "std"),
    [
        ("mnist", 60000, 10000, 10, 0.1307, 0.3081),
        ("fashion-mnist", 60000, 10000, 10, 0.2860, 0.3530),
        ("emnist-letters", 124800, 20800, 26, 0.1722, 0.3309),
    ],
)
def test_published_facts(
    data_root: Path, name: str, train: int, test: int, classes: int, mean: float, std: float
) -> None:
    rows = read(data_root, name)
    assert rows.x.shape == (train, 784) and rows.x_test.shape == (test, 784) and rows.x.dtype == np.uint8
    assert rows.classes == classes
    assert round(float(rows.x.mean()) / 255, 4) == mean
    assert round(float(rows.x[::5].std()) / 255, 3) == pytest.approx(std, abs=2e-3)
    counts = np.bincount(rows.y, minlength=classes)
    assert counts.tolist() == (MNIST_COUNTS.tolist() if name == "mnist" else [train // classes] * classes)
    if name == "emnist-letters":
        assert np.bincount(rows.y_test).tolist() == [800] * 26
        w = rows.x[rows.y == 22].mean(0).reshape(28, 28)  # a W is its mirror image left to right, not top to bottom
        assert np.corrcoef(w.ravel(), w[:, ::-1].ravel())[0, 1] > 0.7 > np.corrcoef(w.ravel(), w[::-1].ravel())[0, 1]


def test_area_setting(data_root: Path) -> None:
    """arXiv 2405.10123: 128 clients with at least 32 rows; the initial model's regulariser is nu/2 * 7840/12."""
    read(data_root, "mnist")
    model, split = Logistic(), Dirichlet(alpha=0.1)
    problem = load(ProblemConfig(Mnist(), str(data_root), clients=128, partition=split, l2=1e-3, batch_size=32))
    assert problem.d == 7840 and problem.samples.min() >= 32 and problem.samples.sum() == 60000
    x = problem.initial(0)
    bare = problem.evaluate(np.zeros_like(x))
    assert bare["train_loss"] == pytest.approx(np.log(10), rel=1e-6)
    assert bare["test_accuracy"] == 0.098  # all scores equal: the first class, 980 of 10,000
    assert model.regulariser(x, 1e-3, problem.layout) == pytest.approx(1e-3 / 2 * 7840 / 12, rel=0.02)


def test_digits() -> None:
    """The rows are scikit-learn's own 8 x 8 images, shuffled before the split."""
    from sklearn.datasets import load_digits

    rows = Digits().read(Path("nowhere"), False, None)
    assert rows.x.shape == (1497, 64) and rows.x_test.shape == (300, 64) and rows.shape == (1, 8, 8)
    assert rows.x.max() == 16 and rows.divisor == 16
    ours = {row.tobytes() for row in np.concatenate([rows.x, rows.x_test]).reshape(-1, 8, 8)}
    assert ours == {image.astype(np.uint8).tobytes() for image in load_digits().images}
    both = np.bincount(np.concatenate([rows.y, rows.y_test]))
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's count of each digit
    assert np.bincount(rows.y_test, minlength=10).min() > 15


def test_more_clients_than_rows() -> None:
    with refusal(r"problem.clients=1498: there are 1497 training rows; expected at most 1497"):
        load(ProblemConfig(clients=1498))
    with refusal(r"problem.clients=200: client 0 would have no rows; expected fewer clients"):
        load(ProblemConfig(clients=200, partition=NearIid()))
