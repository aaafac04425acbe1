"""Malformed files: damage to bytes; data files of each format; run files and checkpoints, also of a killed run."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

from mpifl.cli import main
from tests.faults.fuzz_jobs import SMALL, mutate
from tests.mpi.conftest import environment
from tests.problems.conftest import idx_bytes, write_leaf


# -- damage to bytes, whatever they mean -------------------------------------------------------------------------------
def changed(raw: bytearray, random: Random) -> bytes:
    """Flips bits, or replaces some bytes, often by extremes, which make sizes and counts absurd."""
    flip = random.random() < 0.6
    for _ in range(random.choice((1, 1, 1, 2, 8, 64))):
        k = random.randrange(len(raw))
        other = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))
        raw[k] = raw[k] ^ 1 << random.randrange(8) if flip else other
    return bytes(raw)


def overwritten(raw: bytearray, random: Random) -> bytes:
    """Overwrites a block with zeros, ones, or noise, as a lost page of a disk may be."""
    first, size = random.randrange(len(raw)), random.choice((4, 8, 64, 512, 4096))
    size = min(size, len(raw) - first)
    raw[first : first + size] = random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))
    return bytes(raw)


def truncated(raw: bytearray, random: Random) -> bytes:
    """Cuts off the end, or leaves out a block."""
    first = random.choice((0, 1, 7, len(raw) - 1, random.randrange(len(raw)), random.randrange(len(raw))))
    return bytes(raw[:first] + raw[first + random.choice((1, 8, 100, len(raw), len(raw))) :])


def longer(raw: bytearray, random: Random) -> bytes:
    """Doubles a block, or appends bytes."""
    first, end = sorted(random.randrange(len(raw) + 1) for _ in range(2))
    more = random.choice((b"\0", bytes(4096), random.randbytes(100), bytes(raw)))
    return random.choice((bytes(raw[:end] + raw[first:end] + raw[end:]), bytes(raw) + more))


def damage(path: Path, random: Random) -> None:
    """Damages the file, one way or several."""
    raw, ways = path.read_bytes(), (changed, changed, changed, overwritten, truncated, longer)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if raw:
            raw = random.choice(ways)(bytearray(raw), random)
    path.write_bytes(raw)


def damage_one(folder: Path, random: Random) -> None:
    """Damages one of the files in `folder` and below; seldom replaces it by another kind of file, or removes it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = random.choice(files)
    chance = random.random()
    if chance < 0.9:
        damage(file, random)
        return
    raw = file.read_bytes()
    file.unlink()
    if chance < 0.92:
        file.mkdir()
    elif chance < 0.94:
        file.symlink_to(file.name)  # leads round in a circle
    elif chance < 0.96:
        file.write_bytes(random.randbytes(200))
    elif chance < 0.98 and len(files) > 1:
        file.write_bytes(random.choice(files[1:] if files[0] == file else files[:1]).read_bytes())
    elif chance < 0.99:
        file.write_bytes(raw)
        file.chmod(0)


def job_bytes(folder: Path, random: Random) -> list[str]:
    file = random.choice(sorted(folder.glob("*.yaml")))
    damage(file, random)
    return [file.name]


# -- data files --------------------------------------------------------------------------------------------------------
def write_job(folder: Path, name: str, problem: dict[str, Any], delay: Any = "none") -> None:
    """A short run under the virtual clock, `name`.yaml."""
    job = {
        "name": name, "seed": 0, "problem": {"evaluation_rows": 20, "batch_size": 2, **problem},
        "algorithm": {"name": "area", "step_size": 0.1, "trigger": {"every": 2}}, "stop": {"updates": 4},
        "clock": {"mode": "virtual", "delay": delay}, "evaluate": {"updates": 4},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(job))


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def idx(place: Path, zipped: bool = False) -> None:
    """MNIST's four files with a few images."""
    for part, rows in (("train", 30), ("t10k", 10)):
        x, y = integers(rows, 28, 28), np.arange(rows, dtype=np.uint8) % 10
        for name, array in ((f"{part}-images-idx3-ubyte", x), (f"{part}-labels-idx1-ubyte", y)):
            raw, file = idx_bytes(array), place / (f"{name}.gz" if zipped else name)
            file.write_bytes(gzip.compress(raw, mtime=0) if zipped else raw)


