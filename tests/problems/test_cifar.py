"""CIFAR-10 and CIFAR-100, binary and Python version: small files in the published layouts, damaged and hostile ones."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.problems import DATA
from mpifl.problems.problem import Rows
from tests.problems.conftest import refusal

BATCHES = {"cifar10": [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"], "cifar100": ["train", "test"]}
FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}
Batch = tuple[np.ndarray, dict[str, list[int]]]


def batch(name: str, k: int, rows: int = 3) -> Batch:
    generator = np.random.default_rng(k)
    columns = {"labels": 10} if name == "cifar10" else {"coarse_labels": 20, "fine_labels": 100}
    pixels = generator.integers(0, 256, (rows, 3072)).astype(np.uint8)
    return pixels, {column: generator.integers(0, n, rows).tolist() for column, n in columns.items()}


def record_bytes(content: Batch) -> bytes:
    """The binary version: for each image its labels, coarse before fine, then its pixels."""
    x, labels = content
    return np.column_stack([*labels.values(), x]).astype(np.uint8).tobytes()


def python2_bytes(content: Batch, by_column: bool = False) -> bytes:
    """The published pickles' opcodes, as Python 2's cPickle and NumPy 1 wrote them (protocol 2), spelt out by hand."""
    x, labels = content

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text

    def number(n: int) -> bytes:
        return b"K" + bytes([n]) if n < 256 else b"M" + struct.pack("<H", n)

    out = b"\x80\x02}q\x01(" + string(b"batch_label") + b"q\x02" + string(b"training batch 1 of 5") + b"q\x03"
    for column, values in labels.items():
        out += string(column.encode()) + b"](" + b"".join(map(number, values)) + b"e"
    out += string(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85"
    out += string(b"b") + b"\x87Rq\x09(K\x01" + number(len(x)) + number(x.shape[1]) + b"\x86cnumpy\ndtype\nq\x0a"
    out += string(b"u1") + b"K\x00K\x01\x87Rq\x0b(K\x03" + string(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    out += (b"\x88" if by_column else b"\x89") + string(x.tobytes("F" if by_column else "C")) + b"tb"
    return out + string(b"filenames") + b"](" + b"".join(string(b"%d.png" % k) for k in range(len(x))) + b"eu."


def python3_bytes(content: Batch | None) -> bytes:
    """The same dictionary, pickled anew by this Python and NumPy."""
    x, labels = content or (None, {})
    held = {b"data": x, **{name.encode(): values for name, values in labels.items()}}
    return pickle.dumps(content and held, protocol=2)


WRITERS: dict[str, Callable[[Batch], bytes]] = {
    "binary": record_bytes,
    "python": python2_bytes,
    "python, by column": lambda content: python2_bytes(content, by_column=True),
    "python, anew": python3_bytes,
}


def write(root: Path, name: str, kind: str, rows: int = 3) -> Path:
    version = kind.partition(",")[0]
    folder = root / FOLDERS[name, version]
    folder.mkdir()
    for k, file in enumerate(BATCHES[name]):
        suffix = ".bin" if version == "binary" else ""
        (folder / f"{file}{suffix}").write_bytes(WRITERS[kind](batch(name, k, rows)))
    return folder


def read(root: Path, name: str, **options: Any) -> Rows:
    return DATA[name](**options).read(root, False, None)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("name", "options", "column", "classes"),
    [
        ("cifar10", {}, "labels", 10),
        ("cifar100", {}, "fine_labels", 100),
        ("cifar100", {"coarse": True}, "coarse_labels", 20),
    ],
)
def test_rows_are_those_of_the_files(
    tmp_path: Path, name: str, kind: str, options: dict[str, bool], column: str, classes: int
) -> None:
    write(tmp_path, name, kind)
    rows = read(tmp_path, name, **options)
    *train, (x_test, labels_test) = [batch(name, k) for k in range(len(BATCHES[name]))]
    assert rows.x.dtype == np.uint8 and (rows.x == np.concatenate([x for x, _ in train])).all()
    assert rows.y.dtype == np.int64 and rows.y.tolist() == [y for _, labels in train for y in labels[column]]
    assert (rows.x_test == x_test).all() and rows.y_test.tolist() == labels_test[column]
    assert (rows.classes, rows.divisor, rows.shape) == (classes, 255, (3, 32, 32)) and rows.owner is None


@pytest.mark.parametrize("length", [0, 3073, -1])
def test_a_file_that_is_cut_off(tmp_path: Path, length: int) -> None:
    """Of records of 3,073 bytes a whole number is read."""
    file = write(tmp_path, "cifar10", "binary") / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:length])
    if length == 3073:
        assert len(read(tmp_path, "cifar10").x) == 4 * 3 + 1
        return
    with refusal(f"^data file={file}: it has .* bytes in all; expected records of 3073 bytes"):
        read(tmp_path, "cifar10")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refusal(rf"^data file={tmp_path}/cifar-10-batches-bin: .* or a folder cifar-10-batches-py"):
        read(tmp_path, "cifar10")
    for kind, file in (("python", "train"), ("binary", "train.bin")):
        folder = write(tmp_path, "cifar100", kind)
        (folder / file).unlink()
        with refusal(f"^data file={folder / file}: "):
            read(tmp_path, "cifar100")


def damaged(tmp_path: Path, name: str, kind: str, change: Callable[[Batch], Batch]) -> Path:
    folder = write(tmp_path, name, kind)
    file = folder / (BATCHES[name][-1] + (".bin" if kind == "binary" else ""))
    file.write_bytes(WRITERS[kind](change(batch(name, 0))))
    return file


@pytest.mark.parametrize("kind", ["binary", "python", "python, anew"])
@pytest.mark.parametrize(("name", "column", "highest"), [("cifar10", "labels", 9), ("cifar100", "fine_labels", 99)])
def test_a_label_beyond_the_classes_is_refused(tmp_path: Path, name: str, kind: str, column: str, highest: int) -> None:
    file = damaged(tmp_path, name, kind, lambda b: (b[0], {**b[1], column: [0, highest + 1, 0]}))
    with refusal(f"^data file={file}: it has labels 0 to {highest + 1}; expected labels 0 to {highest}$"):
        read(tmp_path, name)


NO_LABELS = "its entry labels is something else; expected a list with one label for each of 3 images$"
NO_DATA = r"its entry data is something else; expected unsigned bytes \(rows, 3072\)$"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda b: (b[0], {"labels": b[1]["labels"][:2]}), NO_LABELS),
        (lambda b: (b[0], {"other": b[1]["labels"]}), NO_LABELS),
        (lambda b: (b[0], {"labels": ["cat"] * 3}), NO_LABELS),
        (lambda b: (b[0][:, :-1], b[1]), NO_DATA),
        (lambda b: (b[0].reshape(-1)[:3072], b[1]), NO_DATA),
        (lambda b: (b[0].astype(np.int16), b[1]), NO_DATA),
        (lambda b: (b[0].tolist(), b[1]), NO_DATA),
        (lambda b: (b[0][:0], {"labels": []}), ""),
        (lambda b: None, "it holds a NoneType; expected a batch as published$"),
    ],
)
def test_python_batches_with_wrong_entries_are_refused(
    tmp_path: Path, change: Callable[[Batch], Batch], text: str
) -> None:
    file = damaged(tmp_path, "cifar10", "python", lambda b: b)
    file.write_bytes(python3_bytes(change(batch("cifar10", 0))))
    with refusal(f"^data file={file}: {text}"):
        read(tmp_path, "cifar10")
