"""Malformed data files: each kind's undamaged files, small, and a job that reads them."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

from tests.faults.fuzz_bytes import damage, damage_one
from tests.faults.fuzz_jobs import SMALL, mutate

Prepare = Callable[[Path], None]
USERS, GENERATOR = ("u0", "u1", "u2"), np.random.default_rng


def write_job(folder: Path, name: str, problem: dict[str, Any], delay: Any = "none") -> None:
    """A short run under the virtual clock, `name`.yaml."""
    job = {
        "name": name, "seed": 0, "problem": {"root": "data", "evaluation_rows": 20, "batch_size": 2, **problem},
        "algorithm": {"name": "area", "step_size": 0.1, "trigger": {"every": 2}}, "stop": {"updates": 4},
        "clock": {"mode": "virtual", "delay": delay}, "evaluate": {"updates": 4},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(job))


# -- undamaged ---------------------------------------------------------------------------------------------------------
def idx(zipped: bool) -> Prepare:
    """MNIST's four files with a few images."""

    def prepare(folder: Path) -> None:
        place = folder / "data" / "mnist"
        place.mkdir(parents=True)
        for part, rows in (("train", 30), ("t10k", 10)):
            x, y = GENERATOR(0).integers(0, 256, (rows, 28, 28)), np.arange(rows) % 10
            for name, array in ((f"{part}-images-idx3-ubyte", x), (f"{part}-labels-idx1-ubyte", y)):
                head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
                raw = head + array.astype(np.uint8).tobytes()
                file = place / (f"{name}.gz" if zipped else name)
                file.write_bytes(gzip.compress(raw, mtime=0) if zipped else raw)
        write_job(folder, "job", {"data": "mnist", "clients": 3})

    return prepare


def cifar(kind: str) -> Prepare:
    """CIFAR-10 in the binary or the Python version."""

    def prepare(folder: Path) -> None:
        place = folder / "data" / f"cifar-10-batches-{kind}"
        place.mkdir(parents=True)
        for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
            x, y = GENERATOR(0).integers(0, 256, (6, 3072)).astype(np.uint8), [0, 1, 2, 3, 8, 9]
            if kind == "bin":
                (place / f"{name}.bin").write_bytes(np.hstack([np.array(y, np.uint8)[:, None], x]).tobytes())
            else:
                batch = {b"data": x, b"labels": y, b"batch_label": b"one", b"filenames": [b"a.png"] * len(y)}
                (place / name).write_bytes(pickle.dumps(batch, protocol=2))
        write_job(folder, "job", {"data": "cifar10", "clients": 3})

    return prepare


def arrays(suffix: str) -> Prepare:
    """A user's own folder, a file for each client."""

    def prepare(folder: Path) -> None:
        place = folder / "data" / "own"
        place.mkdir(parents=True)
        for k in range(3):
            write_arrays(place / f"client{k}{suffix}", own_arrays())
        write_job(folder, "job", {"data": {"name": "folder", "path": "own"}})

    return prepare


def own_arrays() -> dict[str, np.ndarray]:
    x = GENERATOR(0).standard_normal((6, 3))
    return {"x": x, "y": np.arange(6) % 3, "x_test": x[:2], "y_test": np.arange(2)}


def write_arrays(file: Path, held: dict[str, Any]) -> None:
    if file.suffix == ".npz":
        np.savez(file, **held)
        return
    with h5py.File(file, "w") as content:
        for name, array in held.items():
            other = {"O": h5py.Empty("f8"), "U": "text", "M": h5py.SoftLink("/nowhere")}  # what HDF5 alone can hold
            content[name] = other.get(array.dtype.kind, array)


def leaf(folder: Path) -> None:
    """LEAF's folders of JSON files."""
    for half in ("train", "test"):
        place = folder / "data" / "leaf" / half
        place.mkdir(parents=True)
        held = {user: {"x": GENERATOR(0).random((4, 3)).round(3).tolist(), "y": [0, 1, 2, 0]} for user in USERS}
        content = {"users": list(USERS), "num_samples": [4] * 3, "user_data": held}
        (place / "all_data.json").write_text(json.dumps(content))
    write_job(folder, "job", {"data": {"name": "leaf", "path": "leaf"}})


