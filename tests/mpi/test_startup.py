"""What a rank that hosts clients loads when it starts, and how many files it asks the system for."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mpi.cases import AREA, DIGITS, job
from tests.mpi.conftest import ROOT, RUN, Command, Start, launched, write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

MODULES = """
import json, os, sys
opened, compiled = [], []
def hook(event, args):
    if event == "open" and isinstance(args[0], str):
        opened.append(args[0])
    elif event == "compile" and "__create_fn__" in str(args[0]):
        compiled.append(args[0].decode())
sys.addaudithook(hook)
from mpifl.__main__ import main
code = main(sys.argv[1:])
from mpi4py import MPI
found = {"modules": sorted(sys.modules), "opened": opened, "compiled": compiled}
json.dump(found, open(f"rank{MPI.COMM_WORLD.rank}.json", "w"))
sys.exit(code)
"""
NOTED = """
import os, sys
from mpifl.__main__ import main
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
with open(f"rank{rank}.txt", "w") as file:
    file.write(open("/proc/self/personality").read())
sys.exit(main())
"""
OTHER = """
import atexit, importlib.util, os, runpy, sys
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "")))
if rank and "version" in os.environ["OTHER"]:
    sys.path.insert(0, "other")
if rank == 1 and "numpy" in os.environ["OTHER"]:
    sys.path.insert(0, "other")
    opened = []
    sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
    atexit.register(lambda: print(*opened, file=open("opened.txt", "w")))
if rank and "bytecode" in os.environ["OTHER"]:
    importlib.util.MAGIC_NUMBER = b"\\0\\0\\r\\n"
runpy.run_module("mpifl", run_name="__main__", alter_sys=True)
"""
PACKAGE, STANDARD_LIBRARY = ROOT / "mpifl", Path(os.__file__).parent
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
BROKEN = """
import os, sys
rank, module = os.environ["BROKEN"].split()
if rank == os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")):
    sys.modules[module] = None
from mpifl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
LIBRARIES = {"h5py", "yaml", "scipy", "sklearn", "pandas", "matplotlib", "torch", "tqdm", "pooch", "threadpoolctl"}
STANDARD = {
    "argparse", "concurrent", "difflib", "logging", "pathlib", "pkgutil", "shutil", "socket", "subprocess", "tempfile",
    "urllib",
}  # fmt: skip
OWN = (  # modules of mpifl that a rank may load whose clients fit a logistic model by AREA
    r"|__main__|errors|heap|signals|memory|host_memory|objective|rng|client(\.(rank|states|worker))?|config(\.(client_job|types))?"
    r"|transport(\.(backoff|base|cores|detection|frames|handshake|launcher|module_broadcast|mpi|mpi_client|queues))?"
    r"|algorithms(\.(area|base|participation|common(\.(local_solver|step_schedules|strong_convexity|vectors))?))?"
    r"|problems(\.(base|hosting|inits|on_use|rows|settings|models(\.logistic)?))?"
)
TRACED = """
import os, sys
command = [sys.executable, *sys.argv[1:]]
if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
    command = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", "calls.txt", *command]
os.execvp(command[0], command)
"""
BARE = "import numpy{}; from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
BEFORE_MPI = {  # files of mpifl that such a rank opens; the other modules come from rank 0
    "BUILD", "__init__", "__main__", "errors", "transport.__init__", "transport.backoff", "transport.cores",
    "transport.detection", "transport.launcher", "transport.module_broadcast", "transport.mpi",
}  # fmt: skip
INTERRUPT_CODES = [130, 2, 2 | 9]  # of SIGINT; under MPICH, which adds the KILL of the other ranks
MOST = 0.9  # file calls of a client rank, as a multiple of the bare program's


def config(**problem: Any) -> dict[str, Any]:
    return job(AREA, problem={**DIGITS, **problem}, stop={"updates": 20}, evaluate={"updates": 20})


@pytest.mark.parametrize("batch_size", [4, pytest.param(None, marks=pytest.mark.long)])
def test_a_rank_with_clients_loads_what_these_use(batch_size: int | None, run: Start, tmp_path: Path) -> None:
    (tmp_path / "modules.py").write_text(MODULES)
    path = write(tmp_path, "small", config(batch_size=batch_size))
    done = run(3, "modules.py", "run", str(path))
    assert done.code == 0, str(done)
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    server, client = (set(each["modules"]) for each in found[:2])
    assert "mpifl.storage.writer" in server
    assert not {m.partition(".")[0] for m in client} & (LIBRARIES | STANDARD)
    own = {m.removeprefix("mpifl").removeprefix(".") for m in client if m.partition(".")[0] == "mpifl"}
    assert not {m for m in own if not re.fullmatch(OWN, m)}
    assert "_hashlib" not in client  # OpenSSL
    assert ("numpy.random" in client) == (batch_size is not None)
    for each in found[1:]:
        assert 0 < len(each["compiled"]) <= 12  # six methods of the algorithm's class and of the model's
        assert {module_of(name) for name in each["opened"] if str(PACKAGE) in name} == BEFORE_MPI
        assert not [name for name in each["opened"] if re.search(r"/numpy/.*\.pyc?$", name)]
        assert not [name for name in each["opened"] if name.startswith(f"{STANDARD_LIBRARY}/json/")]


