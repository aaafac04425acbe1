"""How rank 0 leaves ranks that have not ended, without any MPI."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from mpifl.server import launch
from mpifl.transport import handshake


def test_a_rank_that_ends_while_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone when its turn comes: the others on this host are ended all the same, those elsewhere are left."""
    words = [{"host": "here", "process": 10 + rank} for rank in range(5)]
    words[3]["host"] = "there"
    killed = []

    def kill(process: int, number: int) -> None:
        killed.append((process, number))
        if process == 11:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(handshake, "ranks", lambda comm: words)
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    comm: Any = None
    launch._leave(comm, {1, 2, 3}, 0)
    assert sorted(killed) == [(11, signal.SIGKILL), (12, signal.SIGKILL)]
