"""Waiting: how often a rank yields, and how long it sleeps between two polls."""

from __future__ import annotations

import pytest

from mpifl.transport import backoff
from mpifl.transport.backoff import Backoff


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps (s) that are asked for, and 0.0 for each yield."""
    found: list[float] = []
    monkeypatch.setattr(backoff.time, "sleep", found.append)
    monkeypatch.setattr(backoff.os, "sched_yield", lambda: found.append(0.0))
    return found


def test_ten_yields_then_sleeps_that_double_up_to_the_longest(waits: list[float]) -> None:
    waiting = Backoff(1e-4)
    for _ in range(20):
        waiting.pause()
    assert waits == pytest.approx([0.0] * 10 + [1e-6 * 2**k for k in range(7)] + [1e-4] * 3)
    waiting.reset()
    waiting.pause()
    assert waits[-1] == 0.0


def test_a_limit_shortens_a_sleep_and_is_never_negative(waits: list[float]) -> None:
    waiting = Backoff()
    for _ in range(30):
        waiting.pause(5e-5)
    waiting.pause(-1.0)
    assert max(waits) == 5e-5 and waits[-1] == 0.0


def test_a_rank_without_work_notices_a_message_late_by_an_eighth_of_its_wait(waits: list[float]) -> None:
    waiting = Backoff(0.02)
    for _ in range(100):
        waiting.pause()
    assert max(waits) == waits[-1] == 0.02
    for k, pause in enumerate(waits):
        assert pause <= 1.1e-3 + sum(waits[:k]) / 8
