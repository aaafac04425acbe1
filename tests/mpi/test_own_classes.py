"""A job whose classes are all a user's own, under MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifl import open_run
from tests.config.test_own_classes import ALL
from tests.mpi.conftest import MPIFL, Start, write
from tests.mpi.files import differing

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


def test_all_families_on_three_ranks(run: Start, tmp_path: Path) -> None:
    """Every rank imports the classes, and computes what one process computes."""
    path = write(tmp_path, "own", ALL)
    run(0, *MPIFL, "run", path, "output=alone.h5", code=0)
    run(3, *MPIFL, "run", path, "output=ranks.h5", code=0)
    assert not differing(tmp_path / "alone.h5", tmp_path / "ranks.h5")


@pytest.mark.parametrize("mode", ["real", "virtual"])
def test_updates_without_vectors(run: Start, tmp_path: Path, mode: str) -> None:
    """Of a model too large for a frame: its vectors, if any, follow in messages of their own."""
    job = {
        "seed": 1, "problem": {"model": {"name": "quadratic", "dim": 20_000}, "clients": 3},
        "algorithm": {"name": "tests.mpi.own:Silent", "step_size": 0.1},
        "clock": {"mode": mode, "delay": {"name": "exponential", "rate": 1000}},
        "stop": {"updates": 40}, "evaluate": {"updates": 40},
    }  # fmt: skip
    path = write(tmp_path, "silent", job)
    run(3, *MPIFL, "run", path, "output=ranks.h5", code=0)
    with open_run(tmp_path / "ranks.h5") as file:
        sizes = set(file.updates.bytes.tolist())
    assert sizes == {128, 128 + 4 * 20_000}
    if mode == "virtual":
        run(0, *MPIFL, "run", path, "output=alone.h5", code=0)
        assert not differing(tmp_path / "alone.h5", tmp_path / "ranks.h5")
