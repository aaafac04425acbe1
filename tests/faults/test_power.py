"""After a power cut at a random instant a run resumes from what is on the disk, with the bits of an uninterrupted run.

A library that is preloaded records all that the ranks write, rename and sync; `power.disk` computes from the record
what may be on the disk when the power is cut after one of the calls.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.errors import ConfigError
from mpifl.runfile import reader
from mpifl.tools.verify.run_file import check_file
from tests.faults.power.disk import Disk, Record, read_record
from tests.mpi.cases import AREA, DIGITS, LARGE32, SMALL, job
from tests.mpi.conftest import Command, launched, mpifl, write
from tests.mpi.files import differing, folder_contents
from tests.tiers import long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.damaged]
MORE: dict[str, Any] = {"stop": {"updates": 150}, "evaluate": {"updates": 30}}
JOBS: list[dict[str, Any]] = [
    job({**AREA, "trigger": {"every": 3}, "reply": "deferred"}, SMALL, **MORE),
    job({"name": "area", "step_size": 5, "trigger": {"every": 4}}, DIGITS, **MORE),
    job({"name": "fedavg", "cohort": 4, "local_steps": 3}, DIGITS, **MORE),
    job({"name": "scaffold", "cohort": 4, "local_steps": 2}, LARGE32, **MORE),
    job({"name": "apfl", "cohort": 4, "adapt": "round"}, {**DIGITS, "test_split": 0.2}, **MORE),
]
LOSSES = (0.0, 0.2, 0.5, 0.8, 1.0)  # probabilities of what no sync covers to be lost


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorder, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("recorder") / "recorder.so"
    source = Path(__file__).parent / "power" / "recorder.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, source], check=True, timeout=60)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The run files of uninterrupted runs of the jobs, made in one process when they are first needed."""
    folder = tmp_path_factory.mktemp("whole")

    def made(k: int) -> Path:
        path = folder / f"{k}.h5"
        if not path.exists():
            assert mpifl("run", write(folder, str(k), JOBS[k]), f"output={path}") == 0
        return path

    return made


Recorded = Callable[..., tuple[Disk, list[Record]]]


@pytest.fixture
def recorded(tmp_path: Path, library: Path) -> Recorded:
    """recorded(root, ranks, *words, **variables): runs `mpifl *words` to its end; what it did to the folder root, and
    what was there before."""

    def record(root: Path, ranks: int, *words: str | Path, **variables: str) -> tuple[Disk, list[Record]]:
        root.mkdir(exist_ok=True)
        disk = Disk(root)
        log = root.with_name(f"{root.name}.log")
        preload = {"LD_PRELOAD": library, "MPIFL_RECORD_ROOT": root, "MPIFL_RECORD_LOG": log, **variables}
        env = ["env", *(f"{name}={value}" for name, value in preload.items())]
        python = [sys.executable, "-m", "tests.faults.power.run", *map(str, words)]
        done = Command([*launched(ranks), *env, *python], tmp_path).start().end()
        assert done.code == 0, str(done)
        return disk, read_record(log)

    return record


class Cut:
    """A power cut after `count` of the calls recorded since `disk` was made."""

    def __init__(self, disk: Disk, records: list[Record], count: int) -> None:
        self.disk = deepcopy(disk)
        self.promised = 0  # number of the last checkpoint that was reported as complete
        for record in records[:count]:
            self.disk.apply(record)
            if record.path.endswith("/promises") and record.operation == "W":
                self.promised = int(record.data)


def completed(path: Path) -> bool:
    """Whether the run was completed before the power was cut, and its file says so."""
    try:
        with open_run(path) as run:
            return run.status == "completed"
    except ConfigError:
        return False


def age(path: Path) -> Path:
    """The path; nobody writes to the file, if there is one."""
    if path.exists():
        os.utime(path, (1e9, 1e9))
    return path