def trace(folder: Path) -> None:
    """Contact times in a CSV file."""
    rows = [f"{client},{0.5 + client / 4 + k / 8}" for k in range(5) for client in range(3)]
    (folder / "trace.csv").write_text("\n".join(["client,seconds", *rows]) + "\n")
    write_job(folder, "job", {"model": "quadratic", "clients": 3}, {"name": "trace", "path": "trace.csv"})


# -- damage that knows the format --------------------------------------------------------------------------------------
def any_bytes(pattern: str) -> Callable[[Path, Random], list[str]]:
    """Damages one of the files with such a name."""

    def damaged(folder: Path, random: Random) -> list[str]:
        damage_one(folder, random, pattern)
        return []

    return damaged


def any_json(folder: Path, random: Random) -> list[str]:
    """Damages a JSON file: another value at any depth of it, keys too many or too few; or its bytes."""
    file = random.choice(sorted((folder / "data").rglob("*.json")))
    if random.random() < 0.4:
        return any_bytes("*.json")(folder, random)
    content = json.loads(file.read_text())
    for _ in range(random.choice((1, 1, 2, 4))):
        mutate(content, random, (*SMALL, 2**63, 10**30, "x" * 80, [[1, 2, 3]] * 4, [0] * 4))
    file.write_text(json.dumps(content))
    return []


def inside_gzip(folder: Path, random: Random) -> list[str]:
    """Damages what a gzip file holds, or the file."""
    if random.random() < 0.5:
        return any_bytes("*.gz")(folder, random)
    file = random.choice(sorted((folder / "data").rglob("*.gz")))
    plain = file.with_suffix("")
    plain.write_bytes(gzip.decompress(file.read_bytes()))
    damage(plain, random)
    file.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    return []


def any_arrays(folder: Path, random: Random) -> list[str]:
    """Damages a client's arrays: other shapes, types and values, names that are missing; or the file's bytes."""
    file = random.choice(sorted((folder / "data" / "own").iterdir()))
    if random.random() < 0.5:
        return any_bytes(f"*{file.suffix}")(folder, random)
    held: dict[str, Any] = dict(own_arrays())
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(sorted(held))
        if random.random() < 0.15:
            held.pop(name, None)
        else:
            with np.errstate(all="ignore"):
                held[name] = random.choice(ARRAYS)(own_arrays()[name])
    file.unlink()
    write_arrays(file, held)
    return []


ARRAYS: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda a: a[:0], lambda a: a[:1], lambda a: a.ravel(), lambda a: a[None], lambda a: np.asarray(a.flat[0]),
    lambda a: a.astype(np.float16), lambda a: a.astype(np.uint64), lambda a: a.astype(np.complex128),
    lambda a: a.astype(bool), lambda a: a.astype("S8"), lambda a: a.astype("U8"), lambda a: a.astype(">f8"),
    lambda a: a * np.nan, lambda a: a / np.zeros(a.shape), lambda a: a * 1e300 * 1e8,
    lambda a: a - 5, lambda a: a + 2**40, lambda a: np.full(a.shape, -(2**63)), lambda a: a * 1e-320,
    lambda a: np.zeros((3, 0)), lambda a: np.zeros((0, 0)), lambda a: np.zeros(()), lambda a: np.array([{}, None]),
    lambda a: np.zeros(6, [("a", "f8"), ("b", "i4")]), lambda a: a.astype("int64").astype("M8[s]"),
    lambda a: np.full(a.shape, np.iinfo(np.int64).max), lambda a: np.full(a.shape, 2**64 - 1, np.uint64),
    lambda a: np.asfortranarray(np.vstack([np.atleast_2d(a)] * 2)), lambda a: np.zeros((6, 1000)),
)  # fmt: skip
