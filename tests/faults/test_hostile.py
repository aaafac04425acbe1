"""A thousand malformed and hostile files: nothing outside is read, nothing executed, less than 1 GB and 10 s each.

Thirty of them in the short tier.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.faults import fuzz_files as files
from tests.faults import fuzz_hostile as hostile
from tests.faults import fuzz_runs as runs
from tests.faults.fuzz import Kind, Worker, survey, workers
from tests.faults.fuzz_kinds import KINDS, READ, READ_MAY, RESULT, RESUME, RESUME_MAY, RUN

MEMORY = 1000  # MiB of resident memory
SECONDS = 10.0
SHORT = 30
READ_ALL = [*READ, ["verify", "run.h5"], ["verify", "run.h5", "--replay"], ["resume", "run.h5"]]


def own(
    prepare: Callable[[Path], None], damage: hostile.Damage, commands: Any, share: int, may: tuple[str, ...] = RESULT
) -> Kind:
    return Kind(hostile.prepared(prepare), hostile.damaged(damage), commands, share, may)


OWN = {
    "run file": own(runs.completed, hostile.run_file, READ_ALL, 250, READ_MAY),
    "resume of a run that names code": Kind(hostile.killed_naming_code, lambda folder, random: [], RESUME, 5),
    "checkpoints": own(runs.killed, hostile.links_to_parts, RESUME, 60, RESUME_MAY),
    "job file": own(files.idx(False), hostile.job_file, [["check", "job.yaml"], ["run", "job.yaml"]], 60),
    "npz": own(files.arrays(".npz"), hostile.npz, RUN, 60),
    "HDF5 data": own(files.arrays(".h5"), hostile.hdf5, RUN, 60),
    "gzipped idx": own(files.idx(True), hostile.gzipped, RUN, 40),
    "pickles": own(files.cifar("py"), hostile.pickled, RUN, 40),
    "JSON": own(files.leaf("leaf", files.vectors, [0, 1, 2, 0]), hostile.nested, RUN, 25),
}
MALFORMED = {
    name: kind._replace(share=400 * kind.share // sum(k.share for k in KINDS.values() if not k.torch) + 1)
    for name, kind in KINDS.items()
    if not kind.torch
}
ALL = {**OWN, **{f"malformed: {name}": kind for name, kind in MALFORMED.items()}}
COUNT = sum(kind.share for kind in ALL.values())

pytestmark = [pytest.mark.timeout(900), pytest.mark.damaged]


@pytest.fixture(scope="module")
def pool() -> Iterator[SimpleQueue[Worker]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUZZ_MEMORY", str(3 << 30))  # of address space: libraries take half of that
        with workers(2) as queue:
            yield queue


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    made: dict[object, Path] = {}

    def prepared(kind: Kind) -> Path:
        if kind.prepare not in made:
            made[kind.prepare] = tmp_path_factory.mktemp("good")
            kind.prepare(made[kind.prepare])
        return made[kind.prepare]

    return prepared


def check(name: str, count: int, pool: SimpleQueue[Worker], good: Path, scratch: Path) -> None:
    scratch.mkdir(exist_ok=True)
    verdicts = survey(name, ALL[name], count, pool, good, scratch)
    bad = [str(verdict) for verdict in verdicts if verdict.wrong]
    bad += [f"{v}: more than {SECONDS} s: {v.reply.seconds}" for v in verdicts if v.reply.seconds > SECONDS]
    bad += [f"{v}: more than {MEMORY} MiB: {v.reply.memory}" for v in verdicts if v.reply.memory > MEMORY]
    bad += [f"{v}: printed what no command may read" for v in verdicts if v.reply.leaked]
    bad += [f"{v}: printed a control character" for v in verdicts if v.reply.raw]
    assert not bad, "\n".join(bad[:20])
    shutil.rmtree(scratch, ignore_errors=True)


def test_there_are_a_thousand() -> None:
    assert COUNT >= 1000 and "executed" not in " ".join(part for kind in ALL.values() for part in kind.may)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_K_L_M_hostile_files(
    name: str, pool: SimpleQueue[Worker], good: Callable[[Kind], Path], tmp_path: Path
) -> None:
    check(name, ALL[name].share, pool, good(ALL[name]), tmp_path / "inputs")


def test_K_L_M_thirty_hostile_files(pool: SimpleQueue[Worker], good: Callable[[Kind], Path], tmp_path: Path) -> None:
    for name, count in (("run file", 14), ("HDF5 data", 5), ("npz", 4), ("pickles", 3), ("job file", 4)):
        check(name, count, pool, good(OWN[name]), tmp_path / name)
