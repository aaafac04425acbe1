"""Waiting: how often a rank yields, and how long it sleeps between two polls."""

from __future__ import annotations

import itertools

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
        waiting.sleep()
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


def test_pauses_double_up_to_the_longest(pauses: list[float]) -> None:
    waiting = Backoff(1e-3)
    for _ in range(80):
        waiting.sleep()
    doubling = [1e-6 * 2**k for k in range(10)]
    assert pauses[:10] == pytest.approx(doubling)
    assert set(pauses[10:]) == {1e-3}


def test_a_patient_rank_polls_less_and_less_often(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "idle", 0.05)
    waiting = Backoff(4e-3, patient=True)
    for _ in range(400):
        waiting.sleep()
    assert pauses[-1] == 0.05
    for before, pause in zip(itertools.accumulate(pauses), pauses[1:]):
        assert pause <= 4e-3 + before / 16 * (1 + 1e-9)  # it finds a message late by a sixteenth of its wait
    count = len(pauses)
    waiting.reset()
    for _ in range(60):
        waiting.sleep()
    assert pauses[count] == 1e-6


def test_a_limit_shortens_a_pause(pauses: list[float]) -> None:
    waiting = Backoff(1e-3)
    for _ in range(70):
        waiting.sleep(5e-5)
    assert max(pauses) == 5e-5
