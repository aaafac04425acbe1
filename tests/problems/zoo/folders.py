"""Data folders as users have them, each with its right outcome: the rows that are in it, or a line that refuses it.

A function that is `right` writes its folder and returns the rows as they are to be read, of each client (x, y) or
(x, y, x_test, y_test): features as a row of numbers, and classes. One that is `refused` says what the line says.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Client = tuple[np.ndarray, ...]
ROWS = (9, 5, 7)  # of the clients
NAMES = np.array(["cat", "cow", "dog"])  # in sorted order


@dataclass(frozen=True)
class Case:
    """What is right for a folder."""

    write: Callable[[Path], Any]
    refused: str = ""  # what the line says; "": it is read
    line: str = ""  # what a warning says
    data: dict[str, Any] = field(default_factory=dict)  # options of `problem.data`


CASES: dict[str, Case] = {}
GOOD: list[str] = []  # names of those that are read
WRONG: list[str] = []  # names of those that are refused
Writer = Callable[[Path], Any]
Change = Callable[[np.ndarray, np.ndarray], tuple[Any, ...]]  # the arrays of a file, from x and y


def right(line: str = "", **data: Any) -> Callable[[Writer], Writer]:
    def keep(write: Writer) -> Writer:
        return kept(GOOD, write.__name__, Case(write, "", line, data))

    return keep


def kept(among: list[str], name: str, case: Case) -> Writer:
    CASES[name] = case
    among.append(name)
    return case.write


def refused(says: str, **data: Any) -> Callable[[Writer], Writer]:
    def keep(write: Writer) -> Writer:
        return kept(WRONG, write.__name__, Case(write, says, "", data))

    return keep


def clients(*shape: int, seed: int = 0) -> list[Client]:
    """Rows of three clients with three classes; all numbers have few digits, as in a text file."""
    rng = np.random.default_rng(seed)
    sizes = shape or (4,)
    found = []
    for rows in ROWS:
        x = np.round(rng.standard_normal((rows, *sizes)), 3)
        found.append((x, (np.arange(rows) + (x.reshape(rows, -1)[:, 0] > 0)) % 3))
    return found


def npz(file: Path, x: Any, y: Any, *test: Any, **more: Any) -> None:
    names = dict(zip(("x_test", "y_test"), test))
    with file.open("wb") as archive:  # a name would get another ending
        np.savez(archive, x=x, y=y, **names, **more)


def hdf5(file: Path, x: Any, y: Any, **options: Any) -> None:
    with h5py.File(file, "w") as content:
        content.create_dataset("x", data=x, **options)
        content["y"] = y


def table(file: Path, x: np.ndarray, y: Any, names: str = "a,b,c,d,target", end: str = "\n", **open_: Any) -> None:
    lines = [names, *(",".join([*map(str, row), str(label)]) for row, label in zip(x.tolist(), y))]
    file.write_bytes("".join(line + end for line in lines).encode(open_.get("encoding", "utf-8")))


def every(path: Path, change: Change, *shape: int) -> list[Client]:
    """Three files of the arrays that `change` makes; returns what they were made of."""
    made = clients(*shape)
    for k, (x, y) in enumerate(made):
        npz(path / f"site{k}.npz", *change(x, y))
    return made


def second(path: Path, change: Change) -> list[Client]:
    """Three good files, but for the second, which `change` makes."""
    made = every(path, lambda x, y: (x, y))
    npz(path / "site1.npz", *change(*made[1]))
    return made


def changed(x: np.ndarray, at: Any, value: Any) -> np.ndarray:
    x = x.copy()
    x[at] = value
    return x


# -- files and folders -------------------------------------------------------------------------------------------------
@right()
def archives(path: Path) -> Any:
    """Test rows in two of three files are those of the clients, and together the test set."""
    made = clients()
    made = [(*made[0], *clients(seed=1)[1]), made[1], (*made[2], *clients(seed=1)[2])]
    for k, arrays in enumerate(made):
        npz(path / f"site{k}.npz", *arrays)
    return made


@right()
def test_arrays_without_rows(path: Path) -> Any:
    """Of any type."""
    return every(path, lambda x, y: (x, y, x[:0], NAMES[:0]))


@right()
def mixed_formats_and_endings(path: Path) -> Any:
    """Every ending in any case."""
    one, two, three = clients()
    npz(path / "a.NPZ", *one)
    hdf5(path / "b.HDF5", *two, compression="gzip", shuffle=True, chunks=True)
    hdf5(path / "c.h5", *three)
    return [one, two, three]


@right()
def folder_for_each_client(path: Path) -> Any:
    """The rows of all files of a folder, in order of names; those of another language's letters too."""
    one, two, three = clients()
    for name, parts in {"Müller": [three], "site 1": [one, two]}.items():
        (path / name).mkdir()
        for k, part in enumerate(parts):
            npz(path / name / f"{k}.npz", *part)
    return [three, (np.r_[one[0], two[0]], np.r_[one[1], two[1]])]


