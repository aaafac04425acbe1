"""LEAF's FEMNIST in its own JSON layout, and the shapes of images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifl.errors import ConfigError
from mpifl.problems import DATA, ProblemConfig, load
from mpifl.problems.base import Rows
from tests.problems.conftest import write_leaf
from tests.tiers import examples


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


def test_chosen_writers(tmp_path: Path) -> None:
    """Writer k has k training rows and one test row; test rows of a writer without training rows stay."""
    writers = {f"w{k}": writer(k, k) for k in range(1, 9)}
    write_leaf(tmp_path / "train", writers)
    write_leaf(tmp_path / "test", {**{w: writer(100 + int(w[1]), 1) for w in writers}, "other": writer(99, 1)})
    draws = set()
    for seed in range(4):
        rows = read(tmp_path, users=3, min_samples=3, seed=seed)
        counts = np.bincount(np.asarray(rows.owner)).tolist()
        assert len(counts) == 3 and counts == sorted(counts) and min(counts) >= 3
        assert (rows.x == np.concatenate([np.array(writers[f"w{k}"]["x"], np.float32) for k in counts])).all()
        assert rows.y_test.tolist() == [writer(100 + k, 1)["y"][0] for k in counts] + writer(99, 1)["y"]
        assert np.asarray(rows.owner_test)[:3].tolist() == [0, 1, 2] and np.asarray(rows.owner_test)[3] < 0
        draws.add(tuple(counts))
    assert len(draws) > 1
    with pytest.raises(ConfigError, match=rf"^problem.data.users=9: at most 8, the users .* in {tmp_path}$"):
        read(tmp_path, users=9)


def with_first(change: Callable[[dict[str, list[Any]]], None]) -> dict[str, list[Any]]:
    held = writer(1, 2)
    change(held)
    return held


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda u: u["y"].__setitem__(0, 62), "labels 0 to 61"),
        (lambda u: u["y"].__setitem__(0, -1), "labels 0 to 61"),
        (lambda u: u["y"].__setitem__(0, 1.5), "a whole label for each of 2 rows"),
        (lambda u: u["y"].append(1), "a whole label for each of 2 rows"),
        (lambda u: u["x"][0].pop(), ""),
        (lambda u: [row.pop() for row in u["x"]], "images of 784 numbers between 0 and 1"),
        (lambda u: u["x"][1].__setitem__(5, 255), "images of 784 numbers between 0 and 1"),
        (lambda u: u["x"][1].__setitem__(5, float("nan")), "images of 784 numbers between 0 and 1"),
        (lambda u: u["x"][1].__setitem__(5, "white"), ""),
        (lambda u: u.pop("x"), "'x'"),
        (lambda u: (u["x"].clear(), u["y"].clear()), "at least one row"),
    ],
)
def test_bad_writer(tmp_path: Path, change: Callable[[dict[str, list[Any]]], None], text: str) -> None:
    file = write_leaf(tmp_path / "train", {"good": writer(2, 1), "bad": with_first(change)})
    with pytest.raises(ConfigError, match=rf"^data file={file}: leaf json \(users, user_data\), in user bad: .*{text}"):
        read(tmp_path)


WHOLE = json.dumps({"users": ["a"], "user_data": {"a": writer(1, 1)}})


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE) - 1))
def test_cut_file(tmp_path: Path, length: int) -> None:
    (tmp_path / "train").mkdir(exist_ok=True)
    (tmp_path / "train/a.json").write_text(WHOLE)
    assert len(read(tmp_path).y) == 1
    (tmp_path / "train/a.json").write_text(WHOLE[:length])
    with pytest.raises(ConfigError, match=rf"^data file={tmp_path / 'train/a.json'}: leaf json"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist-letters"])
def test_shape_of_idx_images(image_root: Callable[..., Path], name: str) -> None:
    rows = DATA[name]().read(image_root(name, first=int(name == "emnist-letters")), False, None)
    assert rows.shape == (1, 28, 28) and rows.tokens is None


def test_shape_of_digits() -> None:
    """The rows in that shape are scikit-learn's own 8 x 8 images."""
    from sklearn.datasets import load_digits

    rows = DATA["digits"]().read(Path(), False, None)
    assert rows.shape == (1, 8, 8)
    ours = {row.tobytes() for row in np.concatenate([rows.x, rows.x_test]).reshape(-1, 8, 8)}
    assert ours == {image.astype(np.uint8).tobytes() for image in load_digits().images}
    assert DATA["synthetic"]().read(Path(), False, None).shape == ()
