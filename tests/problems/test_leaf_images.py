"""LEAF's FEMNIST in its own JSON layout, and the shapes of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.problems import DATA, ProblemConfig, load
from mpifl.problems.problem import Rows
from tests.problems.conftest import write_leaf


def writer(k: int, rows: int) -> dict[str, list[Any]]:
    """A writer as data_to_json.py writes one: pixels/255, and labels up to 61."""
    generator = np.random.default_rng(k)
    pixels = generator.integers(0, 256, (rows, 784))
    return {"x": (pixels / 255).tolist(), "y": generator.integers(0, 62, rows).tolist()}


def read(folder: Path, **options: Any) -> Rows:
    return DATA["femnist"](path=str(folder), **options).read(folder, False, None)


def test_rows(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", {"f0001_41": writer(1, 3), "f0002_42": writer(2, 1)}, "all_data_0.json")
    write_leaf(tmp_path / "train", {"f0000_14": writer(3, 2)}, "all_data_1.json")
    write_leaf(tmp_path / "test", {"f0002_42": writer(4, 2), "f0003_43": writer(5, 1)})
    rows = read(tmp_path)
    pixels = np.concatenate([np.random.default_rng(k).integers(0, 256, (n, 784)) for k, n in ((1, 3), (2, 1), (3, 2))])
    assert rows.x.dtype == np.float32 and (rows.x == (pixels / 255).astype(np.float32)).all() and rows.divisor == 1
    assert rows.y.tolist() == [y for k, n in ((1, 3), (2, 1), (3, 2)) for y in writer(k, n)["y"]]
    assert rows.owner is not None and rows.owner.tolist() == [0, 0, 0, 1, 2, 2]
    assert rows.owner_test is not None and [*map(int, np.sign(rows.owner_test))] == [1, 1, -1]
    assert rows.x_test.dtype == np.float32 and rows.y_test.tolist() == writer(4, 2)["y"] + writer(5, 1)["y"]
    assert rows.classes == 62 and rows.shape == (1, 28, 28)
    problem = load(ProblemConfig(data=DATA["femnist"](path=str(tmp_path))))  # type: ignore[call-arg]
    assert problem.samples.tolist() == [3, 1, 2] and problem.d == 784 * 62


def with_first(change: Callable[[dict[str, list[Any]]], None]) -> dict[str, list[Any]]:
    held = writer(1, 2)
    change(held)
    return held


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda u: u["y"].__setitem__(0, 62), r"y has labels beyond 0 to 61"),
        (lambda u: u["y"].__setitem__(0, -1), r"y has labels beyond 0 to 61"),
        (lambda u: u["y"].__setitem__(0, 1.5), r"y is not a whole number for each of 2 rows"),
        (lambda u: u["y"].append(1), r"y is not a whole number for each of 2 rows"),
        (lambda u: u["x"][0].pop(), ""),
        (lambda u: [row.pop() for row in u["x"]], "x has no images of 784 numbers between 0 and 1"),
        (lambda u: u["x"][1].__setitem__(5, 255), "x has no images of 784 numbers between 0 and 1"),
        (lambda u: u["x"][1].__setitem__(5, float("nan")), "x has no images of 784 numbers between 0 and 1"),
        (lambda u: u["x"][1].__setitem__(5, "white"), ""),
        (lambda u: u.pop("x"), "'x'"),
        (lambda u: (u["x"].clear(), u["y"].clear()), "no rows"),
    ],
)
def test_bad_writer(tmp_path: Path, change: Callable[[dict[str, list[Any]]], None], text: str) -> None:
    file = write_leaf(tmp_path / "train", {"good": writer(2, 1), "bad": with_first(change)})
    with pytest.raises(ConfigError, match=rf"^data file={file}: user bad: .*{text}"):
        read(tmp_path)


def test_shape_of_digits() -> None:
    """The rows in that shape are scikit-learn's own 8 x 8 images."""
    from sklearn.datasets import load_digits

    rows = DATA["digits"]().read(Path(), False, None)
    assert rows.shape == (1, 8, 8)
    ours = {row.tobytes() for row in np.concatenate([rows.x, rows.x_test]).reshape(-1, 8, 8)}
    assert ours == {image.astype(np.uint8).tobytes() for image in load_digits().images}
    assert DATA["synthetic"]().read(Path(), False, None).shape == ()
