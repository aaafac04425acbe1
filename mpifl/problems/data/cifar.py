"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) as published: the binary or the Python version, each unpacked into its own
folder under the data root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from mpifl.errors import ConfigError, error_text
from mpifl.problems.data.folder import Part
from mpifl.problems.problem import Data, RowCounts, Rows
from mpifl.safe_input import read_file
from mpifl.safe_pickle import read_pickle, unsigned_bytes

SHAPE = (3, 32, 32)  # channels, height, width
BYTES = 3 * 32 * 32
Columns = dict[str, int]  # label of an image -> number of classes, in the order of the binary version


@dataclass(frozen=True)
class Cifar(Data):
    """Colour images of 32 x 32 pixels: all of red row by row, then green, then blue."""

    binary: ClassVar[str]  # folder of the binary version, whose files end in .bin
    python: ClassVar[str]  # folder of the Python version
    train: ClassVar[tuple[str, ...]]
    test: ClassVar[str]
    columns: ClassVar[Columns]

    name: str = ""

    @property
    def labels(self) -> str:
        """The index of the label column that is learnt."""
        return "labels"

    def counts(self, clients: int) -> RowCounts:
        return RowCounts(50_000, 10_000, BYTES, self.columns[self.labels], raw=BYTES)

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        binary = (root / self.binary).is_dir()
        folder = root / (self.binary if binary else self.python)
        if not folder.is_dir():
            raise ConfigError(
                "data file", root / self.binary, "no such folder", f"an existing folder, or a folder {self.python}"
            )
        read, suffix = (read_binary, ".bin") if binary else (read_python, "")
        *train, test = (
            read(folder / f"{file}{suffix}", self.columns, self.labels) for file in (*self.train, self.test)
        )
        x, y = (np.concatenate(part) for part in zip(*train))
        return Rows(x, y, *test, self.columns[self.labels], divisor=255, shape=SHAPE)


@dataclass(frozen=True)
class Cifar10(Cifar):
    """CIFAR-10: 10 classes, 50,000 images to train on, 10,000 to test on; binary or Python version."""

    binary: ClassVar[str] = "cifar-10-batches-bin"
    python: ClassVar[str] = "cifar-10-batches-py"
    train: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{k}" for k in range(1, 6))
    test: ClassVar[str] = "test_batch"
    columns: ClassVar[Columns] = {"labels": 10}

    name: str = "cifar10"


@dataclass(frozen=True)
class Cifar100(Cifar):
    """CIFAR-100: 100 classes in 20 groups, 50,000 images to train on, 10,000 to test on; binary or Python version."""

    binary: ClassVar[str] = "cifar-100-binary"
    python: ClassVar[str] = "cifar-100-python"
    train: ClassVar[tuple[str, ...]] = ("train",)
    test: ClassVar[str] = "test"
    columns: ClassVar[Columns] = {"coarse_labels": 20, "fine_labels": 100}

    name: str = "cifar100"
    coarse: bool = False
    """Whether the 20 groups are the classes."""

    @property
    def labels(self) -> str:
        return "coarse_labels" if self.coarse else "fine_labels"


def read_binary(file: Path, columns: Columns, labels: str) -> Part:
    """Images (rows, 3072) and their labels (rows,) from records of one byte a label, then the pixels."""
    try:
        raw = np.frombuffer(read_file(file), np.uint8)
    except (OSError, ValueError) as error:
        raise ConfigError("data file", file, f"cannot be read: {error_text(error)}", "a readable file") from error
    size = len(columns) + BYTES
    if not len(raw) or len(raw) % size:
        raise ConfigError("data file", file, f"it has {len(raw)} bytes in all", f"records of {size} bytes")
    rows = raw.reshape(-1, size)
    return rows[:, len(columns) :], checked(rows[:, list(columns).index(labels)], columns[labels], file)


def read_python(file: Path, columns: Columns, labels: str) -> Part:
    """Images (rows, 3072) and their labels (rows,) from a pickled dictionary; see `read_pickle`."""
    batch = read_pickle(file)
    try:
        x = unsigned_bytes(batch.get(b"data"), BYTES)
    except ValueError as error:
        raise ConfigError("data file", file, "its entry data is something else", str(error)) from error
    y = batch.get(labels.encode())
    if not len(x) or not isinstance(y, list) or len(y) != len(x) or not all(isinstance(label, int) for label in y):
        expected = f"a list with one label for each of {len(x)} images"
        raise ConfigError("data file", file, f"its entry {labels} is something else", expected)
    return x, checked(np.array(y), columns[labels], file)


def checked(y: np.ndarray, classes: int, file: Path) -> np.ndarray:
    """The labels y (rows,) as int64. Raises ConfigError if one is not a label."""
    if y.min() < 0 or y.max() >= classes:
        raise ConfigError("data file", file, f"it has labels {y.min()} to {y.max()}", f"labels 0 to {classes - 1}")
    return y.astype(np.int64)
