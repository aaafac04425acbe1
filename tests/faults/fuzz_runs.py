"""Malformed run files and checkpoints: of a run that is complete, and of one that was killed."""

from __future__ import annotations

import os
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
from tests.faults.fuzz_bytes import damage, damage_one
from tests.faults.fuzz_files import write_job
from tests.faults.fuzz_jobs import SMALL, TRAPS
from tests.mpi.conftest import environment


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
from mpifl.runfile import RunWriter
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


# -- damage ------------------------------------------------------------------------------------------------------------
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


def content(folder: Path, random: Random) -> list[str]:
    """What the run file says: attributes, columns and types that another program might have written."""
    file = folder / "run.h5"
    fresh = file.with_name("fresh.h5")  # as HDF5 writes by default: a killed run's file cannot be changed
    with h5py.File(file, "r", libver="latest", swmr=True) as old, h5py.File(fresh, "w") as new:
        for name in old:
            old.copy(name, new)
        new.attrs.update(dict(old.attrs))
        for _ in range(random.choice((1, 1, 2, 3))):
            random.choice((attribute, attribute, values, values, column))(new, random)
    fresh.replace(file)
    _age(file)
    return []


def checkpoints(folder: Path, random: Random) -> list[str]:
    """Parts and manifests; often several, so that none is left to fall back to."""
    for _ in range(random.choice((1, 1, 2, 3))):
        damage_one(folder / "run.ckpt", random)
    return []


def attribute(file: h5py.File, random: Random) -> None:
    """An attribute is missing, or something else."""
    owner = random.choice((file, file, file, file.get("model/x", file)))
    name = random.choice([*owner.attrs, "schema", "config", "status"])
    owner.attrs.pop(name, None)
    if random.random() < 0.8:
        value = random.choice([v for v in (*SMALL, *TRAPS) if _storable(v)] + [99, -1, np.zeros(3), h5py.Empty("f8")])
        owner.attrs[name] = value[:30000] if isinstance(value, str) else value


def _storable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" not in value and value.isprintable()
    return isinstance(value, (bool, int, float))


def values(file: h5py.File, random: Random) -> None:
    """Numbers of a column that cannot be."""
    table = random.choice(("updates", "aggregations", "evaluations", "events", "clients", "model"))
    if not (names := [n for n, d in file.get(table, {}).items() if isinstance(d, h5py.Dataset) and d.shape]):
        return
    dataset = file[table][random.choice(names)]
    if not dataset.size or not dataset.shape or dataset.size > 1_000_000:
        return
    rows = random.choice((slice(None), random.randrange(len(dataset)), slice(0, len(dataset), 2)))
    pool: tuple[Any, ...] = (0, -1, 1, 3, 4, 99, 2**31 - 1)
    if dataset.dtype.kind == "f":
        pool = (*pool, np.nan, np.inf, -np.inf, 1e308, -1e-320)
    elif dataset.dtype.kind == "i":
        pool = (*pool, np.iinfo(dataset.dtype).max, np.iinfo(dataset.dtype).min)
    else:
        pool = (b"", b"\xff\xfe", b"lost", "é".encode(), b"x" * 40)
    with np.errstate(over="ignore"):
        dataset[rows] = random.choice(pool)


def column(file: h5py.File, random: Random) -> None:
    """A column or a table is missing, longer, shorter, of another shape or type, or vast with nothing in it."""
    table = random.choice(("updates", "aggregations", "evaluations", "events", "clients", "model"))
    if table not in file or not isinstance(file[table], h5py.Group) or random.random() < 0.1:
        file.pop(table, None)
        return
    name = random.choice([*file[table], "new"])
    old = file[table].get(name)
    file[table].pop(name, None)
    make = random.choice(COLUMNS)
    if isinstance(old, h5py.Dataset):
        make(file[table], name, old[()] if old.shape is None or old.size < 1_000_000 else old[:1000])


COLUMNS: tuple[Callable[[h5py.Group, str, np.ndarray], Any], ...] = (
    lambda group, name, a: None,
    lambda group, name, a: group.create_group(name),
    lambda group, name, a: group.create_dataset(name, data=a[:0]),
    lambda group, name, a: group.create_dataset(name, data=a[: len(a) // 2]),
    lambda group, name, a: group.create_dataset(name, data=np.concatenate([a, a])),
    lambda group, name, a: group.create_dataset(name, data=a[:, None]),
    lambda group, name, a: group.create_dataset(name, data=a[0]),
    lambda group, name, a: group.create_dataset(name, data="text"),
    lambda group, name, a: group.create_dataset(name, data=["a"] * len(a)),
    lambda group, name, a: group.create_dataset(name, data=h5py.Empty("f8")),
    lambda group, name, a: group.create_dataset(name, data=np.zeros(len(a), "c16")),
    lambda group, name, a: group.create_dataset(name, data=np.zeros(len(a), [("a", "f8")])),
    lambda group, name, a: group.create_dataset(name, data=np.zeros(len(a), "i1")),
    lambda group, name, a: group.create_dataset(name, data=np.zeros(len(a), "f2")),
    lambda group, name, a: group.create_dataset(name, (2**40,), "f8", maxshape=(None,)),
    lambda group, name, a: group.create_dataset(name, (2**50,), a.dtype, maxshape=(None,)),
)