@right()
def links(path: Path) -> Any:
    """Files may be links, and the folder of a client may be one."""
    one, *_ = clients()
    (path / ".kept").mkdir()
    npz(path / ".kept/data.bin", *one)
    for k in range(2):
        (path / f"site{k}.npz").symlink_to(path / ".kept/data.bin")
    return [one, one]


@right()
def hidden_files_of_a_mac(path: Path) -> Any:
    """`._site0.npz` and `__MACOSX` are no clients."""
    made = every(path, lambda x, y: (x, y))
    (path / "__MACOSX").mkdir()
    for name in ("._site0.npz", "__MACOSX/._site1.npz", ".DS_Store"):
        (path / name).write_bytes(b"\0\5\26\7")
    return made


@refused("no file ends in .npz")
def nothing(path: Path) -> None:
    """An empty folder."""


@refused("both files and folders")
def files_and_folders(path: Path) -> None:
    every(path, lambda x, y: (x, y))
    (path / "more").mkdir()
    npz(path / "more/site3.npz", *clients()[0])


@refused("test.npz: it would be a client")
def test_rows_as_a_file(path: Path) -> None:
    every(path, lambda x, y: (x, y))
    npz(path / "test.npz", *clients(seed=1)[0])


@refused("test: it would be a client")
def train_and_test(path: Path) -> None:
    for half in ("train", "test"):
        (path / half).mkdir()
        npz(path / half / "site0.npz", *clients()[0])


@refused("site0/test.npz: its rows would be training rows")
def test_rows_in_a_folder(path: Path) -> None:
    (path / "site0").mkdir()
    npz(path / "site0/train.npz", *clients()[0])
    npz(path / "site0/test.npz", *clients()[1])


@refused("site1.npz: cannot be read")
def link_to_nowhere(path: Path) -> None:
    npz(path / "site0.npz", *clients()[0])
    (path / "site1.npz").symlink_to(path / "gone.npz")


@refused("site0.h5: cannot be read")
def wrong_ending(path: Path) -> None:
    npz(path / "site0.h5", *clients()[0])


# -- arrays ------------------------------------------------------------------------------------------------------------
STORED: dict[str, tuple[Change, Callable[[np.ndarray], np.ndarray]]] = {  # three files, and the classes for y
    "big_endian": (lambda x, y: (x.astype(">f8"), y.astype(">i4")), lambda y: y),  # the bytes of another machine
    "order_of_fortran": (lambda x, y: (np.asfortranarray(x), y), lambda y: y),
    "labels_that_are_floating_whole_numbers": (lambda x, y: (x, y.astype(float)), lambda y: y),  # as pandas has them
    "labels_with_gaps": (lambda x, y: (x, y * 3), lambda y: y * 3),  # so many classes as the largest label plus 1
    "labels_of_minus_one_and_one": (lambda x, y: (x, 2 * (y % 2) - 1), lambda y: y % 2),
}
for _name, (_change, _classes) in STORED.items():
    kept(GOOD, _name, Case(lambda path, c=_change, k=_classes: [(x, k(y)) for x, y in every(path, c)]))


@right("the smallest label of all files is 1; labels are numbered from 0")
def labels_from_one(path: Path) -> Any:
    return [(x, y + 1) for x, y in every(path, lambda x, y: (x, y + 1))]


