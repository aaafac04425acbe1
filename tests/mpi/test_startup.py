"""How ranks start: what a rank with clients imports, ranks that differ, die or are interrupted before a run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.cases import AREA, DIGITS, job
from tests.mpi.conftest import ROOT, Command, Start, launched, write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

MODULES = """
import json, sys
from mpifl.__main__ import main
code = main(sys.argv[1:])
from mpi4py import MPI
json.dump(sorted(sys.modules), open(f"rank{MPI.COMM_WORLD.rank}.json", "w"))
sys.exit(code)
"""
OTHER = """
import os, runpy, sys
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) != "0":
    sys.path.insert(0, "other")
runpy.run_module("mpifl", run_name="__main__", alter_sys=True)
"""
PACKAGE = ROOT / "mpifl"
SIGNALLED = """
import os, signal, sys, time
import mpifl.__main__
from mpifl.transport import launcher
communicator = launcher.communicator
rank, name, late = os.environ["SIGNALLED"].split()
def signalled():
    comm = communicator()
    if comm.rank == int(rank):
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(60)
    if comm.rank == 0:
        time.sleep(float(late))
    return comm
launcher.communicator = signalled
sys.exit(mpifl.__main__.main(sys.argv[1:]))
"""
EARLY = """
import os, signal, sys, threading, time
from mpifl.__main__ import main
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0":
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    time.sleep(3)
sys.exit(main(sys.argv[1:]))
"""
LATE = """
import os, sys, time
from mpifl.__main__ import main
from mpifl.transport import backoff
backoff.REPORT_INTERVAL = 0.4
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) != "0":
    time.sleep(2)
sys.exit(main(sys.argv[1:]))
"""
BROKEN = """
import os, sys
rank, module = os.environ["BROKEN"].split()
if rank == os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")):
    sys.modules[module] = None
from mpifl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
LIBRARIES = {"h5py", "yaml", "scipy", "sklearn", "pandas", "matplotlib", "torch", "tqdm", "pooch", "threadpoolctl"}
INTERRUPT_CODES = [130, 2, 2 | 9]  # of SIGINT; under MPICH, which adds the KILL of the other ranks


def config(**problem: Any) -> dict[str, Any]:
    return job(AREA, problem={**DIGITS, **problem}, stop={"updates": 20}, evaluate={"updates": 20})


@pytest.mark.long
def test_rank_0_says_that_it_waits_for_the_others(run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside MPI_Init, where Python runs nothing; the lines end when MPI has started."""
    monkeypatch.setenv("MPIFL_LOG_LEVEL", "info")
    (tmp_path / "late.py").write_text(LATE)
    done = run(2, "late.py", "run", str(write(tmp_path, "small", config())), code=0)
    begin, end = done.err.index("waiting for all 2 ranks to start MPI ("), done.err.index("    job: small")
    assert begin < end and "to start MPI" not in done.err[end:]


def test_a_rank_with_clients_imports_no_library_of_the_server(run: Start, tmp_path: Path) -> None:
    """On a host with many ranks each of these libraries would take tens of megabytes on every rank."""
    (tmp_path / "modules.py").write_text(MODULES)
    done = run(3, "modules.py", "run", str(write(tmp_path, "small", config(batch_size=4))))
    assert done.code == 0, str(done)
    server, *others = (set(json.loads((tmp_path / f"rank{rank}.json").read_text())) for rank in range(3))
    assert "h5py" in server
    for modules in others:
        assert not {name.partition(".")[0] for name in modules} & LIBRARIES


def test_ranks_of_another_installation(run: Start, tmp_path: Path) -> None:
    """One line from rank 0, about the first of two such ranks."""
    shutil.copytree(PACKAGE, tmp_path / "other" / "mpifl", ignore=shutil.ignore_patterns("jobs", "__pycache__"))
    (tmp_path / "other" / "mpifl" / "BUILD").write_text("9.8.7\ncommit\n", encoding="ascii")
    (tmp_path / "start.py").write_text(OTHER)
    done = run(3, "start.py", "run", str(write(tmp_path, "small", config())))
    assert done.code == 2, str(done)
    (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
    value, _, text = line.removeprefix("mpifl: installation=").partition(": ")
    assert value.endswith("mpifl 9.8.7")
    assert re.fullmatch(rf"rank 0 has .*, mpifl in '{ROOT}'; expected the same on .* too \(rank 1\)", text)
    assert "Traceback" not in done.err and not list(tmp_path.rglob("*.h5"))


SETTINGS = """
import ctypes, logging, os
before, slack = dict(os.environ), ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)
import mpifl
assert dict(os.environ) == before
logging.basicConfig(level=logging.DEBUG)
mpifl.run("small.yaml")
assert dict(os.environ) == before and ctypes.CDLL(None).prctl(30, 0, 0, 0, 0) == slack
"""


@pytest.mark.parametrize("tune", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_settings_are_made_for_the_run_alone(
    tune: str, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`import mpifl` makes none; they are made while MPI starts; afterwards the process is as before."""
    monkeypatch.setenv("MPIFL_TUNE", tune)
    write(tmp_path, "small", config())
    (tmp_path / "settings.py").write_text(SETTINGS)
    done = run(2, "settings.py")
    assert done.code == 0, str(done)
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


