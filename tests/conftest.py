"""Tests compute as ranks do: on one thread, since the last bits of a sum depend on their number."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is imported
    os.environ.setdefault(name, "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

import tests.tiers  # noqa: E402

settings.load_profile("short")  # --hypothesis-profile=full replaces it
assert tests.tiers


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start MPI run one after the other, in one process of pytest-xdist (--dist loadgroup)."""
    for item in items:
        if item.get_closest_marker("mpi") or item.get_closest_marker("slurm"):
            item.add_marker(pytest.mark.xdist_group("mpi"))
