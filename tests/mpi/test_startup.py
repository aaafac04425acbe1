"""The start of an MPI job: what ranks load, ranks that differ from rank 0, that fail, die or are interrupted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.mpi.cases import AREA, DIGITS, job
from tests.mpi.conftest import MPIFL, ROOT, Start, launched, write
from tests.tiers import long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

RANK = 'os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))'
MODULES = """
import json, os, sys
from mpifl.__main__ import main
code = main(sys.argv[1:])
from mpi4py import MPI
json.dump(sorted({m.partition(".")[0] for m in sys.modules}), open(f"rank{MPI.COMM_WORLD.rank}.json", "w"))
sys.exit(code)
"""
OTHER = f"""
import os, runpy, sys
if {RANK} != "0":
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
EARLY = f"""
import os, signal, sys, threading, time
from mpifl.__main__ import main
if {RANK} == "0":
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    time.sleep(3)
sys.exit(main(sys.argv[1:]))
"""
BROKEN = f"""
import os, sys
rank, module = os.environ["BROKEN"].split()
if rank == {RANK}:
    sys.modules[module] = None
from mpifl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
LIBRARIES = {"h5py", "yaml", "scipy", "sklearn", "pandas", "matplotlib", "torch", "greenlet", "tqdm", "pooch"}
INTERRUPT_CODES = [130, 2, 2 | 9]  # of SIGINT; under MPICH, which adds the KILL of the other ranks


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path, "small", job(AREA, DIGITS, stop={"updates": 20}, evaluate={"updates": 20}))


def test_a_rank_with_clients_loads_no_library_that_these_do_not_use(run: Start, small: Path, tmp_path: Path) -> None:
    (tmp_path / "modules.py").write_text(MODULES)
    run(3, "modules.py", "run", small, code=0)
    server, *clients = ({*json.loads((tmp_path / f"rank{rank}.json").read_text())} for rank in range(3))
    assert "h5py" in server and not any(loaded & LIBRARIES for loaded in clients)


def test_ranks_of_another_installation(run: Start, small: Path, tmp_path: Path) -> None:
    """One line from rank 0, about the first of two such ranks."""
    shutil.copytree(PACKAGE, tmp_path / "other" / "mpifl", ignore=shutil.ignore_patterns("jobs", "__pycache__"))
    (tmp_path / "other" / "mpifl" / "BUILD").write_text("9.8.7\ncommit\n", encoding="ascii")
    (tmp_path / "start.py").write_text(OTHER)
    done = run(3, "start.py", "run", small, code=2)
    (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
    value, _, expected = line.removeprefix("mpifl: installation=").partition(": ")
    assert value.endswith("mpifl 9.8.7")
    assert re.fullmatch(rf".*, mpifl in '{PACKAGE}', as on rank 0, on .* too \(rank 1\)", expected)
    assert not list(tmp_path.rglob("*.h5"))


@pytest.mark.parametrize("given", [None, long("self,sm")])
def test_components_that_open_mpi_opens(
    given: str | None, run: Start, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one for networks that sleeps for a second; what a user has chosen stands."""
    if "mpirun" not in launched(2)[0]:
        pytest.skip("the setting is Open MPI's")
    monkeypatch.setenv("OMPI_MCA_btl_base_verbose", "20")
    if given:
        monkeypatch.setenv("OMPI_MCA_btl", given)
    done = run(2, *MPIFL, "run", small, code=0)
    opened = set(re.findall(r"components_open: component (\w+) open function successful", done.err))
    if given:
        assert opened == {"self", "sm"}
    else:
        assert {"self", "sm", "tcp"} <= opened and "ofi" not in opened


@pytest.mark.parametrize("tolerant", [False, long(True)])
@pytest.mark.parametrize("rank", [long(0), 2])
def test_a_rank_that_dies_before_the_run(
    rank: int, tolerant: bool, run: Start, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends; under ULFM also where the others have noticed it before rank 0 begins."""
    monkeypatch.setenv("SIGNALLED", f"{rank} SIGKILL {0.5 if tolerant else 0}")
    if tolerant and "mpirun" not in launched(4)[0]:
        pytest.skip("ULFM is Open MPI's")
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    done = run(4, "signalled.py", "run", small, tolerant=tolerant)
    assert done.code and "Traceback" not in done.err and not list(tmp_path.glob("*.h5")), str(done)
    if tolerant and rank:  # rank 0 reports it, alone
        (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
        assert done.code == 3 and f"rank {rank} died before this run" in line, str(done)


@pytest.mark.parametrize(
    "broken", ["1 mpifl.client.rank", *map(long, ("0 mpifl.cli", "0 mpifl.api", "1 mpifl.signals"))]
)
def test_a_rank_that_cannot_import(
    broken: str, run: Start, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that one host cannot read: the rank reports it and ends the job, in which the others wait for it."""
    monkeypatch.setenv("BROKEN", broken)
    (tmp_path / "broken.py").write_text(BROKEN)
    done = run(3, "broken.py", "run", small)
    rank, module = broken.split()
    assert done.code == 3 and f"rank {rank} on " in done.err and f"import of {module} halted" in done.err, str(done)


@pytest.mark.parametrize("rank", [0, long(1)])
def test_an_interrupt_while_ranks_start(
    rank: int, run: Start, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends the job at once, as a signal ends any program: without a traceback, and not as a failed run."""
    monkeypatch.setenv("SIGNALLED", f"{rank} SIGINT 0")
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    done = run(3, "signalled.py", "run", small)
    assert done.code in INTERRUPT_CODES and "Traceback" not in done.err, str(done)
    assert not list(tmp_path.glob("*.h5"))


@pytest.mark.long
@pytest.mark.parametrize("tolerant", [False, True])
def test_an_interrupt_while_mpi_starts(tolerant: bool, run: Start, small: Path, tmp_path: Path) -> None:
    """Ends its rank inside MPI, and so the job; under ULFM once MPI has started, when the others notice it."""
    if tolerant and "mpirun" not in launched(3)[0]:
        pytest.skip("ULFM is Open MPI's")
    (tmp_path / "early.py").write_text(EARLY)
    done = run(3, "early.py", "run", small, tolerant=tolerant)
    assert done.code in ([3] if tolerant else INTERRUPT_CODES) and "Traceback" not in done.err, str(done)
    assert ("mpifl: rank 1 ends: rank 0 died" in done.err) == tolerant