def check_resume(path: Path, promised: int, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumes a run after a power cut. No checkpoint that was reported as complete may be lost."""
    capsys.readouterr()
    code = mpifl("resume", age(path))
    err = capsys.readouterr().err
    assert "Traceback" not in err and code in (0, 2), err
    if code == 2 and "the run is completed" not in err:
        assert err.count("\n") == 1 and promised == 0, f"checkpoint {promised} is lost: {err}"
        return
    assert not differing(whole, path, but=("events",))
    if code == 2:
        return
    with open_run(path) as run:
        text = run.events.text[run.events.kind == "resumed"].iloc[-1]
        assert run.status == "completed"
    check_file(path)
    number = int(text.removeprefix("from checkpoint ").partition(";")[0])
    assert number >= promised, f"checkpoint {promised} is lost: {text}"


@pytest.mark.parametrize("seed", [0, *map(long, range(1, 50))])
def test_the_power_is_cut(
    tmp_path: Path, whole: Callable[[int], Path], recorded: Recorded, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Of the 50 runs a third is on 3 ranks, and in every second one the power is cut again while it resumes."""
    draw, kind = random.Random(seed), seed % len(JOBS)
    root, ranks = tmp_path / "disk", 3 if seed % 3 == 2 else 0
    every, how = draw.choice([7, 15, 40]), {"MPIFL_AWAIT": "1"} if seed % 2 and not ranks else {}
    words = ["run", write(tmp_path, "job", JOBS[kind]), f"output={root / 'run.h5'}", f"checkpoint.updates={every}"]
    disk, records = recorded(root, ranks, *words, **how)
    cut = Cut(disk, records, draw.randrange(1, len(records)))
    after = tmp_path / "after"
    cut.disk.write(after, draw, draw.choice(LOSSES))
    promised = cut.promised
    if seed % 2 and promised and not completed(after / "run.h5"):
        ranks, how = (3, {}) if seed % 4 == 1 else (0, how)
        disk, again = recorded(after, ranks, "resume", age(after / "run.h5"), **how)
        second = Cut(disk, again, draw.randrange(1, len(again)))
        after, promised = tmp_path / "again", max(promised, second.promised)
        second.disk.write(after, draw, draw.choice(LOSSES))
    check_resume(after / "run.h5", promised, whole(kind), capsys)


def test_the_record_is_complete(tmp_path: Path, recorded: Recorded) -> None:
    """Applied as a whole, the record gives the folder as it is."""
    root, file = tmp_path / "disk", write(tmp_path, "job", JOBS[0])
    words = "run", file, f"output={root}/run.h5", "checkpoint.updates=40"
    disk, records = recorded(root, 0, *words, MPIFL_AWAIT="1")
    cut = Cut(disk, records, len(records))
    cut.disk.write(tmp_path / "copy")
    assert folder_contents(root) == folder_contents(tmp_path / "copy") and cut.promised == 3


@pytest.mark.parametrize("cuts", [20, long(150)])
def test_a_run_is_completed_or_not(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, cuts: int
) -> None:
    """A file with the status "completed" has every row, at whichever call near the run's end the power is cut."""
    draw, root, path = random.Random(0), tmp_path / "disk", tmp_path / "disk" / "run.h5"
    disk, records = recorded(root, 0, "run", write(tmp_path, "job", JOBS[0]), f"output={path}")
    monkeypatch.setattr(reader, "MAX_ATTEMPTS", 1)  # nobody writes to it
    monkeypatch.setattr(reader, "METADATA_ATTEMPTS", 1)
    (last,) = [k for k, record in enumerate(records) if record.operation == "R" and record.other == str(path)][-1:]
    (status,) = [k for k in range(last) if records[k].operation == "E"][-2:-1]  # of the sync after it was written
    completed = 0
    for k in range(cuts):
        cut, after = Cut(disk, records, status - k % 12), tmp_path / f"after{k}"
        cut.disk.write(after, draw, draw.choice((0.003, 0.01, 0.03)))
        with contextlib.suppress(ConfigError), open_run(after / path.name) as run:
            if run.status == "completed":
                assert run.count("updates") == 150 and not run.checksums().wrong
                completed += 1
    assert completed