def cifar(place: Path) -> None:
    """CIFAR-10 in the Python version."""
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        batch = {b"data": integers(6, 3072), b"labels": [0, 1, 2, 3, 8, 9], b"filenames": [b"a.png"] * 6}
        (place / name).write_bytes(pickle.dumps(batch, protocol=2))


def cifar_binary(place: Path) -> None:
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        labels = np.array([0, 1, 2, 3, 8, 9], np.uint8)
        (place / f"{name}.bin").write_bytes(np.hstack([labels[:, None], integers(6, 3072)]).tobytes())


def arrays(place: Path, suffix: str = ".npz") -> None:
    """A user's own folder, a file for each client."""
    x, y = np.random.default_rng(0).standard_normal((6, 3)), np.arange(6) % 3
    held = {"x": x, "y": y, "x_test": x[:2], "y_test": y[:2]}
    for k in range(3):
        if suffix == ".npz":
            np.savez(place / f"client{k}.npz", **held)
        else:
            with h5py.File(place / f"client{k}.h5", "w") as file:
                file.update(held)


def leaf(place: Path) -> None:
    """LEAF's folders of JSON files."""
    x = np.random.default_rng(0).random((4, 3)).round(3).tolist()
    for half in ("train", "test"):
        write_leaf(place / half, {user: {"x": x, "y": [0, 1, 2, 0]} for user in ("u0", "u1", "u2")}, "all_data.json")


def trace(place: Path) -> None:
    """Contact times in a CSV file."""
    rows = [f"{client},{0.5 + client / 4 + k / 8}" for k in range(5) for client in range(3)]
    (place / "trace.csv").write_text("\n".join(["client,seconds", *rows]) + "\n")


OWN: dict[str, Any] = {"data": {"name": "folder", "path": "own"}}
FORMATS: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {  # what makes it, the folder, the problem
    "idx": (idx, "mnist", {"data": "mnist", "clients": 3}),
    "gzip": (lambda place: idx(place, True), "mnist", {"data": "mnist", "clients": 3}),
    "cifar": (cifar, "cifar-10-batches-py", {"data": "cifar10", "clients": 3}),
    "binary": (cifar_binary, "cifar-10-batches-bin", {"data": "cifar10", "clients": 3}),
    "npz": (arrays, "own", OWN),
    "hdf5": (lambda place: arrays(place, ".h5"), "own", OWN),
    "leaf": (leaf, "own", {"data": {"name": "leaf", "path": "own"}}),
    "trace": (trace, ".", {"model": "quadratic", "clients": 3}),
}


def prepare(folder: Path) -> None:
    """A folder and a job of the name of each format."""
    for name, (make, place, problem) in FORMATS.items():
        (folder / name / place).mkdir(parents=True)
        make(folder / name / place)
        delay = {"name": "trace", "path": "trace/trace.csv"} if name == "trace" else "none"
        write_job(folder, name, {"root": name, **problem}, delay)


def damaged(name: str) -> Callable[[Path, Random], list[str]]:
    """Damages a file of the format; of JSON often a value at any depth of it, or keys."""

    def damage(folder: Path, random: Random) -> list[str]:
        if name != "leaf" or random.random() < 0.4:
            damage_one(folder / name, random)
            return []
        file = random.choice(sorted((folder / name).rglob("*.json")))
        content = json.loads(file.read_text())
        for _ in range(random.choice((1, 1, 2, 4))):
            mutate(content, random, (*SMALL, 2**63, 10**30, "x" * 80, [[1, 2, 3]] * 4, [0] * 4))
        file.write_text(json.dumps(content))
        return []

    return damage


