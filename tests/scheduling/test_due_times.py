"""The times at which updates are due: the earliest first, of equal ones the client with the lowest number."""

from __future__ import annotations

import heapq
from math import inf

import numpy as np
import pytest

from mpifl.scheduling.due_times import AHEAD, SORTED, DueTimes


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


def test_the_clients_that_are_due_next_are_prefetched() -> None:
    """Once the times that were added first are used up, each client is named before its update is due, the next ones
    together with it; none is named twice."""
    n, draw = 300 * SORTED, np.random.default_rng(0)
    due, named = DueTimes(), list[list[int]]()
    due.prefetch_by(lambda clients: named.append(clients.tolist()))
    times = draw.exponential(1.0, n)
    for i, when in enumerate(times.tolist()):
        due.add(i, when)
    named.clear()
    order = np.argsort(times).tolist()
    for k, i in enumerate(order[: n // 10]):
        assert due.first() == (times[i], i)
        if k > n // 20:
            begin = order.index(named[-1][0])
            assert i in named[-1] and named[-1] == order[begin : begin + len(named[-1])]
        due.remove(i)
    assert max(map(len, named)) == AHEAD and len(named) > 10
    assert len({i for block in named for i in block}) == sum(map(len, named)) < n // 10 + AHEAD


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
