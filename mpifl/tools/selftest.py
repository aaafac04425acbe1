"""`mpifl selftest`: whether MPI, HDF5, file locks and torch work on this machine, and how fast messages travel.

Every check uses the library as a run does. A check that fails does not stop the others.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl import safe_hdf5
from mpifl.config.read import load, to_yaml
from mpifl.errors import ConfigError, RunFailed, host_name
from mpifl.execution import Task, execute
from mpifl.runfile.reader import open_run
from mpifl.runfile.run_lock import Lock
from mpifl.tools.analysis.run import Run
from mpifl.tools.verify.run_file import verify_file
from mpifl.transport import detection
from mpifl.version import source

if TYPE_CHECKING:
    from mpifl.transport.mpi import MPI

OK, ABSENT, FAILED = "ok", "absent", "FAILED"
SIZES = (7_850, 1_000_000)  # float32 numbers of a message: logistic regression on MNIST, a small network
SECONDS = 1.0  # duration of the exchange of each size
TIMEOUT = 60.0  # s in which a child process must end
JOB: dict[str, Any] = {
    "name": "selftest",
    "seed": 0,
    "problem": {
        "data": "none",
        "model": {"name": "quadratic", "curvatures": [0.5, 1.0, 2.0, 4.0], "optima": [3.0, -1.0, 0.25, 2.0]},
        "clients": 4,
    },
    "algorithm": {"name": "area", "trigger": {"every": 2}, "step_size": 0.1},
    "clock": {"mode": "virtual", "delay": {"name": "fixed", "seconds": [0.7, 1.1, 1.3, 1.9]}},
    "stop": {"updates": 400},
    "evaluate": {"updates": 100},
}
# Digest of the model and the updates of JOB, which is the same everywhere: IEEE 754 fixes the bits of its operations.
DIGEST = "fc6ba3f4c37a1240"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    result: str
    text: str


def selftest(comm: MPI.Intracomm | None, folder: Path) -> list[Check]:
    """Runs all checks; every rank calls it. Returns the checks on rank 0, and none on the others.

    Args:
        comm: The ranks; None: one process.
        folder: Where the file checks write, in a temporary folder of their own.
    """
    if comm and comm.rank:
        for size in SIZES:
            _exchange(comm, size)
        for _ in range(2):  # rank 0 starts two runs over all ranks
            with suppress(RunFailed, ConfigError):  # rank 0 reports it
                execute(lambda: None)
        return []
    checks = [_checked("software", _software), _checked("ranks", lambda: _ranks(comm))]
    if comm:
        checks += [_checked(f"wire, d = {size:,}", partial(_wire, comm, size)) for size in SIZES]
        checks.append(_checked("fault tolerance", _fault_tolerance))
    with TemporaryDirectory(prefix="mpifl-selftest-", dir=folder) as name:
        inside = Path(name)
        checks.append(_checked("file locks", lambda: _locks(inside)))
        checks.append(_checked("HDF5, SWMR", lambda: _live_file(inside)))
        checks.append(_checked("virtual clock", lambda: _virtual_clock(inside)))
        if comm:
            checks.append(_checked("virtual clock, ranks", lambda: _on_ranks(inside)))
            checks.append(_checked("updates, ranks", lambda: _update_rate(inside, comm.size)))
    return [*checks, _checked("torch", _torch), _checked("GPU-aware MPI", _gpu_aware_mpi)]


def _checked(name: str, check: Callable[[], tuple[str, str]]) -> Check:
    """The result of one check; an error is a failed check."""
    try:
        return Check(name, *check())
    except Exception as error:
        return Check(name, FAILED, " ".join(f"{type(error).__name__}: {error}".split()))


def format_checks(checks: list[Check]) -> str:
    """The report, a line for each check."""
    width = max(len(check.name) for check in checks)
    return "\n".join(f"{check.name:<{width}}  {check.result:<6}  {check.text}" for check in checks)


# -- MPI ---------------------------------------------------------------------------------------------------------------
def versions() -> str:
    """mpifl, Python, and the builds of MPI and HDF5 that it uses."""
    python = f"Python {platform.python_version()}; NumPy {np.__version__}"
    return f"mpifl {source().version}; {python}; {detection.build()}; {safe_hdf5.build()}"


def _software() -> tuple[str, str]:
    return OK, versions()


def _ranks(comm: MPI.Intracomm | None) -> tuple[str, str]:
    if comm is None:
        library = (
            "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
        )
        try:
            return ABSENT, f"one process; start it with mpirun -n 2 to check {detection.name_of(_python(library))}"
        except RunFailed as error:
            return ABSENT, f"one process; no MPI can be loaded ({error})"
    from mpifl.transport.mpi import MPI

    return OK, f"{comm.size} ranks of {detection.name_of(MPI.Get_library_version())}, rank 0 on {host_name()}"


def _exchange(comm: MPI.Intracomm, size: int) -> list[float]:
    """Sends a vector from rank 0 to rank 1 and back for SECONDS; the times of the round trips (s) on rank 0."""
    from mpifl.transport.backoff import wait

    vector, answer, go_on = np.zeros(size, np.float32), np.empty(size, np.float32), np.ones(1, np.int8)
    times: list[float] = []
    begin = time.perf_counter()
    while comm.rank < 2 and go_on[0]:
        if comm.rank == 0:
            start = time.perf_counter()
            wait(comm.Isend(vector, 1), comm.Irecv(answer, 1))
            times.append(time.perf_counter() - start)
            go_on[0] = len(times) < 3 or start - begin < SECONDS
            wait(comm.Isend(go_on, 1))
        else:
            wait(comm.Irecv(answer, 0))
            wait(comm.Isend(answer, 0))
            wait(comm.Irecv(go_on, 0))
    return times


def _wire(comm: MPI.Intracomm, size: int) -> tuple[str, str]:
    median = statistics.median(_exchange(comm, size))
    rate = 2 * 4 * size / median / 1e9
    return OK, f"{1 / median:,.0f} round trips a second between ranks 0 and 1, {rate:.2f} GB/s"


def _fault_tolerance() -> tuple[str, str]:
    if detection.is_fault_tolerant():
        return OK, "MPI continues when a rank dies"
    return ABSENT, "a rank that dies ends the job (Open MPI 5: mpirun --with-ft ulfm)"


# -- files -------------------------------------------------------------------------------------------------------------
def _alone() -> dict[str, str]:
    """The environment of a child process, which uses no MPI."""
    return {**os.environ, "MPIFL_MPI": "0", "MPIFL_LOG_LEVEL": "error"}


def _locks(folder: Path) -> tuple[str, str]:
    """Locks a file here, and asks another process for the lock."""
    path = folder / "lock"
    path.touch()
    ask = f"import pathlib; from mpifl.runfile.run_lock import is_locked; print(is_locked(pathlib.Path({str(path)!r})))"
    lock = Lock(path)
    held = _python(ask)
    lock.release()
    free = _python(ask)
    if (held, free) == ("True", "False"):
        return OK, f"{folder.parent.absolute()} has them, between the processes of a host"
    if held == free == "None":
        return ABSENT, f"{folder.parent.absolute()} has none: a run that is alive is known by its heartbeat alone"
    return FAILED, f"{folder.parent.absolute()}: a lock that is held is reported as {held}, one that is free as {free}"


def _python(code: str) -> str:
    """What a child process prints. Raises RunFailed."""
    words = [sys.executable, "-c", code]
    try:
        run = subprocess.run(words, env=_alone(), capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"a child process took longer than {TIMEOUT:g} s") from None
    if run.returncode:
        raise RunFailed((run.stderr.strip().splitlines() or ["a child process failed"])[-1])
    return run.stdout.strip()


def _live_file(folder: Path) -> tuple[str, str]:
    """Another process runs a job, whose file is read here while it grows."""
    path = folder / "live.h5"
    changes = {"clock": {"mode": "real"}, "stop": {"time": TIMEOUT}, "evaluate": {"every": 0.5}, "output": str(path)}
    (folder / "live.yaml").write_text(to_yaml(load(JOB | changes)), encoding="utf-8")
    words, end = [sys.executable, "-m", "mpifl", "run", str(folder / "live.yaml")], time.monotonic() + TIMEOUT
    seen: set[int] = set()  # row counts that were read
    with subprocess.Popen(words, env=_alone(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and len(seen - {0}) < 3 and time.monotonic() < end:
            time.sleep(0.1)
            if path.exists():
                with open_run(path) as file:
                    seen.add(file.count("updates"))
        run.terminate()
        error = run.communicate()[1].strip()
    if len(seen - {0}) < 3:
        return FAILED, error.splitlines()[-1] if error else f"rows could not be read while they were written: {seen}"
    verify_file(path)
    with open_run(path) as file:
        rate = file.count("updates") / file.attrs["wall_seconds"]
    return OK, f"read while it was written, then verified; {rate:,.0f} updates a second in one process"


# -- runs --------------------------------------------------------------------------------------------------------------
def digest(path: Path) -> str:
    """A digest of a run's final model, and of the order and the times of its updates."""
    with Run(path) as run:
        updates = run.updates[["time", "client", "version", "staleness"]].to_numpy(np.float64)
        return sha256(np.asarray(run.model, np.float64).tobytes() + updates.tobytes()).hexdigest()[:16]


