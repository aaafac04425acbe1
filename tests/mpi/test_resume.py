"""Runs that are ended by a signal or killed on one number of ranks, and resumed on another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.cli import main
from mpifl.storage.checkpoint_folder import folder_of, sets
from tests.faults.harness import FULL
from tests.mpi.cases import AREA, DIGITS, LARGE, intermittent, job
from tests.mpi.conftest import MPIFL, Command, Start, in_one_job, until, write
from tests.mpi.files import attribute, consumed, differing
from tests.verified import verify_files

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not FULL, reason="minutes: in the full pass, make faults"),
]
PERIOD = {"trigger": {"period": 0.05}, "reply": "deferred"}
LONG = {"stop": {"updates": 12000}, "evaluate": {"updates": 3000}}
JOBS: dict[str, dict[str, Any]] = {
    "area": job({**AREA, "trigger": {"every": 3}, "output": "average"}, **LONG),
    "period": job({**AREA, **PERIOD}, **LONG),
    "large": job({**AREA, "trigger": {"every": 4}}, LARGE, stop={"updates": 1500}, checkpoint={"updates": 50}),
    "ace": job({"name": "ace", "reply": "before"}, DIGITS, **LONG),
    "mifa": job({"name": "mifa", "period": 0.15}, clock=intermittent(), **LONG),
    "ringmaster": job({"name": "ringmaster", "threshold": 4}, clock=intermittent(interrupted="restart"), **LONG),
    "feddane": job({"name": "feddane", "cohort": 4, "mu": 0.1, "local_steps": 2}, **LONG),
    "personal": job(
        {"name": "apfl", "cohort": 4, "adapt": "round"}, {**DIGITS, "test_split": 0.2}, stop={"updates": 4000}
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The file of an uninterrupted run, made in one process on demand."""
    folder = tmp_path_factory.mktemp("whole")

    def made(name: str) -> Path:
        path = folder / f"{name}.h5"
        if not path.exists():
            assert main(["run", str(write(folder, name, JOBS[name])), f"output={path}"]) == 0
        return path

    yield made
    verify_files(folder)


def resumed(start: Start, ranks: int, path: Path, deadline: float = 200.0) -> Command:
    return start(ranks, *MPIFL, "resume", path).ends_well(deadline)


@pytest.mark.parametrize(
    ("name", "ranks", "to", "number", "again"),
    [
        pytest.param("area", 3, "rank 0", signal.SIGTERM, 0, marks=pytest.mark.smoke),
        ("period", 3, "rank 2", signal.SIGUSR1, 4),
        ("large", 4, "rank 1", signal.SIGINT, 3),
        ("feddane", 0, "itself", signal.SIGINT, 5),
        ("ace", 3, "rank 1", signal.SIGTERM, 2),
        ("mifa", 2, "rank 0", signal.SIGINT, 4),
        ("ringmaster", 4, "rank 0", signal.SIGTERM, 0),
        ("personal", 2, "itself", signal.SIGUSR1, 3),  # mpirun passes it on to every rank
    ],
)
def test_a_signal(
    start: Start, whole: Callable[[str], Path], tmp_path: Path, name: str, ranks: int, to: str, number: signal.Signals,
    again: int,
) -> None:  # fmt: skip
    """It saves the run, which ends with the signal's exit code; the resumed run equals an uninterrupted one."""
    path = tmp_path / "s.h5"
    command = start(ranks, *MPIFL, "run", write(tmp_path, "s", JOBS[name]), f"output={path}")
    until(lambda: consumed(path), command, "updates")
    os.kill(command.process.pid if to == "itself" else command.rank(int(to[-1])), number)
    done = command.ends_well(20, 130 if number == signal.SIGINT else 143)
    assert f"to continue: mpifl resume {path}" in done.out, str(done)
    with open_run(path) as file:
        assert file.status == "interrupted" and not file.open_ended
        assert len(file.updates) < JOBS[name]["stop"]["updates"]
        assert file.events.kind.iloc[-1] == "interrupted" and number.name in file.events.text.iloc[-1]
        count = len(file.updates)
    resumed(start, again, path)
    assert not differing(whole(name), path, but=("events",))
    assert attribute(path, "status") == "completed" and attribute(path, "ranks") == max(1, again)
    with open_run(path) as file:
        (at,) = file.events.updates[file.events.kind == "resumed"]
        assert at == count or (at < count and "checkpoint" in JOBS[name]), "what was consumed is not done again"


def test_the_launcher_is_told_to_end(start: Start, whole: Callable[[str], Path], tmp_path: Path) -> None:
    """It leaves its ranks little time: the run resumes from a checkpoint in any case, the last or the one before."""
    path = tmp_path / "l.h5"
    file = write(tmp_path, "l", {**JOBS["area"], "checkpoint": {"updates": 1000}})
    command = start(3, *MPIFL, "run", file, f"output={path}")
    until(lambda: sets(folder_of(path)), command, "a checkpoint")
    command.process.send_signal(signal.SIGTERM)
    done = command.end(20)
    assert done.code in (1, 143) and "Traceback" not in done.err, str(done)
    resumed(start, 2, path)
    assert not differing(whole("area"), path, but=("events",))


# -- jobs with torch ---------------------------------------------------------------------------------------------------
NET = {**DIGITS, "clients": 3, "model": {"name": "resnet", "norm": "batch"}, "torch": {"buffers": "local"}}
TORCH: dict[str, dict[str, Any]] = {
    "statistics": job({"name": "tests.mpi.faulty:InterruptedFedAvg", "local_steps": 2}, NET, stop={"updates": 6}),
    "personal": job(
        {"name": "tests.mpi.faulty:InterruptedAPFL", "local_steps": 2},
        {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]}, "test_split": 0.2, "dtype": "float64"},
    ),
}
TORCH_DEADLINE = 130.0  # s, on a crowded machine


@pytest.mark.timeout(280)
def test_torch(tmp_path: Path) -> None:
    """Tensors, float64, each client's own statistics: saved on some ranks, and resumed on others."""
    files = {name: str(write(tmp_path, name, case)) for name, case in TORCH.items()}
    whole = [["run", file, f"output=whole-{name}.h5"] for name, file in files.items()]
    halves = [["run", file, f"output={name}.h5", "algorithm.at=1"] for name, file in files.items()]
    replies = in_one_job(tmp_path, 3, whole + halves, TORCH_DEADLINE)
    assert [set(reply.codes) for reply in replies] == [{0}, {0}, {143}, {143}], replies
    for reply in in_one_job(tmp_path, 2, [["resume", f"{name}.h5", "--trust"] for name in TORCH], TORCH_DEADLINE):
        assert set(reply.codes) == {0} and "Traceback" not in reply.err, reply
    for name in TORCH:
        assert not differing(tmp_path / f"whole-{name}.h5", tmp_path / f"{name}.h5", but=("events",))
        with open_run(tmp_path / f"{name}.h5") as file:
            assert "resumed" in set(file.events.kind)
