"""What a rank has to compute with: its share of the cores, its number among its host's ranks with clients."""

from __future__ import annotations

from typing import Any

from mpifl.transport.handshake import myself, places


def word(cores: list[int], host: str = "a", quota: float = 1e9) -> dict[str, Any]:
    return {"host": host, "cores": hex(sum(1 << core for core in cores)), "quota": quota}


def shares(*words: dict[str, Any]) -> list[int]:
    return [place.cores for place in places(list(words))]


def test_cores_that_several_ranks_may_use_are_shared() -> None:
    assert shares(*[word([*range(8)])] * 4) == [2, 2, 2, 2]
    assert shares(*[word([0, 1])] * 5) == [1] * 5  # never none


def test_cores_of_a_rank_are_its_own() -> None:
    """Ranks that are bound, as launchers do on clusters."""
    assert shares(word([0, 1]), word([2, 3, 4, 5]), word([6])) == [2, 4, 1]
    assert shares(word([0, 1, 2, 3]), word([2, 3])) == [3, 1]  # two of its own and half of two; half of two
    assert shares(*[word([*range(4)], host) for host in "aabb"]) == [2, 2, 2, 2]  # hosts have cores of their own


def test_a_container_has_less_time_than_cores() -> None:
    assert shares(*[word([*range(64)], quota=8.0)] * 2) == [4, 4]
    assert shares(word([*range(64)], quota=0.5)) == [1]


def test_ranks_with_clients_are_numbered_on_their_host() -> None:
    """Rank 0 has none: the first GPU of its host is rank 1's."""
    assert [place.local for place in places([word([0], host) for host in "aaabbab"])] == [0, 0, 1, 0, 1, 2, 2]


def test_a_rank_tells_what_the_system_says() -> None:
    import os

    told = myself()
    assert bin(int(told["cores"], 16)).count("1") == len(os.sched_getaffinity(0))
    assert told["quota"] > 0 and told["host"]
