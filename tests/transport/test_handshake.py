"""What ranks tell each other at the start: their resources, whom rank 0 waits for, how it ends ranks that are stuck."""

from __future__ import annotations

import logging
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from mpifl.errors import ConfigError
from mpifl.transport import handshake
from mpifl.transport.handshake import Handshake, Hello, own_hello, rank_resources


def hello(cores: list[int], host: str = "a", quota: float = 1e9) -> Hello:
    return Hello(host, 1, sum(1 << core for core in cores), quota)


BOUND = [hello([0, 1]), hello([2, 3, 4, 5]), hello([6])]  # as launchers do on clusters
OVERLAPPING = [hello([0, 1, 2, 3]), hello([2, 3])]


@pytest.mark.parametrize(
    ("hellos", "cores"),
    [
        ([hello([*range(8)])] * 4, [2, 2, 2, 2]),
        ([hello([0, 1])] * 5, [1] * 5),  # never none
        (BOUND, [2, 4, 1]),
        (OVERLAPPING, [3, 1]),  # two of its own and half of two; half of two
        ([hello([*range(4)], host) for host in "aabb"], [2, 2, 2, 2]),  # hosts have cores of their own
        ([hello([*range(64)], quota=8.0)] * 2, [4, 4]),  # a container has less time than cores
        ([hello([*range(64)], quota=0.5)], [1]),
    ],
)
def test_the_cores_of_a_rank_are_its_own_and_its_share_of_others(hellos: list[Hello], cores: list[int]) -> None:
    assert [resources.cores for resources in rank_resources(hellos)] == cores


def test_ranks_with_clients_are_numbered_on_their_host() -> None:
    """Rank 0 has none: the first GPU of its host is rank 1's."""
    assert [r.local for r in rank_resources([hello([0], host) for host in "aaabbab"])] == [0, 0, 1, 0, 1, 2, 2]
    hellos = [Hello("a", 1, 1, 1.0, before=3) for _ in range(3)]  # three ranks of other runs take GPUs 0 to 2
    assert [r.local for r in rank_resources(hellos)] == [3, 3, 4]


def test_a_rank_reports_what_the_system_says() -> None:
    own = own_hello()
    assert own.core_mask.bit_count() == len(os.sched_getaffinity(0)) and own.quota > 0 and own.host


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


class Comm:
    """Eight ranks; rank k answers k - 1/2 minutes after the start, rank 1 at once."""

    size = 8
    now = 0.0

    def monotonic(self) -> float:
        self.now += 2.0
        return self.now

    def Irecv(self, buffer: bytearray, rank: int, tag: int) -> Any:
        def test() -> bool:
            buffer[: len(b"{}")] = b"{}"
            return rank == 1 or self.now > 60 * rank - 30

        return SimpleNamespace(Test=test)


def test_ranks_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Every ten seconds in the first minute, then every minute: which ranks it waits for, to do what."""
    comm: Any = Comm()
    monkeypatch.setattr(handshake, "time", comm)
    monkeypatch.setattr(handshake, "Backoff", lambda: SimpleNamespace(pause=lambda: None))
    with caplog.at_level(logging.INFO, "mpifl"):
        assert Handshake(comm)._gather("start") == [{}] * 7
    many = "waiting for ranks 2, 3, 4, 5, 6 and 1 more of 8 to start"
    assert caplog.messages[:6] == [f"{many} ({k} s)" for k in (10, 20, 30, 40, 50)] + [f"{many} (1 min 0 s)"]
    assert caplog.messages[6:] == [
        "waiting for ranks 3, 4, 5, 6, 7 to start (2 min 0 s)", "waiting for ranks 4, 5, 6, 7 to start (3 min 0 s)",
        "waiting for ranks 5, 6, 7 to start (4 min 0 s)", "waiting for ranks 6, 7 to start (5 min 0 s)",
        "waiting for rank 7 to start (6 min 0 s)",
    ]  # fmt: skip


def test_a_hello_that_is_too_long_to_be_sent_refuses_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a package in a folder with a very long name."""
    sent: list[bytes] = []
    rank: Any = SimpleNamespace(rank=1, Isend=lambda text, to, tag: sent.append(text))
    monkeypatch.setattr(handshake, "wait", lambda *requests, longest=0.0: None)
    monkeypatch.setattr(handshake, "installation", lambda: "x" * 5000)
    handshake.send_hello(rank)

    def receive(buffer: bytearray, source: int, tag: int) -> Any:
        buffer[: len(sent[0])] = sent[0]
        return SimpleNamespace(Test=lambda: True)

    comm: Any = SimpleNamespace(size=2, Irecv=receive)
    with pytest.raises(ConfigError, match=r"^rank=1: its report has 5[0-9]{3} bytes, of which 4096 can be sent"):
        Handshake(comm).gather_hellos()
