"""Every launcher that installs with pip, with every MPI library that does: one run of all ranks, or exit code 2."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from mpifl import open_run
from tests.mpi.conftest import MPIFL, ROOT, Start, environment

OPEN_MPI, MPICH, INTEL = "Open MPI", "MPICH", "Intel MPI"
LAUNCHERS = {
    OPEN_MPI: ROOT / ".venv" / "bin" / "mpirun",
    MPICH: ROOT / ".venv-mpich" / "bin" / "mpiexec",
    INTEL: ROOT / ".venv-impi" / "bin" / "mpiexec",
}
LIBRARIES = {
    OPEN_MPI: None,  # the one that mpi4py finds beside this Python
    MPICH: ROOT / ".venv-mpich" / "lib" / "libmpi.so.12",
    INTEL: ROOT / ".venv-impi" / "lib" / "libmpi.so.12",
}
PAIRS = list(itertools.product(LAUNCHERS, LIBRARIES))
WORKS = {(OPEN_MPI, OPEN_MPI), *itertools.product((MPICH, INTEL), repeat=2)}  # the latter two share Hydra and PMI

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


def need(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.exists():
            pytest.skip(f"{path.relative_to(ROOT)} is not there: make {path.relative_to(ROOT).parts[0]}/.done")


def of(library: Path | None) -> dict[str, str]:
    """The environment in which mpi4py loads this MPI library."""
    return {"MPI4PY_LIBMPI": str(library), "LD_LIBRARY_PATH": str(library.parent)} if library else {}


def program_of(folder: Path) -> list[str]:
    """What each rank executes: a run of 4 clients, whose file is run.h5 in the folder."""
    job = ["problem.clients=4", "stop.time=0.2", "clock.mode=virtual", f"output={folder / 'run.h5'}"]
    return [sys.executable, "-m", "mpifl", "run", str(ROOT / "jobs" / "quickstart.yaml"), *job]


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "library"), PAIRS, ids=lambda name: name.replace(" ", ""))
def test_one_run_of_all_ranks_or_exit_code_2(launcher: str, library: str, tmp_path: Path) -> None:
    program, file = LAUNCHERS[launcher], LIBRARIES[library]
    need(program, file)
    env = environment("launchers")
    env.pop("MPI4PY_LIBMPI", None)
    words = [program, "-n", "3", *program_of(tmp_path)]
    run = subprocess.run(words, env=env | of(file), cwd=tmp_path, text=True, capture_output=True, timeout=60)
    ours = [line for line in run.stderr.splitlines() if line.startswith("mpifl: ")]
    if (launcher, library) in WORKS:
        assert (run.returncode, ours) == (0, []), run.stderr
        with open_run(tmp_path / "run.h5") as file_:
            assert (file_.status, file_.attrs["ranks"]) == ("completed", 3)
        return
    assert run.returncode == 2, run.stderr
    assert len(ours) == 1 and "3 processes were started" in ours[0], run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.smoke
def test_every_process_runs_alone_where_mpi_is_switched_off(run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIFL_MPI", "0")
    assert run(2, *MPIFL, "--version", code=0).out.count("mpifl ") == 2
