"""How many ranks there are for each core of a host."""

from __future__ import annotations

import pytest

from mpifl.transport import cores

PARENT = 4_242
LAUNCHED = "OMPI_COMM_WORLD_LOCAL_SIZE"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in cores.LOCAL_SIZE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores.os, "getppid", lambda: PARENT)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "ranks", "own", "of_parent", "expected"),
    [
        (LAUNCHED, 5, {0, 1}, {0, 1}, 2.5),
        (LAUNCHED, 32, {7}, set(range(32)), 1.0),  # each bound to a core of its own
        ("MPI_LOCALNRANKS", 32, {7}, {7}, 32.0),
        ("MPI_LOCALNRANKS", 4, set(range(8)), {0}, 0.5),  # a parent that is bound, a rank that is not
        (None, "", {0, 1}, {0, 1}, 0.5),
        (LAUNCHED, "many", {0, 1}, {0, 1}, 0.5),
    ],
)
def test_ranks_per_core(
    host: pytest.MonkeyPatch,
    variable: str | None,
    ranks: int | str,
    own: set[int],
    of_parent: set[int],
    expected: float,
) -> None:
    if variable:
        host.setenv(variable, str(ranks))
    host.setattr(cores.os, "sched_getaffinity", {0: own, PARENT: of_parent}.__getitem__)
    assert cores.ranks_per_core() == expected


def test_a_parent_that_has_ended(host: pytest.MonkeyPatch) -> None:
    def affinity(process: int) -> set[int]:
        if process:
            raise ProcessLookupError(process)
        return {0, 1, 2, 3}

    host.setenv(LAUNCHED, "2")
    host.setattr(cores.os, "sched_getaffinity", affinity)
    assert cores.ranks_per_core() == 0.5
