"""How ranks start: what a rank with clients imports, ranks that differ, die or are interrupted before a run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import needs_tolerance
from tests.mpi.cases import AREA, DIGITS, job
from tests.mpi.conftest import MPIFL, ROOT, Command, Start, launched, write
from tests.tiers import long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

MODULES = """
import json, sys
from mpifl.__main__ import main
code = main(sys.argv[1:])
from mpi4py import MPI
json.dump(sorted(sys.modules), open(f"rank{MPI.COMM_WORLD.rank}.json", "w"))
sys.exit(code)
"""
PROGRAM = """
import os, signal, sys, threading, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))
{code}
from mpifl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
SIGNALLED = """
import mpifl.__main__
from mpifl.transport import launcher
communicator = launcher.communicator
def signalled():
    comm = communicator()
    if rank == {rank}:
        os.kill(os.getpid(), signal.{name})
        time.sleep(60)
    if rank == 0:
        time.sleep({late})
    return comm
launcher.communicator = signalled
"""
EARLY = """
import mpifl.__main__
if rank == 0:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    time.sleep(3)
"""
LATE = """
from mpifl.transport import backoff
backoff.REPORT_INTERVAL = 0.4
time.sleep(2 * (rank > 0))
"""
NEVER = """
from mpifl.transport import launcher
launcher.MPI_START_TIMEOUT = 3
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""
LIBRARIES = {"h5py", "yaml", "scipy", "sklearn", "pandas", "matplotlib", "torch", "tqdm", "pooch", "threadpoolctl"}
INTERRUPT_CODES = [130, 2, 2 | 9]  # of SIGINT; under MPICH, which adds the KILL of the other ranks


def config(**problem: Any) -> dict[str, Any]:
    return job(AREA, problem={**DIGITS, **problem}, stop={"updates": 20}, evaluate={"updates": 20})


@pytest.fixture
def started(run: Start, tmp_path: Path) -> Start:
    """started(ranks, code) runs a small job in a program that executes this code first."""

    def complete(ranks: int, code: str, **options: bool) -> Command:
        (tmp_path / "program.py").write_text(PROGRAM.format(code=code))
        return run(ranks, "program.py", "run", write(tmp_path, "small", config()), **options)

    return complete


@pytest.mark.long
def test_rank_0_says_that_it_waits_for_the_others(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside MPI_Init, where Python runs nothing; the lines end when MPI has started."""
    monkeypatch.setenv("MPIFL_LOG_LEVEL", "info")
    done = started(2, LATE).ends_well()
    begin, end = done.err.index("waiting for all 2 ranks to start MPI ("), done.err.index("    job: small")
    assert begin < end and "to start MPI" not in done.err[end:]


def test_a_rank_with_clients_imports_no_library_of_the_server(run: Start, tmp_path: Path) -> None:
    """On a host with many ranks each of these libraries would take tens of megabytes on every rank."""
    (tmp_path / "modules.py").write_text(MODULES)
    run(3, "modules.py", "run", write(tmp_path, "small", config(batch_size=4)), code=0)
    server, *others = (set(json.loads((tmp_path / f"rank{rank}.json").read_text())) for rank in range(3))
    assert "h5py" in server
    for modules in others:
        assert not {name.partition(".")[0] for name in modules} & LIBRARIES