# -- run files and checkpoints -----------------------------------------------------------------------------------------
def completed(folder: Path) -> None:
    """run.h5, complete, with updates, aggregations, evaluations and an event."""
    write_job(folder, "run", {"model": {"name": "quadratic", "dim": 50}, "clients": 4})
    words = [f"output={folder}/run.h5", "stop.updates=40", "evaluate.updates=5"]
    assert main(["run", f"{folder}/run.yaml", *words]) == 0


def killed(folder: Path) -> None:
    """run.h5 as SIGKILL leaves it, and run.ckpt with two checkpoints."""
    write_job(folder, "run", {"model": {"name": "quadratic", "dim": 50}, "clients": 4})
    words = ["run.yaml", "output=run.h5", "stop.updates=400", "evaluate.updates=20", "checkpoint.updates=20"]
    done = subprocess.run([sys.executable, "-c", KILLED, "run", *words], cwd=folder, env=environment(""), timeout=60)
    assert done.returncode == -signal.SIGKILL
    _age(folder / "run.h5")


KILLED = """
import os, signal, sys, time
from pathlib import Path
from mpifl.cli import main
from mpifl.runfile.writer import RunWriter
from mpifl.runfile.checkpoint_folder import sets
from mpifl.runfile.tables import UpdateRow

def append(writer, row):
    appended(writer, row)
    if not isinstance(row, UpdateRow):
        return
    time.sleep(0.005)  # the run is to be under way when the checkpoints are on the disk
    if len(sets(Path("run.ckpt"))) >= 2:
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)

appended, RunWriter.append = RunWriter.append, append
main(sys.argv[1:])
"""


def _age(path: Path) -> None:
    """Gives a file an old date: one that was written to a moment ago is taken for that of a run that goes on."""
    os.utime(path, (time.time() - 3600,) * 2)


def any_bytes(folder: Path, random: Random) -> list[str]:
    """Bytes of the run file: anywhere, or where its structure is, at the begin and the end."""
    file = folder / "run.h5"
    chance = random.random()
    if chance < 0.6:
        damage(file, random)
        _age(file)
        return []
    raw = bytearray(file.read_bytes())
    for _ in range(random.choice((1, 1, 4))):
        place = random.randrange(min(2048, len(raw))) if chance < 0.9 else random.randrange(100)
        raw[place] = random.choice((0, 0xFF, 0x7F, 1, random.randrange(256)))
    file.write_bytes(raw)
    _age(file)
    return []


def checkpoints(folder: Path, random: Random) -> list[str]:
    """Parts and manifests; often several, so that none is left to fall back to."""
    for _ in range(random.choice((1, 1, 2, 3))):
        damage_one(folder / "run.ckpt", random)
    return []


def values(folder: Path, random: Random) -> list[str]:
    """Numbers and texts of columns that cannot be."""
    file = folder / "run.h5"
    with h5py.File(file, "r+", libver="latest") as content:
        for _ in range(random.choice((1, 1, 2, 3))):
            table = content[random.choice(("updates", "aggregations", "evaluations", "events", "clients", "model"))]
            columns = [data for data in table.values() if isinstance(data, h5py.Dataset) and data.shape and data.size]
            if columns:
                column = random.choice(columns)
                rows = random.choice((slice(None), random.randrange(len(column)), slice(0, len(column), 2)))
                pool: tuple[Any, ...] = (b"", b"\xff\xfe", b"lost", "é".encode(), b"x" * 40)
                if column.dtype.kind == "f":
                    pool = (0, -1, 1, 99, np.nan, np.inf, -np.inf, 1e308, -1e-320)
                elif column.dtype.kind in "iu":
                    pool = (0, 1, 3, 99, np.iinfo(column.dtype).max, np.iinfo(column.dtype).min)
                with np.errstate(over="ignore"):
                    column[rows] = random.choice(pool)
    _age(file)
    return []
