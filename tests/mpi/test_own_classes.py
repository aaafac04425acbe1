"""A job whose classes are all a user's own, under MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.test_own_classes import ALL
from tests.mpi.conftest import MPIFL, Start, write
from tests.mpi.files import differing

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


def test_all_families_on_three_ranks(run: Start, tmp_path: Path) -> None:
    """Every rank imports the classes, and computes what one process computes."""
    path = write(tmp_path, "own", ALL)
    alone = run(0, *MPIFL, "run", str(path), "output=alone.h5")
    ranks = run(3, *MPIFL, "run", str(path), "output=ranks.h5")
    assert (alone.code, ranks.code) == (0, 0), f"{alone} {ranks}"
    assert not differing(tmp_path / "alone.h5", tmp_path / "ranks.h5")
