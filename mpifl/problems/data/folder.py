"""Your own data: a folder with one .npz or .h5 file for each client."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems.problem import Data, Rows
from mpifl.safe_input import check_memory, check_size, printable, regular_size

log = logging.getLogger(__package__)

NPZ = ".npz"
ENDINGS = (NPZ, ".h5", ".hdf5")  # of the files that are read, in any case
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0}  # version of the .npy format -> reader of a header
ARRAYS = ("x", "y", "x_test", "y_test")
Part = tuple[np.ndarray, np.ndarray]
CLASSES = 1_000_000  # maximum number of classes
PLAUSIBLE_CLASSES = 1000  # classes that are plausible in any number of rows


@dataclass(frozen=True)
class Folder(Data):
    """One file .npz, .h5 or .hdf5 per client, in sorted order of names: arrays x (rows, features), y (rows,) integers
    from 0 (or -1 and 1), and optionally x_test and y_test; those of all clients together are the test set."""

    natural: ClassVar[bool] = True
    name: str = "folder"
    path: str = ""
    """The folder: an existing path, else relative to the data root."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        folder = located(self.path, root)
        files, others = files_ending_in(ENDINGS, folder)
        if not files:
            held = f": it has {len(others)} others, such as {others[0].name}" if others else ""
            raise ConfigError("data file", folder / "*", f"at least one file that ends in {' or '.join(ENDINGS)}{held}")
        warn_of_others(folder, others, ENDINGS)
        train: list[Part] = []
        test: dict[int, Part] = {}
        sizes = Sizes()
        for k, file in enumerate(files):
            arrays = read_arrays(file, sizes)
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


def files_ending_in(endings: Sequence[str], folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a folder with one of these endings, in any case, and its other files, both in sorted order.

    Hidden files are none of the others. Both are empty where there is no folder. Raises ConfigError where it cannot be
    read.
    """
    try:
        found = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise ConfigError("data file", folder, f"a folder that can be read: {error.strerror}") from error
    read = [file for file in found if file.suffix.lower() in endings]
    others = [
        file
        for file in found
        if file.suffix.lower() not in endings and not file.name.startswith(".") and not file.is_dir()
    ]
    return read, others


def warn_of_others(folder: Path, others: Sequence[Path], endings: Sequence[str]) -> None:
    """Logs how many files of a folder are not read, if any."""
    if others:
        count = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        text = "%s: %s left out, such as %s; those that are read end in %s"
        log.warning(text, printable(folder), count, printable(others[0].name), " or ".join(endings))


class Sizes:
    """The sizes of the arrays that were read, and of the files that hold them, in bytes."""

    def __init__(self) -> None:
        self.arrays = self.files = 0

    def add(self, size: int, name: str) -> None:
        """Counts an array before it is read. Raises ValueError where all together are implausible, or do not fit."""
        self.arrays += size
        check_size(self.arrays, self.files, f"arrays up to {name}")
        check_memory(size, f"an array {name}")


def read_arrays(file: Path, sizes: Sizes) -> dict[str, np.ndarray | None]:
    """The arrays x, y, x_test and y_test of one client's file, and None for each other one."""
    try:
        sizes.files += regular_size(file)
        return _read_npz(file, sizes) if file.suffix.lower() == NPZ else _read_hdf5(file, sizes)
    except Exception as error:  # a damaged file can raise nearly any exception
        raise ConfigError("data file", file, f"an undamaged file: {str(error).lower()}") from error


def _read_npz(file: Path, sizes: Sizes) -> dict[str, np.ndarray | None]:
    """Reads a zip archive of .npy files, each header before its array."""
    found: dict[str, np.ndarray | None] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            found[name] = None
            if name not in ARRAYS:
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is not compressed as numpy does it")
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read_header = HEADERS.get(version, np.lib.format.read_array_header_2_0)
                shape, _, dtype = read_header(member)
            sizes.add(prod(shape) * dtype.itemsize, name)
            with archive.open(info) as member:
                found[name] = np.lib.format.read_array(member, allow_pickle=False)
    return found


def _read_hdf5(file: Path, sizes: Sizes) -> dict[str, np.ndarray | None]:
    """Reads datasets of the root group; links to other files are not followed."""
    import h5py  # imported here: every rank imports this module, and only rank 0 reads

    from mpifl.safe_hdf5 import BUILT_IN, check_dataset, check_links, data_size

    found: dict[str, np.ndarray | None] = {}
    with h5py.File(file, "r") as content:
        check_links(content, soft=True)
        for name in content:
            item = content.get(name)
            if isinstance(item, h5py.Dataset):
                found[name] = None
                if name in ARRAYS:
                    check_dataset(item, BUILT_IN)
                    sizes.add(data_size(item), name)
                    found[name] = np.asarray(item[()])
    return found


def _pair(arrays: Mapping[str, np.ndarray | None], x_name: str, y_name: str, file: Path) -> Part:
    x, y = arrays.get(x_name), arrays.get(y_name)
    if x is None or y is None:
        name = x_name if x is None else y_name
        raise ConfigError("data file", file, f"an array {name}: it has {', '.join(sorted(arrays)) or 'none'}")
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
    if classes > max(PLAUSIBLE_CLASSES, len(y) + len(y_test)):  # a model has weights for each class
        found = f"there are {classes - 1} in {len(y) + len(y_test)} rows"
        text = f"labels below {PLAUSIBLE_CLASSES}, or below the number of rows: {found}"
        raise ConfigError("data file", source, text)
    owner = np.repeat(np.arange(len(train)), [len(part) for _, part in train])
    clients = np.maximum(np.array(list(test), np.int64), -1)
    owner_test = np.repeat(clients, [len(part) for _, part in test.values()])
    return Rows(x, y, x_test, y_test, classes, owner=owner, owner_test=owner_test)
