"""Your own data: a folder with one .npz or .h5 file for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems.base import Data, Rows

Part = tuple[np.ndarray, np.ndarray]
CLASSES = 1_000_000  # the largest number: a model has weights for each class


@dataclass(frozen=True)
class Folder(Data):
    """One file per client, in sorted order of names: arrays x (rows, features), y (rows,) integers from 0 (or -1 and
    1), and optionally x_test and y_test; those of all clients together are the test set."""

    natural: ClassVar[bool] = True
    name: str = "folder"
    path: str = ""
    """The folder: an existing path, else relative to the data root."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        folder = located(self.path, root)
        files = sorted(file for file in folder.iterdir() if file.suffix in (".npz", ".h5"))
        if not files:
            raise ConfigError("data file", folder / "*", "at least one file .npz or .h5")
        train: list[Part] = []
        test: dict[int, Part] = {}
        for k, file in enumerate(files):
            arrays = read_arrays(file)
            train.append(_pair(arrays, "x", "y", file))
            if not len(train[-1][1]):
                raise ConfigError("data file", file, "at least one row of x")
            if "x_test" in arrays or "y_test" in arrays:
                test[k] = _pair(arrays, "x_test", "y_test", file)
        return gather(train, test, folder)


def located(path: str, root: Path, file: bool = False) -> Path:
    """Returns the folder (or file) `path`: an existing path, or one relative to the data root."""
    kind = "file" if file else "folder"
    if not path:
        raise ConfigError("problem.data.path", path, f"a {kind}")
    for place in (Path(path).expanduser(), root / path):
        if place.is_file() if file else place.is_dir():
            return place
    raise ConfigError("problem.data.path", path, f"an existing {kind}, also searched under {root}")


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of one client's file."""
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as content:
                return dict(content)
        import h5py  # imported here: every rank imports this module, and only rank 0 reads

        with h5py.File(file) as content:
            return {name: np.asarray(item[()]) for name, item in content.items() if isinstance(item, h5py.Dataset)}
    except Exception as error:  # a damaged file can raise nearly any exception
        raise ConfigError("data file", file, f"an undamaged file: {str(error).lower()}") from error


def _pair(arrays: dict[str, np.ndarray], x_name: str, y_name: str, file: Path) -> Part:
    for name in (x_name, y_name):
        if name not in arrays:
            raise ConfigError("data file", file, f"an array {name}: it has {', '.join(sorted(arrays)) or 'none'}")
    x, y = arrays[x_name], arrays[y_name]
    if x.ndim != 2 or x.dtype.kind not in "biuf":
        raise ConfigError("data file", file, f"{x_name} of shape (rows, features): it has {x.dtype} {x.shape}")
    if y.shape != x.shape[:1] or y.dtype.kind not in "biu":
        raise ConfigError("data file", file, f"{y_name} of {len(x)} integers: it has {y.dtype} {y.shape}")
    if y.max(initial=0) >= CLASSES:
        raise ConfigError("data file", file, f"{y_name} below {CLASSES}: it has {y.max()}")
    return x, y.astype(np.int64)


def gather(train: Sequence[Part], test: Mapping[int, Part], source: Any) -> Rows:
    """Joins the rows of all clients; a test row whose client is negative is no client's.

    `source` is named in errors.
    """
    widths = {x.shape[1] for x, _ in (*train, *test.values())}
    if len(widths) > 1:
        raise ConfigError(
            "data file", source, f"rows with the same number of features for every client: there are {sorted(widths)}"
        )
    x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
    empty = [(x[:0], y[:0])]
    x_test, y_test = (np.concatenate(parts) for parts in zip(*(test.values() or empty), strict=True))
    if not len(y) or not (np.isfinite(x).all() and np.isfinite(x_test).all()):
        raise ConfigError("data file", source, "at least one row, and finite numbers only")
    if set(np.unique(y).tolist()) == {-1, 1}:  # the other convention for two classes
        y, y_test = (y + 1) // 2, (y_test + 1) // 2
    if min(y.min(), y_test.min(initial=0)) < 0:
        raise ConfigError("data file", source, "labels of 0 and above, or -1 and 1")
    classes = max(int(y.max()), int(y_test.max(initial=0)), 1) + 1
    owner = np.repeat(np.arange(len(train)), [len(part) for _, part in train])
    clients = np.maximum(np.array(list(test), np.int64), -1)
    owner_test = np.repeat(clients, [len(part) for _, part in test.values()])
    return Rows(x, y, x_test, y_test, classes, owner=owner, owner_test=owner_test)