@pytest.mark.parametrize("given", [None, pytest.param("self,sm", marks=pytest.mark.long)])
def test_components_that_open_mpi_opens(
    given: str | None, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one for networks that sleeps for a second; what a user has chosen stands."""
    if "mpirun" not in launched(2)[0]:
        pytest.skip("the setting is Open MPI's")
    monkeypatch.setenv("OMPI_MCA_btl_base_verbose", "20")
    if given:
        monkeypatch.setenv("OMPI_MCA_btl", given)
    done = run(2, "-m", "mpifl", "run", str(write(tmp_path, "small", config())))
    assert done.code == 0, str(done)
    opened = set(re.findall(r"components_open: component (\w+) open function successful", done.err))
    if given:
        assert opened == {"self", "sm"}
    else:
        assert {"self", "sm", "tcp"} <= opened and "ofi" not in opened


@pytest.mark.parametrize("tolerant", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_rank_that_dies_before_the_handshake(
    rank: int, tolerant: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends; under ULFM also where the others have noticed it before rank 0 asks for their hellos."""
    monkeypatch.setenv("SIGNALLED", f"{rank} SIGKILL {0.5 if tolerant else 0}")
    if tolerant and "mpirun" not in launched(4)[0]:
        pytest.skip("ULFM is Open MPI's")
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    words = [sys.executable, "signalled.py", "run", str(write(tmp_path, "small", config()))]
    launcher, *ranks = launched(4)
    done = Command([launcher, *(["--with-ft", "ulfm"] if tolerant else []), *ranks, *words], tmp_path).start().end()
    assert done.code and "Traceback" not in done.err and not list(tmp_path.glob("*.h5")), str(done)
    if tolerant and rank:  # rank 0 reports it, alone
        (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
        assert done.code == 3 and f"rank {rank} died before this run" in line, str(done)


@pytest.mark.parametrize(
    "broken", ["1 mpifl.client.client_rank", pytest.param("0 mpifl.server.start", marks=pytest.mark.long)]
)
def test_a_rank_that_cannot_import(broken: str, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that one host cannot read: the rank reports it and ends the job, in which the others wait for it."""
    monkeypatch.setenv("BROKEN", broken)
    (tmp_path / "broken.py").write_text(BROKEN)
    done = run(3, "broken.py", "run", str(write(tmp_path, "small", config())))
    rank, module = broken.split()
    assert done.code == 3 and f"rank {rank} on " in done.err and f"import of {module} halted" in done.err, str(done)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_an_interrupt_while_ranks_start(rank: int, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the job at once, as a signal ends any program: without a traceback, and not as a failed run."""
    monkeypatch.setenv("SIGNALLED", f"{rank} SIGINT 0")
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    done = run(3, "signalled.py", "run", str(write(tmp_path, "small", config())))
    assert done.code in INTERRUPT_CODES and "Traceback" not in done.err, str(done)
    assert not list(tmp_path.glob("*.h5"))


@pytest.mark.long
@pytest.mark.parametrize("tolerant", [False, True])
def test_an_interrupt_while_mpi_starts(tolerant: bool, tmp_path: Path) -> None:
    """Ends its rank inside MPI, and so the job; under ULFM once MPI has started, when the others notice it."""
    if tolerant and "mpirun" not in launched(4)[0]:
        pytest.skip("ULFM is Open MPI's")
    (tmp_path / "early.py").write_text(EARLY)
    words = [sys.executable, "early.py", "run", str(write(tmp_path, "small", config()))]
    launcher, *ranks = launched(3)
    done = Command([launcher, *(["--with-ft", "ulfm"] if tolerant else []), *ranks, *words], tmp_path).start().end()
    assert done.code in ([3] if tolerant else INTERRUPT_CODES) and "Traceback" not in done.err, str(done)
    assert ("mpifl: rank 1 ends: rank 0 died" in done.err) == tolerant
