"""Your own data: a folder with one file, or one folder of files, for each client."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems.problem import Data, Rows
from mpifl.safe_input import check_memory, check_size, printable, read_file, regular_size

log = logging.getLogger(__package__)

NPZ, CSV = ".npz", ".csv"
ENDINGS = (NPZ, ".h5", ".hdf5")  # endings, in any case, of the files that are read; tables where `target` is given
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0}  # version of the .npy format -> reader of a header
ARRAYS = ("x", "y", "x_test", "y_test")
ZEROS_FIRST = re.compile(r"[+-]?0\d")  # labels such as 01, which are names
DECIMALS = re.compile(r"^(-?(?:0|[1-9]\d*))\.0*$")  # whole numbers such as 1.0, which is the label 1 in all files
Part = tuple[np.ndarray, np.ndarray]
CLASSES = 1_000_000  # maximum number of classes
PLAUSIBLE_CLASSES = 1000  # classes that are plausible in any number of rows
SORTED, NUMBERS = "sorted", "numbers"
PARTS = ("train", "test", "val", "valid", "validation")  # names of parts of the rows, which are no clients
CHANNELS = (1, 2, 3, 4)  # numbers of channels that images may have


class Piece(NamedTuple):
    """Rows of one client from one source."""

    client: int  # negative: test rows of no client
    source: object  # the file or user, which errors name
    x: np.ndarray  # (rows, features), or images (rows, height, width[, channels])
    y: np.ndarray  # (rows,) labels


@dataclass(frozen=True)
class Folder(Data):
    """One file .npz, .h5, .hdf5 or .csv per client, or one folder of such files, in sorted order of names: arrays x
    (rows, features) or images (rows, height, width[, channels]), y (rows,) labels, and optionally x_test and y_test;
    those of all clients together are the test set."""

    natural: ClassVar[bool] = True
    name: str = "folder"
    path: str = ""
    """The folder: an existing path, else relative to the data root."""
    target: str | None = None
    """The column of .csv files that has the labels; all others are features."""
    labels: Any = None
    """Class of each label, such as {cat: 0, dog: 1}; sorted: 0, 1, ... in the order of the labels; numbers: targets of
    a regression; null: labels are whole numbers from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels in (None, SORTED, NUMBERS):
            return
        expected = "{label: class, ...} with classes from 0, or sorted, numbers or null"
        if not isinstance(self.labels, Mapping) or not self.labels:
            raise ConfigError("labels", self.labels, "neither a section, sorted nor numbers", expected)
        for label, k in self.labels.items():
            if isinstance(label, bool):
                said = "labels that YAML reads as true or false"
                raise ConfigError("labels", self.labels, said, "names", "write such names in quotes, as in {'yes': 1}")
            if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k < CLASSES:
                raise ConfigError(f"labels.{label}", k, "not a class", f"an integer from 0 to {CLASSES - 1}")
        object.__setattr__(self, "labels", {str(label): k for label, k in self.labels.items()})

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        folder = located(self.path, root)
        train: list[Piece] = []
        test: list[Piece] = []
        sizes, tables = Sizes(), Tables(self.target or "", self.labels == NUMBERS)
        endings = ENDINGS if self.target is None else (*ENDINGS, CSV)
        for k, files in enumerate(files_of_clients(folder, endings)):
            for file in files:
                arrays = read_arrays(file, sizes, tables)
                train.append(_piece(k, arrays, "x", "y", file, self.labels == NUMBERS))
                if "x_test" in arrays or "y_test" in arrays:
                    test.append(_piece(k, arrays, "x_test", "y_test", file, self.labels == NUMBERS))
        if self.target is not None and tables.columns is None:
            said = f"{folder} has no .csv file, whose column it would name"
            raise ConfigError("problem.data.target", self.target, said, "null")
        labelled = _with_classes([*train, *test], self.labels)
        rows = gather(labelled[: len(train)], labelled[len(train) :])
        known = max(self.labels.values()) + 1 if isinstance(self.labels, Mapping) else 0
        return replace(rows, classes=max(rows.classes, known))


