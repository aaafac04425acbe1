"""Hostile run files and checkpoints: made to run code, read another file, or use up memory or time.

For data and jobs of that kind see `tests/problems/test_untrusted_data.py` and `tests/config/test_limits.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import yaml

from tests.faults import fuzz_files as files
from tests.faults import fuzz_runs as runs
from tests.faults.fuzz import Kind
from tests.faults.fuzz_worker import SECRET
from tests.runfile import test_untrusted as untrusted

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


# -- run files ---------------------------------------------------------------------------------------------------------
def run_file(folder: Path, random: Random) -> list[str]:
    """A run file that is valid HDF5 and has one or two traps."""
    with h5py.File(folder.resolve() / "run.h5", "r+", libver="latest") as file:
        for _ in range(random.choice((1, 1, 2))):
            try:
                random.choice(TRAPS)(file, random)
            except (KeyError, ValueError, TypeError, RuntimeError, OSError, MemoryError):
                continue  # the second trap needs what the first has taken away
    runs._age(folder / "run.h5")
    return []


def pipe(group: h5py.Group, name: str, old: h5py.Dataset, folder: Path) -> None:
    group[name] = h5py.ExternalLink(str(folder / "pipe"), "/x")


def structure(file: h5py.File, random: Random) -> None:
    """A column of another file, of a vast size or of another kind; links in circles."""
    make = random.choice((
        pipe, untrusted.external_link, untrusted.external_storage, untrusted.virtual, untrusted.compressed,
        untrusted.vast, untrusted.references, untrusted.soft, untrusted.chunk,
    ))  # fmt: skip
    column = untrusted.replace(random.choice(COLUMNS), make)
    change = random.choice((column, column, untrusted.circle, untrusted.linked_group, untrusted.shared_chunks))
    change(file, Path(file.filename).parent)


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


def configuration(file: h5py.File, random: Random) -> None:
    if random.random() < 0.25:
        file.attrs["config"] = random.choice(
            [*untrusted.BOMBS.values(), EVIL, "a: !!python/object/apply:os.mkdir [executed]"]
        )
        return
    try:
        config = yaml.safe_load(file.attrs["config"])
    except yaml.YAMLError:  # what an earlier change has put there
        return
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
    structure, structure, structure, attributes, attributes, configuration, configuration, checksums,
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
            other = b"", b"\x89HDF\r\n\x1a\n" + bytes(1000), (folder / "secret.h5").read_bytes()
            file.write_bytes(random.choice(other))
    if random.random() < 0.3:
        (folder / "run.h5").unlink()
    return []
