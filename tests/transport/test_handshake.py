"""The resources of a rank: its share of the cores, and its number among the ranks with clients on its host."""

from __future__ import annotations

from mpifl.transport.handshake import Hello, own_hello, rank_resources


def hello(cores: list[int], host: str = "a", quota: float = 1e9) -> Hello:
    return Hello(host, 1, sum(1 << core for core in cores), quota)


def shares(*hellos: Hello) -> list[int]:
    return [resources.cores for resources in rank_resources(hellos)]


def test_cores_that_several_ranks_may_use_are_shared() -> None:
    assert shares(*[hello([*range(8)])] * 4) == [2, 2, 2, 2]
    assert shares(*[hello([0, 1])] * 5) == [1] * 5  # never none


def test_cores_of_a_rank_are_its_own() -> None:
    """Ranks that are bound, as launchers do on clusters."""
    assert shares(hello([0, 1]), hello([2, 3, 4, 5]), hello([6])) == [2, 4, 1]
    assert shares(hello([0, 1, 2, 3]), hello([2, 3])) == [3, 1]  # two of its own and half of two; half of two
    assert shares(*[hello([*range(4)], host) for host in "aabb"]) == [2, 2, 2, 2]  # hosts have cores of their own


def test_a_container_has_less_time_than_cores() -> None:
    assert shares(*[hello([*range(64)], quota=8.0)] * 2) == [4, 4]
    assert shares(hello([*range(64)], quota=0.5)) == [1]


def test_ranks_with_clients_are_numbered_on_their_host() -> None:
    """Rank 0 has none: the first GPU of its host is rank 1's."""
    assert [r.local for r in rank_resources([hello([0], host) for host in "aaabbab"])] == [0, 0, 1, 0, 1, 2, 2]

    hellos = [Hello("a", 1, 1, 1.0, before=3) for _ in range(3)]  # three ranks of other runs take GPUs 0 to 2
    assert [r.local for r in rank_resources(hellos)] == [3, 3, 4]


def test_a_rank_reports_what_the_system_says() -> None:
    import os

    own = own_hello()
    assert own.core_mask.bit_count() == len(os.sched_getaffinity(0))
    assert own.quota > 0 and own.host