def located(path: str, root: Path, file: bool = False) -> Path:
    """Returns the folder (or file) `path`: an existing path, or one relative to the data root."""
    kind = "file" if file else "folder"
    if not path:
        raise ConfigError("problem.data.path", path, "missing", f"the path of a {kind}")
    for place in (Path(os.path.expanduser(path)), root / path):
        if os.path.isfile(place) if file else os.path.isdir(place):  # pathlib's raise for a name that is too long
            return place
    said = f"there is no such {kind} in the working directory or under the data root {root}"
    raise ConfigError("problem.data.path", path, said, f"an existing {kind}")


def files_of_clients(folder: Path, endings: Sequence[str]) -> list[list[Path]]:
    """The files of each client that have one of these endings, in sorted order of names. Raises ConfigError.

    A client is a file of the folder or, where the folder has none to read, a folder in it.
    """
    files, others = files_ending_in(endings, folder)
    inside = {found: files_ending_in(endings, found) for found in others if found.is_dir()}
    filled = [found for found, (held, _) in inside.items() if held]
    expected, missing = "a file for each client, or a folder for each client", f"no file ends in {' or '.join(endings)}"
    if files and filled:
        said = f"it has both files and folders with files, such as {files[0].name} and {filled[0].name}"
        raise ConfigError("data file", folder, said, expected)
    if not files and not filled:
        if tables := [
            file for held in (others, *(more for _, more in inside.values())) for file in held if is_table(file)
        ]:
            said = f"not given, and {tables[0]} is a table"
            raise ConfigError("problem.data.target", None, said, "the name of the column with the labels")
        said = f"; it has {len(others)} others, such as {others[0].name}" if others else ""
        raise ConfigError("data file", folder, missing + said, expected)
    warn_of_others(folder, others, endings)
    for found in files or inside:
        _refuse_part(found, PARTS, "it would be a client")
    if files:
        return [[file] for file in files]
    for found, (held, left_out) in inside.items():
        if not held:
            remedy = "remove the folder, or add the client's files"
            raise ConfigError("data file", found, missing, "the files of a client", remedy)
        warn_of_others(found, left_out, endings)
        for file in held:
            _refuse_part(file, PARTS[1:], "its rows would be training rows")
    return [held for held, _ in inside.values()]


def _refuse_part(found: Path, names: Sequence[str], wrong: str) -> None:
    """Raises ConfigError for a file or folder that is named as a part of the rows, such as test.npz."""
    if found.stem.lower() in names:
        expected = "test rows as the arrays x_test and y_test of the clients' files"
        raise ConfigError("data file", found, wrong, expected, "or give it another name")


def is_table(file: Path) -> bool:
    """Whether a file is a table by its name."""
    return file.suffix.lower() == CSV