def _virtual_clock(folder: Path) -> tuple[str, str]:
    from mpifl.server.start import run_server

    path = folder / "process.h5"
    result = run_server(load(JOB | {"output": str(path)}))
    if result.status != "completed":
        return FAILED, str(result.error or result.status)
    found = digest(path)
    if found != DIGEST:
        return FAILED, f"a run of 400 updates has the digest {found}; {DIGEST} is right"
    return OK, f"a run of 400 updates has the bits that it has everywhere (digest {found})"


def _on_ranks(folder: Path) -> tuple[str, str]:
    path = folder / "ranks.h5"
    result = execute(lambda: Task(load(JOB | {"output": str(path)})))
    if result.status != "completed":
        return FAILED, str(result.error or result.status)
    same = digest(path) == DIGEST
    return (OK if same else FAILED), f"a run over all ranks has {'the same' if same else 'other'} bits"


def _update_rate(folder: Path, ranks: int) -> tuple[str, str]:
    """A run in real time without delays, one client a rank: the server's rate."""
    values = {
        **JOB,
        "problem": {"data": "none", "model": {"name": "quadratic", "dim": SIZES[0]}, "clients": ranks - 1},
        "clock": {"mode": "real"},
        "stop": {"time": 2 * SECONDS},
        "evaluate": {"every": 2 * SECONDS},
        "output": str(folder / "rate.h5"),
    }
    result = execute(lambda: Task(load(values)))
    if result.status != "completed":
        return FAILED, str(result.error or result.status)
    with open_run(values["output"]) as file:
        rate = file.count("updates") / (2 * SECONDS)
    return OK, f"the server consumes {rate:,.0f} updates a second of {SIZES[0]:,} numbers, from {ranks - 1} ranks"


