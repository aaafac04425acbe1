"""Under MPI: a run that its hosts have no room for, and clients' states on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.cases import AREA, DIGITS, LARGE, job
from tests.mpi.conftest import Start, all_refused, run_all, succeed, write
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
    text = "memory.folder=missing: rank 1: no file for the clients' states can be made there: No such file"
    all_refused(tmp_path, 3, [(["run", str(file), "output=huge.h5"], "for 3 ranks (free on "), (other, text)])


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
    """Also where a run is resumed on another number of ranks."""
    (tmp_path / "states").mkdir()
    memory = run_all(tmp_path / "memory", 0, STATES, 60)
    on_disk = ["memory.client_states=0", "memory.folder=../states"]
    half = {name: {**case, "stop": {"updates": 30}, "checkpoint": {"end": True}} for name, case in STATES.items()}
    disk = run_all(tmp_path / "disk", ranks, STATES | {f"{name}-2": case for name, case in half.items()}, 60, *on_disk)
    succeed(disk, 5 - ranks, [["resume", f"{name}-2.h5", "stop.updates=60", *on_disk] for name in STATES], 60)
    for name in STATES:
        assert not differing(memory / f"{name}.h5", disk / f"{name}.h5")
        assert not differing(memory / f"{name}.h5", disk / f"{name}-2.h5", but=("events",))
        assert attribute(disk / f"{name}-2.h5", "ranks") == 5 - ranks
    assert not [*(tmp_path / "states").iterdir()]
