"""Run files of all kinds, made in this process: every method and clock; killed, failed, resumed and replayed runs."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mpifl
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.errors import RunFailed
from mpifl.objective import Objective
from mpifl.runfile import RunWriter
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.loop import ServerLoop
from tests.mpi.cases import CASES


def made(folder: Path, name: str, job: dict[str, Any], **more: Any) -> Path:
    """The file of a run, whether it completed or failed."""
    path = folder / f"{name}.h5"
    with contextlib.suppress(RunFailed):
        mpifl.run({**job, "name": name, "output": str(path), **more}).close()
    return path


def virtual(folder: Path, case: str) -> Path:
    return made(folder, f"virtual-{case}", CASES[case])


def real(folder: Path, case: str) -> Path:
    """A run under the real clock with so many evaluations that the server is late."""
    stop = {"updates": CASES[case]["stop"].get("updates", 60)}
    clock = {"mode": "real", "delay": {"name": "exponential", "rate": 1000}}
    return made(folder, f"real-{case}", CASES[case], stop=stop, clock=clock, evaluate={"every": 0.001})


def replayed(folder: Path, path: Path) -> Path:
    output = folder / f"{path.stem}-replayed.h5"
    mpifl.replay(path, output=output).close()
    return output


def hurt(folder: Path, case: str, draw: random.Random) -> Path:
    """A run with clients that raise and are lost, and with refused updates, until some clients are set aside."""
    solve = LocalTraining.solve

    def failing(self: Any, objective: Objective, *args: Any, **options: Any) -> Any:
        if draw.random() < 0.02:
            raise RuntimeError("trouble")
        y, *rest = solve(self, objective, *args, **options)
        return (y + float("nan") if draw.random() < 0.2 else y, *rest)

    with patch.object(LocalTraining, "solve", failing):
        return made(folder, f"hurt-{case}", CASES[case], faults={"refusals": 2})


def killed(folder: Path, case: str, draw: random.Random) -> list[Path]:
    """Copies of a run file while it is written, at any point of a write."""
    found: list[Path] = []
    append, write_rows = RunWriter.append, RunWriter._write_rows

    def copy(writer: RunWriter) -> None:
        if draw.random() < 0.02 and len(found) < 3:
            found.append(folder / f"killed-{case}-{len(found)}.h5")
            writer._file.flush()
            shutil.copyfile(writer.path, found[-1])

    def appended(self: RunWriter, row: Any) -> None:
        append(self, row)
        if draw.random() < 0.1:
            self.flush()

    def written(self: RunWriter, table: str, count: int) -> Any:
        copy(self)
        block = write_rows(self, table, count)
        copy(self)
        return block

    with patch.object(RunWriter, "append", appended), patch.object(RunWriter, "_write_rows", written):
        made(folder, f"watched-{case}", CASES[case])
    return found


def resumed(folder: Path, case: str, at: int) -> list[Path]:
    """A run that failed at an aggregation, before and after it was resumed from its last checkpoint."""
    aggregate, snapshot = ServerLoop._aggregate, Checkpointer.begin

    def complete(self: Checkpointer, time: float) -> None:
        snapshot(self, time)
        self.finish(time)

    def failing(self: ServerLoop, time: float) -> None:
        if self.version == at:
            raise RunFailed("the server fails")
        aggregate(self, time)

    with patch.object(ServerLoop, "_aggregate", failing), patch.object(Checkpointer, "begin", complete):
        path = made(folder, f"resumed-{case}", CASES[case], checkpoint={"updates": 4})
    failed = folder / f"failed-{case}.h5"
    shutil.copyfile(path, failed)
    if mpifl.open_run(path).status == "failed":
        with contextlib.suppress(mpifl.ConfigError):  # it failed before its first checkpoint
            mpifl.resume(path).close()
    return [failed, path]


def corpus(folder: Path, cases: list[str], seed: int = 0) -> Iterator[Path]:
    """Files of each kind for each of the cases."""
    draw = random.Random(seed)
    for k, case in enumerate(cases):
        yield virtual(folder, case)
        yield (path := real(folder, case))
        yield replayed(folder, path)
        yield hurt(folder, case, draw)
        yield from killed(folder, case, draw)
        yield from resumed(folder, case, 2 + k % 5)