@right()
def small_types(path: Path) -> Any:
    """float16, int8, uint8 and bool, unscaled."""
    parts = [(x.astype(t), y) for (x, y), t in zip(clients(), (np.float16, np.int8, bool))]
    parts.append((np.abs(clients()[0][0] * 2).astype(np.uint8), clients()[0][1].astype(np.uint8)))
    for k, part in enumerate(parts):
        npz(path / f"site{k}.npz", *part)
    return [(x.astype(float), y.astype(int)) for x, y in parts]


@right(labels="sorted")
def labels_by_name(path: Path) -> Any:
    """Classes in the order of the names; bytes in HDF5."""
    made = clients()
    for k, (x, y) in enumerate(made):
        npz(path / f"site{k}.npz", x, NAMES[y]) if k else hdf5(path / "site0.h5", x, NAMES[y].astype("S"))
    return made


@right(labels={"cow": 0, "cat": 2, "dog": 1, "owl": 4})
def labels_with_classes_given(path: Path) -> Any:
    """The classes that are given, and one that no row has."""
    order = np.array([2, 0, 1])
    return [(x, order[y]) for x, y in every(path, lambda x, y: (x, NAMES[y]))]


@right()
def pictures(path: Path) -> Any:
    """(rows, height, width): pixels row by row."""
    return [(x.reshape(len(x), -1), y) for x, y in every(path, lambda x, y: (x, y), 2, 3)]


@right()
def pictures_with_channels(path: Path) -> Any:
    """(rows, height, width, channels): the first channel first."""
    made = every(path, lambda x, y: (x, y), 2, 3, 2)
    return [(np.moveaxis(x, 3, 1).reshape(len(x), -1), y) for x, y in made]


@right()
def other_arrays_beside(path: Path) -> Any:
    """Arrays with other names, pickled ones too, are not read."""
    made = clients()
    for k, part in enumerate(made):
        npz(path / f"site{k}.npz", *part, names=np.array([{"a": 1}], object), weights=np.ones(3))
    return made


class Canary:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


COLUMNS = [("a", float), ("b", float), ("c", float), ("d", float)]
SECOND: dict[str, tuple[str, Change]] = {  # the second of three files is wrong: what the line says, and its arrays
    "pickled_array": ("y holds Python objects", lambda x, y: (x, np.array([Canary()] * len(y), object))),
    "not_a_number": ("x[3, 2] is nan", lambda x, y: (changed(x, (3, 2), np.nan), y)),
    "infinite": ("x[0, 1] is -inf", lambda x, y: (changed(x, (0, 1), -np.inf), y)),
    "not_a_number_in_the_test": ("x_test[1, 0] is nan", lambda x, y: (x, y, changed(x, (1, 0), np.nan), y)),
    "too_large_for_the_type": ("x[3, 2] is 1e+300, beyond 3.4e+38", lambda x, y: (changed(x, (3, 2), 1e300), y)),
    "other_features": ("its rows have the shape (3,)", lambda x, y: (x[:, 1:], y)),
    "one_axis": ("x is float64 of shape (5,)", lambda x, y: (x[:, 0], y)),
    "no_axis": ("x is float64 of shape ()", lambda x, y: (1.0, 0)),
    "other_rows": ("y has the shape (4,), and x 5 rows", lambda x, y: (x, y[1:])),
    "one_hot": ("y has the shape (5, 3)", lambda x, y: (x, np.eye(3)[y])),
    "test_rows_without_labels": ("no array y_test; it has x, x_test, y; expected", lambda x, y: (x, y, x)),
    "regression": ("y[0] is 0.5", lambda x, y: (x, y + 0.5)),
    "label_beyond_integers": ("y[2] is 1e+300, which is not a class", lambda x, y: (x, changed(1.0 * y, 2, 1e300))),
    "labels_that_are_no_text": ("y has bytes that are no text", lambda x, y: (x, np.array([b"cat\xff"] * len(y)))),
    "missing_label": ("y[2] is nan", lambda x, y: (x, changed(y.astype(float), 2, np.nan))),
    "negative_label": ("it has the label -1", lambda x, y: (x, changed(y, 2, -1))),
    "more_classes_than_rows": ("it has the label 5000", lambda x, y: (x, changed(y, 2, 5000))),
    "huge_label": (
        "the largest label is 18446744073709551615",
        lambda x, y: (x, changed(y.astype("u8"), 2, 2**64 - 1)),
    ),
    "client_without_rows": ("x has no rows", lambda x, y: (x[:0], y[:0])),
    "structured": ("x is [(", lambda x, y: (np.array([*map(tuple, x)], COLUMNS), y)),
    "complex_numbers": ("x is complex128", lambda x, y: (x + 1j, y)),
    "numbers_as_text": ("x is <U", lambda x, y: (x.astype(str), y)),
}
for _name, (_says, _change) in SECOND.items():
    kept(WRONG, _name, Case(lambda path, c=_change: second(path, c), f"site1.npz: {_says}"))


