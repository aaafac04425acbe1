"""Checkpoints under MPI: when a client rank imports HDF5."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifl.storage.checkpoint_folder import folder_of, sets
from tests.mpi.cases import AREA, job
from tests.mpi.conftest import RUN, Start, write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

WATCH = """
import os, sys
from mpifl.algorithms.area import Area


class Watch(Area):
    def train(self, client, message, objective):
        with open(f"seen-{os.getpid()}.txt", "a") as file:
            print(*("h5py" in sys.modules, "mpifl.storage.checkpoint_hdf5" in sys.modules), file=file)
        return super().train(client, message, objective)
"""


@pytest.mark.parametrize("every", [pytest.param(None, marks=pytest.mark.long), 20])
def test_a_client_rank_imports_h5py_with_its_first_checkpoint(run: Start, tmp_path: Path, every: int | None) -> None:
    """Not earlier, and not at all without a checkpoint: importing it takes time and memory on every rank."""
    (tmp_path / "watched.py").write_text(WATCH)
    case = job({**AREA, "name": "watched:Watch"}, checkpoint={"updates": every}, stop={"updates": 600})
    done = run(3, *RUN, write(tmp_path, "watch", case), "output=watch.h5")
    assert done.code == 0, str(done)
    assert bool(sets(folder_of(tmp_path / "watch.h5"))) == bool(every)
    seen = [path.read_text().splitlines() for path in tmp_path.glob("seen-*.txt")]
    assert len(seen) == 2
    for lines in seen:
        assert len(lines) > 20 and lines[:3] == ["False False"] * 3
        assert lines == sorted(lines) and lines[-1] == ("True True" if every else "False False")