def files_ending_in(endings: Sequence[str], folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a folder with one of these endings, in any case, and its other files, both in sorted order.

    Folders are among the others, and hidden files and folders are not. Both are empty where there is no folder. Raises
    ConfigError where it cannot be read.
    """
    try:
        found = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise ConfigError("data file", folder, f"cannot be read: {error.strerror}", "a readable folder") from error
    found = [file for file in found if not file.name.startswith(".")]
    read = [file for file in found if file.suffix.lower() in endings]
    return read, [file for file in found if file not in read]


def warn_of_others(folder: Path, others: Sequence[Path], endings: Sequence[str]) -> None:
    """Logs how many files of a folder are not read, if any."""
    others = [file for file in others if not file.is_dir()]
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


class Tables:
    """Reads .csv files with a header; all have the columns of the first one, in any order."""

    def __init__(self, target: str, numbers: bool = False) -> None:
        """numbers: the column `target` has numbers, 01 among them."""
        self._target, self._numbers = target, numbers
        self.columns: list[str] | None = None  # columns of the first file
        self._first: Path | None = None

    def read(self, file: Path) -> dict[str, np.ndarray | None]:
        """The features x, and the labels y of the column `target`. Raises ConfigError."""
        reader = csv.reader(io.StringIO(read_file(file).decode("utf-8-sig"), newline=""), strict=True)
        columns = next(reader, [])
        self._check(file, columns)
        rows = [row for row in reader if row]
        for k, row in enumerate(rows, 1):
            if len(row) != len(columns):
                expected = f"one for each of the {len(columns)} columns"
                raise _unreadable(file, f"row {k} has {len(row)} values", expected)
        target = columns.index(self._target)
        features = [columns.index(name) for name in self.columns or [] if name != self._target]
        x = np.empty((len(rows), len(features)))
        for k, j in enumerate(features):
            try:
                x[:, k] = [_number(row[j]) for row in rows]
            except ValueError:
                at = next(n for n, row in enumerate(rows) if not _is_number(row[j]))
                said = f"column {columns[j]} has {rows[at][j]!r} in row {at + 1}, which is not a number"
                expected, remedy = "numbers in all columns but the target", "leave out or encode the column, or the row"
                raise _unreadable(file, said, expected, remedy) from None
        labels = [row[target].strip() for row in rows]
        if "" in labels:
            said = f"column {self._target} has no value in row {labels.index('') + 1}"
            raise _unreadable(file, said, "a label in each row", "leave out such rows")
        if all(map(_is_number, labels)) and (self._numbers or not any(map(ZEROS_FIRST.match, labels))):
            return {"x": x, "y": np.array(labels, float)}
        return {"x": x, "y": np.array([DECIMALS.sub(r"\1", label) for label in labels])}

    def _check(self, file: Path, columns: list[str]) -> None:
        listed = ", ".join(columns)
        if self._target not in columns:
            said = f"{file} has no such column; it has {listed or 'none'}"
            raise ConfigError("problem.data.target", self._target, said, "a column of the first line of each .csv file")
        if not all(columns) or len(set(columns)) < len(columns):
            said = f"the first line is {listed}"
            remedy = "pandas leaves out the unnamed numbers of rows with to_csv(index=False)"
            raise _unreadable(file, said, "a header with a name for each column, all different", remedy)
        if self.columns is None:
            self.columns, self._first = columns, file
        elif different := set(columns) ^ set(self.columns):
            said = f"column {sorted(different)[0]} is either here or in {self._first}"
            raise _unreadable(file, said, "the same columns in all files")


def _number(text: str) -> float:
    """The number that a text is. Raises ValueError, also for 1_000, which is one in Python alone."""
    if "_" in text:
        raise ValueError
    return float(text)


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _unreadable(file: Path, wrong: str, expected: str, remedy: str = "") -> ConfigError:
    return ConfigError("data file", file, wrong, expected, remedy)


def read_arrays(file: Path, sizes: Sizes, tables: Tables) -> dict[str, np.ndarray | None]:
    """The arrays x, y, x_test and y_test of one file, and None for each other one. Raises ConfigError."""
    ending = file.suffix.lower()
    try:
        size = regular_size(file)
        sizes.files += size
        if is_table(file):
            check_memory(4 * size, "a table")  # a number of eight bytes for each two characters
            return tables.read(file)
        return _read_npz(file, sizes) if ending == NPZ else _read_hdf5(file, sizes)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file can raise nearly any exception
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise _unreadable(file, f"cannot be read: {reason}", f"an undamaged {ending} file") from error


def _read_npz(file: Path, sizes: Sizes) -> dict[str, np.ndarray | None]:
    """Reads a zip archive of .npy files, each header before its array."""
    found: dict[str, np.ndarray | None] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in found:
                raise ValueError(f"two arrays have the name {name}")
            found[name] = None
            if name not in ARRAYS:
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is not compressed as numpy does it")
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read_header = HEADERS.get(version, np.lib.format.read_array_header_2_0)
                shape, _, dtype = read_header(member)
            if dtype.hasobject:  # a pickle, which could run code
                raise _objects(file, name, "Python objects", "str")
            sizes.add(prod(shape) * dtype.itemsize, name)
            with archive.open(info) as member:
                found[name] = np.lib.format.read_array(member, allow_pickle=False)
    return found


def _objects(file: Path, name: str, kind: str, text: str) -> ConfigError:
    """The error for an array of values without a fixed size; text: NumPy's type of text of a fixed length."""
    x = name.startswith("x")
    expected = "numbers" if x else "numbers, or text of a fixed length"
    return _unreadable(file, f"{name} holds {kind}", expected, f"save {name}.astype({'float' if x else text})")


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
                    if item.dtype.hasobject:
                        raise _objects(file, name, "values of variable length", "'S'")
                    check_dataset(item, BUILT_IN)
                    sizes.add(data_size(item), name)
                    found[name] = np.asarray(item[()])
    return found


def _piece(
    client: int, arrays: Mapping[str, np.ndarray | None], x_name: str, y_name: str, file: Path, numbers: bool
) -> Piece:
    """The rows of two arrays of a file, labels as they are; numbers: they are float64. Raises ConfigError."""
    x, y = arrays.get(x_name), arrays.get(y_name)
    if x is None or y is None:
        name, held = x_name if x is None else y_name, ", ".join(sorted(arrays)) or "none"
        raise _unreadable(file, f"no array {name}; it has {held}", f"the arrays {x_name} and {y_name}")
    rows = "numbers of shape (rows, features), or images (rows, height, width[, channels])"
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "biuf":
        raise _unreadable(file, f"{x_name} is {x.dtype} of shape {x.shape}", rows)
    if x.ndim == 4 and x.shape[3] not in CHANNELS and x.shape[1] in CHANNELS:
        said = f"{x_name} has the shape {x.shape}, with {x.shape[1]} channels before height and width"
        raise _unreadable(file, said, rows, f"save {x_name}.transpose(0, 2, 3, 1)")
    if not len(x) and x_name == "x":
        raise _unreadable(file, f"{x_name} has no rows", "at least one row")
    if not np.isfinite(x).all():
        at = tuple(np.argwhere(~np.isfinite(x))[0].tolist())
        said, remedy = f"{x_name}{[*at]} is {x[at]}", "leave out such rows, or replace these values"
        raise _unreadable(file, said, "finite numbers", remedy)
    if y.shape != x.shape[:1]:
        raise _unreadable(file, f"{y_name} has the shape {y.shape}, and {x_name} {len(x)} rows", f"{len(x)} labels")
    if not len(y):
        y = np.empty(0, np.int64)  # whatever its type
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y, "utf-8")
        except UnicodeDecodeError as error:
            raise _unreadable(file, f"{y_name} has bytes that are no text: {error}", "text in UTF-8") from error
    if numbers and y.dtype.kind in "biuf":
        if not np.isfinite(y := y.astype(np.float64)).all():
            k = int(np.argmin(np.isfinite(y)))
            raise _unreadable(file, f"{y_name}[{k}] is {y[k]}", "finite numbers", "leave out such rows")
        return Piece(client, file, x, y)
    if numbers:
        said, remedy = f"{y_name} is {y.dtype}", "leave out problem.data.labels=numbers for classes"
        if y.dtype.kind == "U":
            k = next((k for k, text in enumerate(y) if not _is_number(text)), 0)
            said = f"{y_name}[{k}] is the text {str(y[k])!r}"
        raise _unreadable(file, said, "numbers", remedy)
    if y.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            whole = (np.mod(y, 1) == 0) & (np.abs(y) < 2.0**63)  # others have no int64
        if not whole.all():
            k = int(np.argmin(whole))
            said = f"{y_name}[{k}] is {y[k]}, which is not a class"
            remedy = "for a regression set problem.data.labels=numbers and a model for it, linear"
            raise _unreadable(file, said, "whole numbers", remedy)
    if y.dtype.kind not in "biufU":
        raise _unreadable(file, f"{y_name} is {y.dtype}", "whole numbers, or text")
    return Piece(client, file, x, y)