def test_ranks_of_another_installation(started: Start, tmp_path: Path) -> None:
    """One line from rank 0, about the first of two such ranks."""
    shutil.copytree(ROOT / "mpifl", tmp_path / "other" / "mpifl", ignore=shutil.ignore_patterns("jobs", "__pycache__"))
    (tmp_path / "other" / "mpifl" / "BUILD").write_text("9.8.7\ncommit\n", encoding="ascii")
    done = started(3, "sys.path[:0] = ['other'] * (rank > 0)").ends_well(code=2)
    (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
    value, _, text = line.removeprefix("mpifl: installation=").partition(": ")
    assert value.endswith("mpifl 9.8.7")
    assert re.fullmatch(rf"rank 0 has .*, mpifl in '{ROOT}'; expected the same on .* too \(rank 1\)", text)
    assert not list(tmp_path.rglob("*.h5"))


SETTINGS = """
import ctypes, logging, os
before, slack = dict(os.environ), ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)
import mpifl
assert dict(os.environ) == before
logging.basicConfig(level=logging.DEBUG)
mpifl.run("small.yaml")
assert dict(os.environ) == before and ctypes.CDLL(None).prctl(30, 0, 0, 0, 0) == slack
"""


@pytest.mark.parametrize("tune", ["1", long("0")])
def test_settings_are_made_for_the_run_alone(
    tune: str, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`import mpifl` makes none; they are made while MPI starts; afterwards the process is as before."""
    monkeypatch.setenv("MPIFL_TUNE", tune)
    write(tmp_path, "small", config())
    (tmp_path / "settings.py").write_text(SETTINGS)
    done = run(2, "settings.py", code=0)
    assert done.err.count("OMPI_MCA_btl_sm_eager_limit=33792 is set") == int(tune)  # rank 0 logs it


NUMPY = """
import inspect, json, os
from dataclasses import dataclass
import numpy as np
from mpifl.algorithms.area import Area

@dataclass(frozen=True)
class Looking(Area):
    def train(self, client, message, objective):
        documented = sum(bool(getattr(np, name).__doc__) for name in dir(np) if callable(getattr(np, name)))
        found = [np.__version__, np.__file__, documented, np.array.__doc__]
        for each in (np.array, np.zeros, np.linalg.norm, np.random.default_rng):
            try:
                found.append(str(inspect.signature(each)))
            except ValueError as error:
                found.append(str(error))
        with open(f"client-{os.getpid()}.json", "w") as file:
            json.dump(found, file)
        return super().train(client, message, objective)
"""


def test_a_method_sees_the_same_numpy_in_one_process_and_under_mpi(run: Start, tmp_path: Path) -> None:
    """Docstrings and signatures included."""
    (tmp_path / "looking.py").write_text(NUMPY)
    path = str(write(tmp_path, "small", config() | {"algorithm": {"name": "looking:Looking", "step_size": 0.1}}))
    for ranks in (1, 3):
        done = run(ranks, "-m", "mpifl", "run", path, f"output={ranks}.h5")
        assert done.code == 0, str(done)
    found = [file.read_text() for file in tmp_path.glob("client*.json")]
    assert len(found) == 3 and len(set(found)) == 1  # one process, and two ranks with clients


@pytest.mark.parametrize("given", [None, long("self,sm")])
def test_components_that_open_mpi_opens(
    given: str | None, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one for networks that sleeps for a second; what a user has chosen stands."""
    if "mpirun" not in launched(2)[0]:
        pytest.skip("the setting is Open MPI's")
    monkeypatch.setenv("OMPI_MCA_btl_base_verbose", "20")
    if given:
        monkeypatch.setenv("OMPI_MCA_btl", given)
    done = run(2, *MPIFL, "run", write(tmp_path, "small", config()), code=0)
    opened = set(re.findall(r"components_open: component (\w+) open function successful", done.err))
    if given:
        assert opened == {"self", "sm"}
    else:
        assert {"self", "sm", "tcp"} <= opened and "ofi" not in opened


@pytest.mark.parametrize("tolerant", [False, long(True)])
@pytest.mark.parametrize("rank", [long(0), 2])
def test_a_rank_that_dies_before_the_handshake(rank: int, tolerant: bool, started: Start, tmp_path: Path) -> None:
    """The job ends; under ULFM also where the others have noticed it before rank 0 asks for their hellos."""
    if tolerant:
        needs_tolerance()
    done = started(4, SIGNALLED.format(rank=rank, name="SIGKILL", late=0.5 * tolerant), tolerant=tolerant)
    assert done.code and "Traceback" not in done.err and not list(tmp_path.glob("*.h5")), str(done)
    if tolerant and rank:  # rank 0 reports it, alone
        (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
        assert done.code == 3 and f"rank {rank} died before this run" in line, str(done)


@pytest.mark.parametrize(("rank", "module"), [(1, "mpifl.client.client_rank"), long(0, "mpifl.server.start")])
def test_a_rank_that_cannot_import(rank: int, module: str, started: Start) -> None:
    """A file that one host cannot read: the rank reports it and ends the job, in which the others wait for it."""
    done = started(3, f"sys.modules |= {{'{module}': None}} if rank == {rank} else {{}}")
    assert done.code == 3 and f"rank {rank} on " in done.err and f"import of {module} halted" in done.err, str(done)


@pytest.mark.parametrize("rank", [0, long(1)])
def test_an_interrupt_while_ranks_start(rank: int, started: Start, tmp_path: Path) -> None:
    """Ends the job at once, as a signal ends any program: without a traceback, and not as a failed run."""
    done = started(3, SIGNALLED.format(rank=rank, name="SIGINT", late=0))
    assert done.code in INTERRUPT_CODES and "Traceback" not in done.err, str(done)
    assert not list(tmp_path.glob("*.h5"))


@pytest.mark.long
@pytest.mark.parametrize("tolerant", [False, True])
def test_an_interrupt_while_mpi_starts(tolerant: bool, started: Start) -> None:
    """Ends its rank inside MPI, and so the job; under ULFM once MPI has started, when the others notice it."""
    if tolerant:
        needs_tolerance()
    done = started(3, EARLY, tolerant=tolerant)
    assert done.code in ([3] if tolerant else INTERRUPT_CODES) and "Traceback" not in done.err, str(done)
    assert ("mpifl: rank 1 ends: rank 0 died" in done.err) == tolerant


@pytest.mark.long
def test_a_job_ends_whose_rank_has_died_before_mpi_started(started: Start) -> None:
    """Under ULFM the launcher leaves the others waiting inside MPI_Init, where no handler of a signal would run."""
    needs_tolerance()
    done = started(4, NEVER, tolerant=True)
    assert done.code == 1 and "Timeout (0:00:03)!" in done.err and "transport/mpi.py" in done.err, str(done)


CODES = """
import sys
from mpifl.__main__ import main
code = main(sys.argv[1:])
from mpi4py import MPI
print(MPI.COMM_WORLD.gather(code) or "", end="")
sys.exit(code)
"""


@pytest.mark.parametrize("tolerant", [long(False), True])
def test_under_ulfm_rank_0_alone_ends_with_the_exit_code(tolerant: bool, run: Start, tmp_path: Path) -> None:
    """Open MPI's launcher sometimes hangs where several ranks end with one."""
    if tolerant:
        needs_tolerance()
    (tmp_path / "codes.py").write_text(CODES)
    done = run(3, "codes.py", "run", "missing.yaml", tolerant=tolerant)
    assert done.code == 2 and done.out.strip() == ("[2, 0, 0]" if tolerant else "[2, 2, 2]"), str(done)
