"""Waiting: how often a rank yields, and how long it sleeps between two polls."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import pytest

from mpifl.transport import backoff
from mpifl.transport.backoff import Backoff


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps (s) that are asked for; a yield takes no time."""
    found: list[float] = []
    monkeypatch.setattr(backoff.time, "sleep", found.append)
    monkeypatch.setattr(backoff.os, "sched_yield", lambda: None)
    monkeypatch.setattr(Backoff, "crowded", False)
    return found


def yields_before_sleep(pauses: list[float]) -> int:
    waiting = Backoff(1e-3)
    for count in itertools.count():
        waiting.pause()
        if pauses:
            return count


def test_a_rank_yields_for_longer_while_nobody_takes_the_core(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 1e-6)
    monkeypatch.setattr(backoff.time, "perf_counter", lambda: next(clock))
    assert yields_before_sleep(pauses) == 50
    pauses.clear()
    slow = itertools.count(0.0, 1e-4)
    monkeypatch.setattr(backoff.time, "perf_counter", lambda: next(slow))
    assert yields_before_sleep(pauses) == 11  # the first one that is timed took 100 us


@pytest.mark.parametrize("growth", [1.25, 1.5])
def test_pauses_grow_up_to_the_longest(pauses: list[float], monkeypatch: pytest.MonkeyPatch, growth: float) -> None:
    monkeypatch.setattr(Backoff, "growth", growth)
    waiting = Backoff(1e-3)
    for _ in range(120):
        waiting.pause()
    growing = [pause for pause in pauses if pause < 1e-3]
    assert growing == pytest.approx([1e-6 * growth**k for k in range(len(growing))])
    assert len(growing) == math.ceil(math.log(1000) / math.log(growth))
    assert set(pauses[len(growing) :]) == {1e-3}
    for before, pause in zip(itertools.accumulate(growing), growing[1:]):
        assert pause <= 1e-6 + (growth - 1) * before * (1 + 1e-9)  # of the wait so far


def test_pauses_are_shorter_where_each_rank_has_a_core() -> None:
    program = "from mpifl.transport.backoff import Backoff as B; print(B.growth, B.longest, B.crowded)"
    cores = len(os.sched_getaffinity(0))
    for ranks, expected in (
        (cores, "1.25 0.00025 False"),
        (4 * cores, "1.5 0.001 False"),
        (32 * cores, "1.5 0.002 True"),
    ):
        environment = os.environ | {"OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks)}
        out = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert out.stdout.strip() == expected


def test_a_patient_rank_polls_less_and_less_often(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "idle", 0.05)
    waiting = Backoff(4e-3, patient=True)
    for _ in range(400):
        waiting.pause()
    assert pauses[-1] == 0.05
    for before, pause in zip(itertools.accumulate(pauses), pauses[1:]):
        assert pause <= 4e-3 + before / 16 * (1 + 1e-9)  # it finds a message late by a sixteenth of its wait
    count = len(pauses)
    waiting.reset()
    for _ in range(60):
        waiting.pause()
    assert pauses[count] == 1e-6


def test_a_limit_shortens_a_pause(pauses: list[float]) -> None:
    waiting = Backoff(1e-3)
    for _ in range(70):
        waiting.pause(5e-5)
    assert max(pauses) == 5e-5