@refused("transpose(0, 2, 3, 1)")
def channels_first(path: Path) -> None:
    """Images in torch's order."""
    every(path, lambda x, y: (x, y), 3, 8, 8)


@refused("the labels are text, such as cow")
def labels_without_classes(path: Path) -> None:
    every(path, lambda x, y: (x, NAMES[y]))


@refused("the label dog has no class", labels={"cat": 0, "cow": 1})
def label_without_a_class(path: Path) -> None:
    every(path, lambda x, y: (x, NAMES[y]))


@refused("site0.npz: no array y; it has x; expected the arrays x and y")
def no_labels(path: Path) -> None:
    np.savez(path / "site0.npz", x=clients()[0][0])


@refused("site0.npz: cannot be read: two arrays have the name x")
def two_arrays_of_one_name(path: Path) -> None:
    x, y = clients()[0]
    with zipfile.ZipFile(path / "site0.npz", "w") as archive:
        for name, array in (("x.npy", x), ("y.npy", y), ("x", 0 * x)):
            archive.writestr(name, _bytes(array))


@refused("no array x; it has none")
def arrays_in_a_group(path: Path) -> None:
    with h5py.File(path / "site0.h5", "w") as content:
        content["data/x"], content["data/y"] = clients()[0]


def _bytes(array: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


# -- tables ------------------------------------------------------------------------------------------------------------
@right(target="target", labels="sorted")
def tables(path: Path) -> Any:
    """Columns in any order, a byte order mark, line ends of Windows, quotes, blank lines."""
    one, two, three = clients()
    table(path / "a.csv", one[0], NAMES[one[1]])
    table(path / "b.CSV", two[0], [f'"{name}"' for name in NAMES[two[1]]], end="\r\n\r\n", encoding="utf-8-sig")
    table(path / "c.csv", three[0][:, ::-1], NAMES[three[1]], 'd,c,"b",a,target')
    return [one, two, three]


@right(target="target")
def table_beside_an_archive(path: Path) -> Any:
    """Features in the order of the table's columns."""
    one, two, _ = clients()
    table(path / "a.csv", *one)
    npz(path / "b.npz", *two)
    return [one, two]


@right(target="target", labels="sorted")
def labels_with_leading_zeros(path: Path) -> Any:
    one, *_ = clients()
    table(path / "a.csv", one[0], np.array(["01", "1", "2"])[one[1]])
    return [one]


@right(target="target", labels="sorted")
def labels_with_decimals(path: Path) -> Any:
    """1.0, as pandas writes a column with gaps, is the label 1 of another table, also where that has names."""
    one, two, _ = clients()
    few = one[1] < 2
    table(path / "a.csv", one[0][few], np.array(["1.0", "2.0"])[one[1][few]])
    table(path / "b.csv", two[0], np.array(["1", "2", "x"])[two[1]])
    return [(one[0][few], one[1][few]), two]


@refused("a.csv is a table")
def table_without_a_target(path: Path) -> None:
    table(path / "a.csv", *clients()[0])


TABLES: dict[str, tuple[str, str]] = {  # a table after a good one: what the line says, and its text
    "empty_cell": ("column b has '' in row 2", "a,b,target\n1,2,0\n3,,1\n"),
    "not_available": ("column b has 'NA' in row 2", "a,b,target\n1,2,0\n3,NA,1\n"),
    "table_with_nan": ("x[1, 1] is nan", "a,b,target\n1,2,0\n3,nan,1\n"),
    "no_label": ("column target has no value in row 2", "a,b,target\n1,2,0\n3,4,\n"),
    "short_row": ("row 2 has 2 values", "a,b,target\n1,2,0\n3,4\n"),
    "long_row": ("row 1 has 4 values; expected one for each of the 3 columns", "a,b,target\n1,2,0,7\n"),
    "open_quote": ("cannot be read: ", 'a,b,target\n1,2,"0\n'),
    "no_table": ("has no such column; it has none", ""),
    "other_columns": ("column b is either here or in", "a,c,target\n1,2,0\n3,4,1\n"),
    "column_twice": ("all different", "a,a,target\n1,2,0\n3,4,1\n"),
    "numbers_of_rows": ("to_csv(index=False)", ",a,target\n0,2,0\n1,4,1\n"),  # the unnamed first column of pandas
    "numbers_of_python": ("column a has '1_000' in row 1", "a,b,target\n1_000,2,0\n3,4,1\n"),
    "header_alone": ("x has no rows", "a,b,target\n"),
}


def after_a_good_table(text: str) -> Writer:
    def write(path: Path) -> None:
        (path / "a.csv").write_text("a,b,target\n1,2,0\n1,2,1\n")
        (path / "b.csv").write_text(text)

    return write


for _name, (_says, _text) in TABLES.items():
    kept(WRONG, _name, Case(after_a_good_table(_text), _says, data={"target": "target"}))


# -- LEAF --------------------------------------------------------------------------------------------------------------
def leaf(path: Path, users: dict[str, Any], half: str = "train", name: str = "a.json", more: Any = ()) -> None:
    (path / half).mkdir(exist_ok=True)
    content = {"users": [*users], "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
    (path / half / name).write_text(json.dumps(content | dict(more)))


def user(x: Any, y: Any) -> dict[str, Any]:
    return {"x": np.asarray(x).tolist(), "y": np.asarray(y).tolist()}


@right("test: 1 file is left out, such as notes.txt; those that are read end in .json", name="leaf")
def leaf_users(path: Path) -> Any:
    """Two files, one ending in .JSON; a user without rows is no client."""
    one, two, three = clients()
    test = clients(seed=1)[1]
    leaf(path, {"u1": user(*one), "u0": user(*two), "none": user([], [])})
    leaf(path, {"u2": user(*three)}, name="b.JSON")
    leaf(path, {"u0": user(*test)}, half="test")
    (path / "test/notes.txt").touch()
    return [one, (*two, *test), three]


@refused("user u0: another file has this user too", name="leaf")
def leaf_user_twice(path: Path) -> None:
    leaf(path, {"u0": user(*clients()[0])})
    leaf(path, {"u0": user(*clients()[1])}, name="b.json")


LEAF: dict[str, tuple[str, Any, Any]] = {  # what the line says of user u1, and its x and y
    "no_rows_for_its_labels": ("", None, [1]),
    "rows_of_unlike_lengths": ("", [[1, 2], [3]], [0, 1]),
    "rows_of_text": ("", ["to be or not"], ["t"]),
    "rows_that_are_flat": ("x is not a list of rows of finite numbers", [1, 2], [0, 1]),
    "rows_with_nan": ("x is not a list of rows of finite numbers", [[1, float("nan")]], [0]),
    "labels_for_no_rows": ("y is not a whole number for each of 1 rows", [[1, 2]], [0, 1]),
    "labels_of_halves": ("y is not a whole number for each of 1 rows", [[1, 2]], [0.5]),
    "labels_of_infinity": ("y is not a whole number for each of 1 rows", [[1, 2]], [float("inf")]),
    "labels_of_a_million": ("y has labels of 1000000 or more", [[1, 2]], [1_000_000]),
    "labels_of_minus_three": ("it has the label -3", [[1, 2, 3, 4]], [-3]),
    "rows_of_another_shape": ("its rows have the shape (2,)", [[1, 2]], [0]),
}
for _name, (_says, *_rows) in LEAF.items():
    _users = {"u0": user(*clients()[0]), "u1": dict(zip("xy", _rows))}
    _write = lambda path, users=_users: leaf(path, users)  # noqa: E731
    kept(WRONG, f"leaf_{_name}", Case(_write, f"user u1: {_says}", data={"name": "leaf"}))


@refused("user_data has u1, which users has not", name="leaf")
def leaf_user_that_is_not_listed(path: Path) -> None:
    one, two, _ = clients()
    leaf(path, {"u0": user(*one), "u1": user(*two)}, more={"users": ["u0"]})