@pytest.fixture
def one_core() -> Iterator[None]:
    """All ranks share a core, whatever this machine has."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.smoke
@pytest.mark.usefixtures("aslr", "one_core")
def test_ranks_that_share_a_core_are_restarted(run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a real launcher, which still gets their exit code."""
    monkeypatch.setenv("MPIFL_ASLR", "0")
    (tmp_path / "noted.py").write_text(NOTED)
    done = run(3, "noted.py", "run", str(write(tmp_path, "small", config(batch_size=0))))
    assert done.code == 2 and "mpifl: problem.batch_size=0: " in done.err, str(done)
    assert [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(3)] == ["00040000\n"] * 3


def module_of(file: str) -> str:
    """Of a source file or a bytecode file."""
    return re.sub(r"(__pycache__/)|(\.cpython-\d+)?\.pyc?$", "", os.path.relpath(file, PACKAGE)).replace("/", ".")


@pytest.mark.parametrize("other", ["version", "bytecode"])
def test_ranks_of_another_installation(other: str, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line from rank 0, about the first of two such ranks."""
    monkeypatch.setenv("OTHER", other)
    if other == "version":
        shutil.copytree(PACKAGE, tmp_path / "other" / "mpifl", ignore=shutil.ignore_patterns("jobs", "__pycache__"))
        (tmp_path / "other" / "mpifl" / "BUILD").write_text("9.8.7\ncommit\n", encoding="ascii")
    (tmp_path / "start.py").write_text(OTHER)
    done = run(3, "start.py", "run", str(write(tmp_path, "small", config())))
    assert done.code == 2, str(done)
    (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl:")]
    value, _, expected = line.removeprefix("mpifl: installation=").partition(": ")
    assert value.endswith("mpifl 9.8.7") if other == "version" else "bytecode 0000, mpifl" in value
    assert re.fullmatch(rf".*, mpifl in '{PACKAGE}', as on rank 0, on .* too \(rank 1\)", expected)
    assert "Traceback" not in done.err and not list(tmp_path.rglob("*.h5"))


@pytest.mark.long
def test_a_rank_with_another_numpy(run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or with one whose version is not noted beside it: it reads NumPy from its own files."""
    monkeypatch.setenv("OTHER", "numpy")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "numpy").symlink_to(Path(np.__file__).parent)
    (tmp_path / "start.py").write_text(OTHER)
    done = run(3, "start.py", "run", str(write(tmp_path, "small", config())))
    assert done.code == 0, str(done)
    opened = (tmp_path / "opened.txt").read_text().split()
    assert any("/other/numpy/" in name for name in opened)
    assert not any(name.startswith(f"{STANDARD_LIBRARY}/json/") for name in opened)


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
def test_a_rank_that_dies_instead_of_the_broadcast(
    rank: int, tolerant: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends; under ULFM also where the others have noticed it before rank 0 begins to broadcast."""
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
    "broken",
    ["1 mpifl.client.rank", *(pytest.param(f"{rank} mpifl.{name}", marks=pytest.mark.long) for rank, name in (
        (0, "cli"), (0, "api"), (0, "transport.module_broadcast"), (1, "transport.module_broadcast"), (1, "signals"),
    ))],
)  # fmt: skip
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


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
@pytest.mark.parametrize(("batch_size", "more"), [(4, ".random"), (None, "")])
@pytest.mark.usefixtures("one_core")
def test_file_calls(
    batch_size: int | None, more: str, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a program that imports mpi4py and what the clients use of NumPy, and does one barrier.

    Also a rank that shares its core, and is restarted once for that, makes no more of them than that program.
    """
    (tmp_path / "traced.py").write_text(TRACED)
    (tmp_path / "bare.py").write_text(BARE.format(more))
    path = write(tmp_path, "small", config(batch_size=batch_size))
    counts = []
    bare, again = ["bare.py"], [*RUN, path, "overwrite=true"]
    for words, kept in (bare, "1"), (again, "1"), (bare, "1"), (again, "1"), (again, "0"):  # bytecode is there later on
        monkeypatch.setenv("MPIFL_ASLR", kept)
        done = run(3, "traced.py", *words)
        assert done.code == 0, str(done)
        counts.append(len((tmp_path / "calls.txt").read_text().splitlines()))
    assert counts[3] <= MOST * counts[2], counts
    assert counts[4] <= counts[2], counts
