"""MNIST, Fashion-MNIST and EMNIST letters from their IDX files under <root>/<name>/; features are pixel/255."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems.data.download import fetch
from mpifl.problems.data.idx import find_idx, read_idx
from mpifl.problems.problem import Data, RowCounts, Rows

SIDE = 28  # pixels


@dataclass(frozen=True)
class Images(Data):
    """Grey images of 28 x 28 pixels."""

    classes: ClassVar[int] = 10
    lowest: ClassVar[int] = 0  # the first class's label in the files
    transposed: ClassVar[bool] = False  # images are stored column by column
    train: ClassVar[str] = "train"
    test: ClassVar[str] = "t10k"
    rows: ClassVar[tuple[int, int]] = (60_000, 10_000)  # published numbers of training and test rows

    name: str = ""

    def counts(self, clients: int) -> RowCounts:
        return RowCounts(*self.rows, SIDE * SIDE, self.classes, raw=SIDE * SIDE)

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        x, y = self._half(root / self.name, self.train, download)
        x_test, y_test = self._half(root / self.name, self.test, download)
        return Rows(x, y, x_test, y_test, self.classes, divisor=255, shape=(1, SIDE, SIDE))

    def _half(self, folder: Path, part: str, download: bool) -> tuple[np.ndarray, np.ndarray]:
        images = self._file(folder, f"{part}-images-idx3-ubyte", download)
        x = read_idx(images, 3)
        if x.shape[1:] != (SIDE, SIDE) or not len(x):
            raise ConfigError("data file", images, f"its shape is {x.shape}", f"images of {SIDE} x {SIDE} pixels")
        labels = self._file(folder, f"{part}-labels-idx1-ubyte", download)
        y = read_idx(labels, 1).astype(np.int64)
        if len(y) != len(x):
            raise ConfigError("data file", labels, f"it has {len(y)} labels", f"one for each of the {len(x)} images")
        if y.min() < self.lowest or y.max() >= self.lowest + self.classes:
            low, high = self.lowest, self.lowest + self.classes - 1
            raise ConfigError("data file", labels, f"it has labels {y.min()} to {y.max()}", f"labels {low} to {high}")
        if self.transposed:
            x = np.ascontiguousarray(x.transpose(0, 2, 1))
        return x.reshape(len(x), -1), y - self.lowest

    def _file(self, folder: Path, name: str, download: bool) -> Path:
        found = find_idx(folder, name)
        if found is None and download:
            fetch(self.name, folder, f"{name}.gz")
            found = find_idx(folder, name)
        if found is None:
            raise ConfigError(
                "data file", folder / f"{name}.gz", "no such file", "an existing file", "or set problem.download=true"
            )
        return found


@dataclass(frozen=True)
class Mnist(Images):
    """MNIST: 60,000 handwritten digits to train on, 10,000 to test on."""

    name: str = "mnist"


@dataclass(frozen=True)
class FashionMnist(Images):
    """Fashion-MNIST: 10 kinds of clothing, 60,000 images to train on, 10,000 to test on (arXiv 1708.07747)."""

    name: str = "fashion-mnist"


@dataclass(frozen=True)
class EmnistLetters(Images):
    """EMNIST letters: 26 classes, 124,800 images to train on, 20,800 to test on (arXiv 1702.05373)."""

    classes: ClassVar[int] = 26
    lowest: ClassVar[int] = 1
    transposed: ClassVar[bool] = True
    train: ClassVar[str] = "emnist-letters-train"
    test: ClassVar[str] = "emnist-letters-test"
    rows: ClassVar[tuple[int, int]] = (124_800, 20_800)

    name: str = "emnist-letters"
