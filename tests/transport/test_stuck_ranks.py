"""How rank 0 ends ranks that do not end by themselves, without any MPI."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from mpifl.transport.handshake import Handshake, Hello


def test_a_rank_that_ends_while_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone when its turn comes: the others on this host are ended all the same, those elsewhere are left."""
    hellos = [Hello("other" if rank == 3 else "own", 10 + rank, 1, 1.0) for rank in range(5)]
    killed = []

    def kill(process: int, number: int) -> None:
        killed.append((process, number))
        if process == 11:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(Handshake, "gather_hellos", lambda self: hellos)
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    comm: Any = None
    Handshake(comm).kill_stuck_ranks({1, 2, 3}, 0)
    assert sorted(killed) == [(11, signal.SIGKILL), (12, signal.SIGKILL)]
