"""What a rank that hosts clients loads when it starts, and how many files it asks the system for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.cases import AREA, DIGITS, job
from tests.mpi.conftest import RUN, Start, write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

MODULES = """
import json, os, sys
from mpifl.__main__ import main
code = main(sys.argv[1:])
from mpi4py import MPI
json.dump(sorted(sys.modules), open(f"rank{MPI.COMM_WORLD.rank}.json", "w"))
sys.exit(code)
"""
LIBRARIES = {"h5py", "yaml", "scipy", "sklearn", "pandas", "matplotlib", "torch", "tqdm", "pooch", "threadpoolctl"}
STANDARD = {"argparse", "logging", "tempfile", "shutil", "subprocess", "concurrent", "socket", "pkgutil", "difflib"}
OWN = (  # modules of mpifl that a rank may load whose clients fit a logistic model by AREA
    r"|__main__|errors|signals|memory|host_memory|objective|rng|client(\.(rank|states|worker))?|config(\.(client_job|types))?"
    r"|transport(\.(backoff|base|detection|frames|handshake|launcher|mpi|mpi_client))?"
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
MOST = 1.25  # file calls of a client rank, as a multiple of the bare program's


def config(**problem: Any) -> dict[str, Any]:
    return job(AREA, problem={**DIGITS, **problem}, stop={"updates": 20}, evaluate={"updates": 20})


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_rank_with_clients_loads_what_these_use(batch_size: int | None, run: Start, tmp_path: Path) -> None:
    (tmp_path / "modules.py").write_text(MODULES)
    path = write(tmp_path, "small", config(batch_size=batch_size))
    done = run(3, "modules.py", "run", str(path))
    assert done.code == 0, str(done)
    server, client = (set(json.loads((tmp_path / f"rank{rank}.json").read_text())) for rank in (0, 1))
    assert "mpifl.storage.writer" in server
    assert not {m.partition(".")[0] for m in client} & (LIBRARIES | STANDARD)
    own = {m.removeprefix("mpifl").removeprefix(".") for m in client if m.partition(".")[0] == "mpifl"}
    assert not {m for m in own if not re.fullmatch(OWN, m)}
    assert ("numpy.random" in client) == (batch_size is not None)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
@pytest.mark.parametrize(("batch_size", "more"), [(4, ".random"), (None, "")])
def test_file_calls(batch_size: int | None, more: str, run: Start, tmp_path: Path) -> None:
    """Beside a program that imports mpi4py and what the clients use of NumPy, and does one barrier."""
    (tmp_path / "traced.py").write_text(TRACED)
    (tmp_path / "bare.py").write_text(BARE.format(more))
    path = write(tmp_path, "small", config(batch_size=batch_size))
    counts = []
    for words in ["bare.py"], [*RUN, path], ["bare.py"], [*RUN, path, "overwrite=true"]:  # bytecode is there later on
        done = run(3, "traced.py", *words)
        assert done.code == 0, str(done)
        counts.append(len((tmp_path / "calls.txt").read_text().splitlines()))
    assert counts[3] <= MOST * counts[2], counts
