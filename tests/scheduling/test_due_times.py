"""The times at which updates are due: the earliest first, of equal ones the client with the lowest number."""

from __future__ import annotations

import heapq
from math import inf

import numpy as np
import pytest

from mpifl.scheduling.due_times import SORTED, DueTimes


@pytest.mark.parametrize("clients", [1, 7, 2 * SORTED, 2 * SORTED + 1, 20 * SORTED, 300 * SORTED])
@pytest.mark.parametrize("values", [4, 10**9], ids=["many equal", "all different"])
def test_the_order_is_that_of_a_heap(clients: int, values: int) -> None:
    draw = np.random.default_rng(clients)
    due, heap = DueTimes(), list[tuple[float, int]]()
    for i in range(clients):
        when = float(draw.integers(values))
        due.add(i, when)
        heapq.heappush(heap, (when, i))
    assert len(due) == clients and sorted(due) == sorted(heap)
    for _ in range(2000):
        when, i = due.first()
        assert (when, i) == heapq.heappop(heap)
        due.remove(i)
        if draw.random() < 0.95:
            when += float(draw.integers(values))
            due.add(i, when)
            heapq.heappush(heap, (when, i))
        if not heap:
            break
    assert sorted(due) == sorted(heap) and len(due) == len(heap)


@pytest.mark.parametrize("clients", [5, 3 * SORTED, 300 * SORTED])
def test_the_clients_whose_updates_are_due_next(clients: int) -> None:
    """A client is named when its update is due; nine in ten of those named are among the twice as many due next."""
    most, draw = 16, np.random.default_rng(0)
    due, times = DueTimes(), dict(enumerate(draw.exponential(1.0, clients).tolist()))
    for i, when in times.items():
        due.add(i, when)
    named_in_time, early, count = 0, 0, 0
    for _ in range(300):
        when, i = due.first()
        named = due.next_clients(most)
        assert len(named) == len(set(named)) <= most and set(named) <= set(times)
        named_in_time += i in named
        soon = set(heapq.nsmallest(2 * most, times, key=times.__getitem__))
        early += len(soon & set(named))
        count += len(named)
        due.remove(i)
        times[i] = when + float(draw.exponential(1.0))
        due.add(i, times[i])
    assert named_in_time == 300 and early > 0.9 * count > 0 and due.next_clients(0) == []


def test_there_may_be_none() -> None:
    due = DueTimes()
    assert due.first() == (inf, -1) and not list(due)
    due.add(3, 1.0)
    due.remove(3)
    due.remove(3)
    due.remove(10**6)
    assert due.first() == (inf, -1) and not len(due)


def test_never_comes_last() -> None:
    due = DueTimes()
    for i in (5, 2, 9):
        due.add(i, inf)
    due.add(7, 3.0)
    assert due.first() == (3.0, 7)
    due.remove(7)
    assert due.first() == (inf, 2) and len(due) == 3
    assert sorted(due) == [(inf, 2), (inf, 5), (inf, 9)]
    due.remove(2)
    assert due.first() == (inf, 5)