def _with_classes(pieces: Sequence[Piece], labels: Any) -> list[Piece]:
    """The pieces with classes for labels, int64. labels: of `Folder`. Raises ConfigError."""
    if labels == NUMBERS:
        return list(pieces)
    if labels is None:
        for piece in pieces:
            if piece.y.dtype.kind == "U":
                said = f"the labels are text, such as {piece.y[0]}"
                remedy = (
                    f"set problem.data.labels=sorted, or give classes as in problem.data.labels={{{piece.y[0]}: 0}}"
                )
                raise ConfigError("data file", piece.source, said, "whole numbers from 0", remedy)
            if piece.y.max(initial=0) >= CLASSES:
                said = f"the largest label is {piece.y.max()}"
                raise ConfigError("data file", piece.source, said, f"labels below {CLASSES}")
        return [piece._replace(y=piece.y.astype(np.int64)) for piece in pieces]
    found = [
        np.unique(piece.y.astype(np.int64) if piece.y.dtype.kind == "f" else piece.y, return_inverse=True)
        for piece in pieces
    ]
    if labels == SORTED:
        labels = {str(label): k for k, label in enumerate(np.unique(np.concatenate([each for each, _ in found])))}
        log.info("classes: %s", printable(", ".join(f"{label}: {k}" for label, k in labels.items()), most=1000))
    mapped = []
    for piece, (each, inverse) in zip(pieces, found, strict=True):
        if unknown := [label for label in map(str, each) if label not in labels]:
            said, expected = f"the label {unknown[0]} has no class", f"one of {', '.join(labels)}"
            raise ConfigError("data file", piece.source, said, expected, "add it to problem.data.labels")
        mapped.append(piece._replace(y=np.array([labels[label] for label in map(str, each)], np.int64)[inverse]))
    return mapped