# -- torch -------------------------------------------------------------------------------------------------------------
def _torch() -> tuple[str, str]:
    if find_spec("torch") is None:
        return ABSENT, 'jobs with a torch model need it: pip install "mpifl[torch]"'
    code = (
        "import torch; x = torch.ones(3, requires_grad=True); (x * x).sum().backward(); assert x.grad.sum() == 6\n"
        "names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]\n"
        "print(torch.__version__, '; '.join(names) or 'no GPU', sep='; ')"
    )
    return OK, f"torch {_python(code)}"


def _gpu_aware_mpi() -> tuple[str, str]:
    """A child process sends itself a tensor on a GPU: an MPI that cannot may end it."""
    if find_spec("torch") is None:
        return ABSENT, "no torch"
    code = (
        "import torch, sys\nif not torch.cuda.is_available(): sys.exit(print('none'))\n"
        "from mpi4py import MPI\nx = torch.arange(1000, dtype=torch.float32, device='cuda'); y = torch.zeros_like(x)\n"
        "torch.cuda.synchronize(); MPI.COMM_SELF.Sendrecv(x, 0, recvbuf=y, source=0); print(bool((x == y).all()))"
    )
    words, names = [sys.executable, "-c", code], ("OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "HYDI_", "MPI_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(names) or "ALLOW_RUN" in key}
    run = subprocess.run(words, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    answer = run.stdout.strip()
    if answer == "none":
        return ABSENT, "no GPU"
    if run.returncode == 0 and answer == "True":
        return OK, "MPI sends vectors from the memory of a GPU"
    return ABSENT, "vectors on a GPU are copied to the host before they are sent"
