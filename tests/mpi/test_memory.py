"""Under MPI: a run that its hosts have no room for, and clients' states on disk."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mpifl.runfile.checkpoint_folder import folder_of, sets
from tests.mpi.cases import AREA, DIGITS, LARGE, job
from tests.mpi.conftest import MPIFL, RUN, Start, in_one_job, one_line, run_all, until, write
from tests.mpi.files import attribute, differing

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]
STATES = {
    "area": job({**AREA, "trigger": {"every": 4}}, LARGE),
    "scaffold": job({"name": "scaffold", "cohort": 10, "local_steps": 2}, LARGE),
    "feddr": job({"name": "feddr", "cohort": 12, "local_steps": 2}, LARGE),
    "apfl": job({"name": "apfl", "cohort": 4, "adapt": "round"}, {**DIGITS, "test_split": 0.2}),
}


@pytest.mark.smoke
def test_a_run_without_room_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """1e8 clients with states of 4 MB: 400 TB; and states in a folder that is not there."""
    file = write(tmp_path, "huge", job(AREA, {"clients": 10**8, "model": {"name": "quadratic", "dim": 10**6}}))
    other = ["run", str(write(tmp_path, "a", job(AREA))), "memory.client_states=0", "memory.folder=missing"]
    huge, missing = in_one_job(tmp_path, 3, [["run", str(file), "output=huge.h5"], other])
    assert one_line(huge, "for 3 ranks (free on ") and "memory.check=false" in huge.err, huge
    text = "memory.folder=missing: rank 1: no file for the clients' states can be made there: No such file"
    assert one_line(missing, text), missing


def test_a_full_disk_is_one_line(run: Start, tmp_path: Path) -> None:
    code = (
        "import errno, os, sys\n"
        "def full(*args): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "os.posix_fallocate = full\n"
        "from mpifl.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    file = write(tmp_path, "a", job(AREA))
    done = run(2, "-c", code, "run", file, "memory.client_states=0", f"memory.folder={tmp_path}", code=3)
    (line,) = [line for line in done.err.splitlines() if line.startswith("mpifl: ")]
    assert "rank 1 on " in line and "no room for the states of clients" in line and "No space left" in line


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_states_on_disk_give_the_same_bits(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "states").mkdir()
    memory = run_all(tmp_path / "memory", 0, STATES, 60)
    disk = run_all(tmp_path / "disk", ranks, STATES, 60, "memory.client_states=0", "memory.folder=../states")
    wrong = {name: differing(memory / f"{name}.h5", disk / f"{name}.h5") for name in STATES}
    assert not {name: what for name, what in wrong.items() if what}
    assert not [*(tmp_path / "states").iterdir()]


@pytest.mark.long
def test_states_on_disk_are_resumed_on_other_ranks(start: Start, tmp_path: Path) -> None:
    case = job({**AREA, "trigger": {"every": 4}}, LARGE, stop={"updates": 1500}, evaluate={"updates": 500})
    whole, path = tmp_path / "whole.h5", tmp_path / "s.h5"
    start(0, *RUN, write(tmp_path, "whole", case), f"output={whole}").ends_well()
    on_disk = ["memory.client_states=0", f"memory.folder={tmp_path}"]
    saved = write(tmp_path, "s", {**case, "checkpoint": {"updates": 50}})
    command = start(3, *RUN, saved, f"output={path}", *on_disk)
    until(lambda: sets(folder_of(path)), command, "a checkpoint")
    os.kill(command.rank(1), signal.SIGTERM)
    command.ends_well(code=143)
    start(2, *MPIFL, "resume", path, *on_disk).ends_well()
    assert not differing(whole, path, but=("events",)) and attribute(path, "ranks") == 2