def gather(train: Sequence[Piece], test: Sequence[Piece]) -> Rows:
    """Joins the rows of all clients. Raises ConfigError."""
    first = train[0]
    for piece in (*train, *test):
        if piece.x.shape[1:] != first.x.shape[1:]:
            said = f"its rows have the shape {piece.x.shape[1:]}, and those of {first.source} {first.x.shape[1:]}"
            raise ConfigError("data file", piece.source, said, "rows of one shape in all files")
    x, y = np.concatenate([piece.x for piece in train]), np.concatenate([piece.y for piece in train])
    x_test = np.concatenate([x[:0], *(piece.x for piece in test)])
    y_test = np.concatenate([y[:0], *(piece.y for piece in test)])
    regression = y.dtype.kind == "f"
    if not regression and set(np.unique(y).tolist()) == {-1, 1}:  # the other convention for two classes
        y, y_test = (y + 1) // 2, (y_test + 1) // 2
    rows, lowest = len(y) + len(y_test), y_test.min(initial=y.min())
    classes = 0 if regression else max(int(y.max()), int(y_test.max(initial=0)), 1) + 1
    if regression:
        pass
    elif lowest < 0 or classes > max(PLAUSIBLE_CLASSES, rows):  # a model has weights for each class
        found = [piece.y.min() if lowest < 0 else -piece.y.max() for piece in (*train, *test)]
        piece = [*train, *test][int(np.argmin(found))]
        said = f"it has the label {abs(min(found)) if lowest >= 0 else min(found)}"
        expected = f"whole numbers from 0, below {PLAUSIBLE_CLASSES} or below the number of rows, {rows}; or -1 and 1"
        raise ConfigError("data file", piece.source, said, expected)
    elif lowest > 0:
        text = "%s: the smallest label of all files is %d; labels are numbered from 0, so classes below it have no rows"
        log.warning(text, printable(first.source), lowest)
    shape: tuple[int, ...] = ()
    features = prod(x.shape[1:])
    if x.ndim > 2:
        x, x_test = (_channels_first(part) for part in (x, x_test))
        shape = x.shape[1:]
    owner, owner_test = (np.repeat([p.client for p in part], [len(p.y) for p in part]) for part in (train, test))
    return Rows(
        x.reshape(len(x), features), y, x_test.reshape(len(x_test), features), y_test, classes, owner=owner,
        owner_test=np.maximum(owner_test.astype(np.int64), -1), shape=shape,
        files=tuple((piece.source, len(piece.y)) for piece in (*train, *test)),
    )  # fmt: skip


def _channels_first(images: np.ndarray) -> np.ndarray:
    """Images (rows, channels, height, width) of images (rows, height, width[, channels])."""
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
