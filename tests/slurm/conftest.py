"""The mark of the tests in this folder."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: starts a SLURM cluster on this host; only with MPIFL_TEST_SLURM=1")
