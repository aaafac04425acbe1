"""Hostile files: made so that whoever reads them runs code, reads another file, or uses up memory or time."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import yaml

from tests.config.test_limits import BOMBS as JOB_BOMBS
from tests.faults import fuzz_files as files
from tests.faults import fuzz_runs as runs
from tests.faults.fuzz import Kind
from tests.faults.fuzz_worker import SECRET
from tests.problems.test_untrusted_data import PICKLES
from tests.storage.test_untrusted import BOMBS

Damage = Callable[[Path, Random], list[str]]
CANARY = """
from pathlib import Path
from mpifl.algorithms.area import Area
Path("executed").touch()
class Momentum(Area): pass
"""
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\r\n forged"
COLUMNS = [
    "updates/time", "updates/client", "updates/norm", "events/text", "events/kind", "evaluations/time",
    "aggregations/updates", "clients/state", "clients/samples", "model/x", "checksums/object", "checksums/crc",
]  # fmt: skip
CODE = [
    "algorithm.name", "algorithm.trigger.name", "problem.entry", "problem.data.name", "problem.partition.name",
    "problem.model.name", "problem.model.init.name", "clock.delay.name",
]  # fmt: skip
VAST: tuple[Any, ...] = (10**9, 2**31, 2**63 - 1, 10**30, [1] * 20_000, "x" * 100_000, -1, 1e308, {"a": [[[1]]] * 999})


def surroundings(folder: Path) -> None:
    """Beside the files: code that leaves a trace if it runs, and files that no command may read (text and HDF5)."""
    (folder / "canary.py").write_text(CANARY)
    (folder / "secret.txt").write_bytes(SECRET * 1000)
    with h5py.File(folder / "secret.h5", "w") as file:
        file["x"] = np.frombuffer(SECRET * 40, np.uint8)[:400].view("f8")
        file["text"] = np.array([SECRET] * 50, "S512")


def kind(
    prepare: Callable[[Path], None], damage: Damage, commands: Sequence[list[str]], share: int, may: tuple[str, ...]
) -> Kind:
    """A kind of file in these surroundings, and beside a pipe that blocks a process which opens it."""

    def prepared(folder: Path) -> None:
        prepare(folder)
        surroundings(folder)

    def damaged(folder: Path, random: Random) -> list[str]:
        os.mkfifo(folder / "pipe")
        return damage(folder, random)

    return Kind(prepared, damaged, commands, share, may)


def elsewhere(group: h5py.Group, name: str, old: h5py.Dataset, how: int, source: str, text: str) -> None:
    """Replaces a dataset by a link to another file, by bytes of a file, or by a virtual dataset over another file."""
    if how == 0:
        group[name] = h5py.ExternalLink(source, "/text" if old.dtype.kind == "S" else "/x")
    elif how == 1:
        size = max(1, old.size) * old.dtype.itemsize
        group.create_dataset(name, old.shape, old.dtype, external=[(text, 0, size)])
    else:
        layout = h5py.VirtualLayout(old.shape, old.dtype)
        layout[...] = h5py.VirtualSource(source, "text" if old.dtype.kind == "S" else "x", old.shape)
        group.create_virtual_dataset(name, layout)


# -- run files ---------------------------------------------------------------------------------------------------------
def run_file(folder: Path, random: Random) -> list[str]:
    """A run file that is valid HDF5 and has one or two traps."""
    (folder / "scratch").mkdir(exist_ok=True)  # where later changes may write through an external dataset
    with h5py.File(folder.resolve() / "run.h5", "r+", libver="latest") as file:
        for _ in range(random.choice((1, 1, 2))):
            try:
                random.choice(TRAPS)(file, random)
            except (KeyError, ValueError, TypeError, RuntimeError, OSError, MemoryError):
                continue  # the second trap needs what the first has taken away
    runs._age(folder / "run.h5")
    return []


def _taken(file: h5py.File, random: Random) -> tuple[h5py.Group, str, h5py.Dataset]:
    place = random.choice(COLUMNS)
    group, name = file[place.partition("/")[0]], place.partition("/")[2]
    old = group[name]
    del group[name]
    return group, name, old


def other_file(file: h5py.File, random: Random) -> None:
    group, name, old = _taken(file, random)
    scratch = Path(file.filename).parent / "scratch"
    source = random.choice(("secret.h5", str(scratch.parent / "secret.h5"), "pipe", "/dev/zero", "../secret.h5"))
    text = random.choice((str(scratch / "secret.txt"), str(scratch / "pipe"), "/dev/zero", "/dev/null"))
    how = random.randrange(5)
    if how < 3:
        elsewhere(group, name, old, how, source, text)
    elif how == 3:
        group[name] = h5py.ExternalLink(source, "/")
    else:
        file[f"more{random.random()}"] = h5py.ExternalLink(source, "/")
        group[name] = old


def packed(file: h5py.File, random: Random) -> None:
    group, name, old = _taken(file, random)
    rows = random.choice((old.size, 2**20, 2**27, 2**40, 2**60))
    filters = random.choice(
        ({"compression": "gzip"}, {"compression": "lzf"}, {"shuffle": True}, {"scaleoffset": 0}, {})
    )
    chunk = random.choice((16, 2**12, 2**20, 2**24))
    made = group.create_dataset(name, (rows,), old.dtype, chunks=(min(chunk, rows),), maxshape=(None,), **filters)
    made[: old.size] = old[()]


def odd_values(file: h5py.File, random: Random) -> None:
    group, name, old = _taken(file, random)
    shape = old.shape
    choice = random.randrange(5)
    if choice == 0:
        group.create_dataset(name, shape, h5py.string_dtype())[...] = "x" * random.choice((1, 10**6))
    elif choice == 1:
        group.create_dataset(name, data=np.full(shape, group.ref, h5py.ref_dtype), dtype=h5py.ref_dtype)
    elif choice == 2:
        group.create_dataset(name, shape, h5py.vlen_dtype(np.float64))
    elif choice == 3:
        group.create_dataset(name, shape, np.dtype([("a", "f8", (100,)), ("b", "S9")]))
    else:
        group.create_dataset(name, shape, np.dtype(random.choice(("S1", "S100000", "i1", "f2", "u8", "c16", ">f4"))))


def links(file: h5py.File, random: Random) -> None:
    groups = [file[name] for name in file] + [file]
    for k in range(random.choice((1, 40, 400))):
        group, target = random.choice(groups), random.choice(groups)
        if isinstance(group, h5py.Group) and random.random() < 0.8:
            group[f"again{k}"] = target
        else:
            file[f"soft{k}"] = h5py.SoftLink(random.choice(("/soft1", "/", "/updates", "/updates/soft")))


def attributes(file: h5py.File, random: Random) -> None:
    owner = random.choice((file, file, file["model/x"], file["updates/time"]))
    name = random.choice(("name", "hosts", "compute", "layout", "version", "schema", "clock", "finished", "note", EVIL))
    value = random.choice(
        (
            EVIL, "x" * 5_000_000, ["x" * 100_000] * 500, "[" * 100_000, json.dumps([EVIL] * 1000), "[[]," * 50_000,
            json.dumps([["w", [2**40, 2**40]]]), "9" * 10_000, np.zeros(100_000), h5py.Empty("f8"), file.ref,
            np.array([file.ref], h5py.ref_dtype), np.void(b"x" * 1000), np.zeros(3, [("a", "f8")]), -1, 2**63 - 1,
        )
    )  # fmt: skip
    owner.attrs[name] = value


def texts(file: h5py.File, random: Random) -> None:
    for name in ("text", "kind"):
        column = file[f"events/{name}"]
        if len(column):
            column[random.randrange(len(column))] = EVIL.encode()[: column.dtype.itemsize]
    for name in ("name", "algorithm", "clock", "started"):
        file.attrs[name] = EVIL


def configuration(file: h5py.File, random: Random) -> None:
    if random.random() < 0.25:
        file.attrs["config"] = random.choice([*BOMBS.values(), EVIL, "a: !!python/object/apply:os.mkdir [executed]"])
        return
    config = yaml.safe_load(file.attrs["config"])
    for _ in range(random.choice((1, 1, 3))):
        chance = random.random()
        if chance < 0.5:
            _put(config, random.choice(CODE), random.choice(("canary:Momentum", "os:system", "mpifl.api:os.system")))
        elif chance < 0.75:
            keys = ("problem.clients", "problem.model.dim", "seed", "stop.updates", "algorithm.step_size", "name", EVIL)
            _put(config, random.choice(keys), random.choice(VAST))
        else:
            path = random.choice(("secret.txt", "pipe", "/dev/zero", "secret.h5", "."))
            section = random.choice(({"name": "trace", "path": path}, {"name": "folder", "path": path}))
            _put(config, "clock.delay" if section["name"] == "trace" else "problem.data", section)
    file.attrs["config"] = yaml.safe_dump(config)


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        below = config.get(part)
        config[part] = config = below if isinstance(below, dict) else {}
    config[last] = value


def checksums(file: h5py.File, random: Random) -> None:
    """Thousands of checksums of the largest object."""
    group, count = file["checksums"], random.choice((10, 20_000))
    for name in group:
        group[name].resize((count,))
    group["object"][...] = random.choice((b"model/x", b"@config", b"updates", b"../secret", EVIL.encode()[:20]))


TRAPS: tuple[Callable[[h5py.File, Random], None], ...] = (
    other_file, other_file, packed, packed, odd_values, links, attributes, attributes, texts, configuration,
    configuration, configuration, checksums,
)  # fmt: skip


def killed_naming_code(folder: Path) -> None:
    """A killed run with checkpoints whose configuration, in all of them, names code of the folder."""
    named = "from mpifl.server import provenance\nplain = provenance.to_yaml\nprovenance.to_yaml = "
    named += "lambda job: plain(job).replace('name: area', 'name: canary:Momentum')\n"
    files.write_job(folder, "run", {"model": {"name": "quadratic", "dim": 50}, "clients": 4})
    words = ["run.yaml", "output=run.h5", "stop.updates=400", "evaluate.updates=20", "checkpoint.updates=20"]
    command = [sys.executable, "-c", named + runs.KILLED, "run", *words]
    subprocess.run(command, cwd=folder, env=runs._environment(), timeout=60, check=False)
    runs._age(folder / "run.h5")
    surroundings(folder)


def links_to_parts(folder: Path, random: Random) -> list[str]:
    """Parts and manifests that are links to other files, or state sizes that they do not have."""
    place = folder / "run.ckpt"
    for file in random.sample(sorted(place.iterdir()), random.choice((1, 2, 4))):
        chance = random.random()
        if chance < 0.4:
            file.unlink()
            file.symlink_to(random.choice(("../secret.txt", "../secret.h5", "../pipe", "/dev/zero", file.name)))
        elif chance < 0.7 and file.suffix == ".json":
            file.write_text(random.choice(("[" * 200_000, '{"format": 4, "files": {}}', "9" * 10_000, EVIL)))
        else:
            file.write_bytes(
                random.choice((b"", b"\x89HDF\r\n\x1a\n" + bytes(1000), (folder / "secret.h5").read_bytes()))
            )
    if random.random() < 0.3:
        (folder / "run.h5").unlink()
    return []


# -- jobs and data -----------------------------------------------------------------------------------------------------
def job_file(folder: Path, random: Random) -> list[str]:
    text, _ = JOB_BOMBS[random.choice(sorted(JOB_BOMBS))]
    more = random.choice((text, *BOMBS.values(), f"name: {json.dumps(EVIL)}", "problem: !!python/name:os.system ''"))
    lines = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(yaml.safe_dump(json.loads(lines)) + more + "\n")
    return []


def npz(folder: Path, random: Random) -> list[str]:
    file = random.choice(sorted((folder / "data" / "own").iterdir()))
    head, size = io.BytesIO(), random.choice((0, 1 << 20, 90 << 20))
    shape = random.choice(((size // 8, 1), (2**40, 2), (2**62, 4), (6, 3)))
    kind = random.choice(("<f8", "|O", "|V1000000000", "<U100000000", "|u1"))
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    method = random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_STORED))
    with zipfile.ZipFile(file, "w", method if size < 2 << 20 else zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", _npy(np.arange(6)))
        with archive.open("x.npy", "w") as member:
            member.write(head.getvalue())
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))
    if random.random() < 0.2:
        np.savez(file, x=np.array([_Trap()]), y=np.arange(1))
    return []


def _npy(array: np.ndarray) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


class _Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def hdf5(folder: Path, random: Random) -> list[str]:
    path = random.choice(sorted((folder / "data" / "own").iterdir()))
    with h5py.File(path, "r+", libver="latest") as file:
        name = random.choice(("x", "y"))
        old = file[name]
        del file[name]
        choice = random.randrange(6)
        other = random.choice((str(folder / "secret.h5"), "../../secret.h5", str(folder / "pipe"), "/dev/zero"))
        if choice < 3:
            elsewhere(file, name, old, choice, other, str(folder / "secret.txt"))
        elif choice == 3:
            rows = random.choice((2**20, 2**30, 2**60))
            file.create_dataset(name, (rows, *old.shape[1:]), old.dtype, chunks=True, compression="gzip")
        elif choice == 4:
            file["group"] = h5py.ExternalLink(other, "/")
            file[name] = h5py.SoftLink(random.choice(("/group/x", f"/{name}", "/nowhere")))
        else:
            file.create_dataset(name, old.shape, h5py.string_dtype())[...] = "x" * 1_000_000
    return []


def gzipped(folder: Path, random: Random) -> list[str]:
    file = random.choice(sorted((folder / "data").rglob("*.gz")))
    shape = random.choice(((2**31, 28, 28), (30, 28, 28), (2**32 - 1, 2**32 - 1, 2**32 - 1)))
    body = bytes(random.choice((0, 1 << 20, 150 << 20)))
    file.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape) + body, 1))
    return []


def pickled(folder: Path, random: Random) -> list[str]:
    file = random.choice(sorted((folder / "data" / "cifar-10-batches-py").iterdir()))
    content = random.choice([content for content, _ in PICKLES.values()])
    file.write_bytes(random.choice((content, pickle.dumps({b"data": _Trap(), b"labels": []}, 2))))
    return []


def nested(folder: Path, random: Random) -> list[str]:
    file = random.choice(sorted((folder / "data").rglob("*.json")))
    x = random.choice(("[" * 200_000, "[[1" + "0" * 400 + "]]", "[[" + "9" * 5000 + "]]", '"' + "x" * 10**6 + '"'))
    y = random.choice(("[0]", "[999999]", "[1e308]", "[" + "0," * 100_000 + "0]"))
    file.write_text(f'{{"users": ["u"], "user_data": {{"u": {{"y": {y}, "x": {x}}}}}}}')
    return []
