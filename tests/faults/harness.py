"""Runs that are damaged on purpose: started under mpirun with fault tolerance, their ranks killed, their files checked.

MPIFL_FAULTS=full runs the full pass instead of the short one; MPIFL_FAULTS_OUT is the folder for the counts, one JSON
file for each kind of fault (`tests.faults.table`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.errors import ConfigError
from mpifl.runfile.checkpoint_folder import folder_of, sets
from tests.mpi.conftest import MPIFL, RANKS, TOLERANT, Command, mpiexec, mpifl, python, until
from tests.mpi.files import differing

FULL = os.environ.get("MPIFL_FAULTS") == "full"
PROBE = "from mpi4py import MPI; MPI.COMM_WORLD.Get_failed()"


def amount(short: int, full: int) -> range:
    """The seeds of a test: fewer in the short pass, more in the full one."""
    return range(full if FULL else short)


@functools.cache
def intolerant() -> str:
    """Why ranks that die end the whole job here; "" if they do not."""
    launcher = mpiexec()
    if launcher is None:
        return "no mpirun"
    probe = Command([launcher, *TOLERANT, "-n", "1", sys.executable, "-c", PROBE], Path.cwd()).start().end()
    return "" if probe.code == 0 else "this MPI has no fault tolerance (ULFM)"


def needs_tolerance() -> None:
    if reason := intolerant():
        pytest.skip(reason)


# -- jobs --------------------------------------------------------------------------------------------------------------
def job(
    folder: Path, ranks: int, *words: str | Path, tolerant: bool = True
) -> contextlib.AbstractContextManager[Command]:
    """Runs `mpifl *words` on this number of ranks (0: without a launcher); kills what outlives the block."""
    return python(ranks, *MPIFL, *words, cwd=folder, tolerant=tolerant)


def began(path: Path) -> float | None:
    """The Unix time at which a run's clock started, once its file has it."""
    try:
        with open_run(path) as run:
            return None if isnan(run.attrs["began"]) else float(run.attrs["began"])
    except ConfigError:
        return None


def saved(path: Path) -> int:
    """The number of checkpoints that a run has completed, those before a resume included; 0 if there is none."""
    return max(sets(folder_of(path)), default=0)


def pids(command: Command) -> dict[int, int]:
    """The process ids of a job's ranks."""
    found: dict[int, int] = {}
    for pid, environment in sorted(command.processes().items(), reverse=True):  # a rank's own children come later
        for key in RANKS:
            if environment.get(key, "").isdigit():
                found[int(environment[key])] = pid
    return found


def kill_all(command: Command, draw: random.Random) -> None:
    """Sends SIGKILL to every process of a job, its launcher included, in a random order; waits for the end."""
    victims = list(command.processes())
    draw.shuffle(victims)
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    command.end()


def run_and_kill(
    folder: Path, ranks: int, file: Path, path: Path, plan: list[tuple[float, int]], deadline: float = 120.0
) -> tuple[dict[int, float], Command]:
    """Runs a job to its end while ranks are killed, (seconds after the start, rank) each; the Unix time at which each
    was killed, but for ranks that had ended.

    Ranks that are to be killed at once are so when the file is made, as the ranks are told to begin.
    """
    killed = {}
    with job(folder, ranks, "run", file) as command:
        if not any(after for after, _ in plan):
            until(path.exists, command, "the run file")
            start = time.time()
        else:
            start = until(lambda: began(path), command, "the start")
        victims = pids(command)
        for after, rank in sorted(plan):
            time.sleep(max(0.0, start + after - time.time()))
            if command.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victims[rank], signal.SIGKILL)
                    killed[rank] = time.time()
        return killed, command.ends_well(deadline)


def replays(path: Path) -> None:
    """Asserts that a replay has all tables and the model, bit for bit."""
    again = path.with_name(f"{path.stem}-replay.h5")
    assert mpifl("replay", path, "--trust", f"output={again}", "overwrite=true") == 0
    assert not differing(path, again, but=("events",))


# -- what is counted ---------------------------------------------------------------------------------------------------
Counted = Callable[[str], contextlib.AbstractContextManager[list[str]]]


def counting(item: int, name: str) -> Any:
    """The fixture `counted` of a module: `with counted(what) as told` is one run, whose outcome is the text that the
    block puts into the list, or "failed" if it raises. At the end one row of each kind is left for the page."""

    @pytest.fixture(scope="module")
    def counted() -> Iterator[Counted]:
        rows: dict[str, dict[str, Any]] = {}

        @contextlib.contextmanager
        def run(what: str) -> Iterator[list[str]]:
            row = rows.setdefault(what, {"item": item, "what": what, "runs": 0, "outcomes": {}, "seconds": 0.0})
            begin, told = time.monotonic(), ["passed"]
            try:
                yield told
            except BaseException:
                told[0] = "failed"
                raise
            finally:
                row["runs"] += 1
                row["outcomes"][told[0]] = row["outcomes"].get(told[0], 0) + 1
                row["seconds"] = round(row["seconds"] + time.monotonic() - begin, 1)

        yield run
        write_counts(name, [rows[what] for what in sorted(rows)])

    return counted


def write_counts(name: str, rows: list[dict[str, Any]]) -> None:
    """Leaves the rows of one kind of fault for the page."""
    if place := os.environ.get("MPIFL_FAULTS_OUT"):
        Path(place).mkdir(parents=True, exist_ok=True)
        Path(place, f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
