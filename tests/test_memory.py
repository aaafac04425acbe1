"""Vectors staged through host buffers: whatever ends when, each arrives whole and no buffer has two users at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mpifl import vector_memory as memory
from mpifl.vector_memory import HOST, OutgoingVectors, Staged
from tests.tiers import examples

D, DTYPE = 5, np.dtype(np.float32)
NONSENSE = -1.0
ROOM = 3  # pinned buffers


class Slow:
    """A device whose copies are made when `end` is called for them: until then it holds nonsense."""

    def __init__(self) -> None:
        self.pending: list[tuple[np.ndarray, np.ndarray, list[bool]]] = []  # to, source, whether it is over
        self.pinned = 0

    def from_host(self, v: np.ndarray) -> np.ndarray:
        return v.copy()

    def to_host(self, v: np.ndarray) -> np.ndarray:
        return v.copy()

    def wait(self, on_wait: Callable[[], None]) -> None:
        on_wait()

    def buffer(self, d: int, dtype: np.dtype, pinned: bool) -> np.ndarray:
        self.pinned += pinned
        return np.full(d, NONSENSE, dtype)

    def _copy(self, to: np.ndarray, source: np.ndarray) -> Callable[[], bool]:
        over = [False]
        self.pending.append((to, source, over))
        return lambda: over[0]

    def end(self, k: int) -> None:
        to, source, over = self.pending.pop(k % len(self.pending))
        to[:] = source
        over[0] = True

    def load(self, buffer: np.ndarray) -> tuple[np.ndarray, Callable[[], bool]]:
        v = np.full(buffer.size, NONSENSE, buffer.dtype)
        return v, self._copy(v, buffer)

    def use(self, v: np.ndarray, loaded: Callable[[], bool]) -> None:
        """Who computes with v waits for its load."""
        while not loaded():
            self.end(next(k for k, (to, _, _) in enumerate(self.pending) if to is v))

    def store(self, v: np.ndarray, buffer: np.ndarray) -> Callable[[], bool]:
        return self._copy(buffer, v)


class Traffic(RuleBasedStateMachine):
    """Messages and updates of a rank in any order, with copies that end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.device = Slow()
        self.memory = Staged(self.device)  # type: ignore[arg-type]
        self.count = 0.0
        self.empty: list[Any] = []  # arrivals that MPI has not filled
        self.full: list[tuple[Any, list[np.ndarray]]] = []  # filled, perhaps loaded; what they hold
        self.leaving: list[tuple[Any, list[np.ndarray]]] = []
        self.sending: list[tuple[Any, list[np.ndarray]]] = []
        self.loading: list[tuple[np.ndarray, list[bool]]] = []  # buffers that loads read, and whether they are over

    def new(self) -> np.ndarray:
        self.count += 1
        return np.full(D, self.count, DTYPE)

    @rule(count=st.integers(1, 2))
    def make_room(self, count: int) -> None:
        self.empty.append(self.memory.incoming(count, D, DTYPE))

    @rule(k=st.integers(0, 9))
    def receive(self, k: int) -> None:
        if self.empty:
            incoming = self.empty.pop(k % len(self.empty))
            values = [self.new() for _ in incoming.buffers]
            for buffer, value in zip(incoming.buffers, values, strict=True):
                buffer[:] = value
            self.full.append((incoming, values))

    @rule(k=st.integers(0, 9))
    def load(self, k: int) -> None:
        if self.full:
            incoming, _ = self.full[k % len(self.full)]
            before = len(self.device.pending)
            incoming.load()
            self.loading += [(source, over) for _, source, over in self.device.pending[before:]]

    @rule(k=st.integers(0, 9))
    def compute(self, k: int) -> None:
        if self.full:
            self.load(k)
            incoming, values = self.full.pop(k % len(self.full))
            assert all(map(np.array_equal, incoming.get(), values))

    @rule(count=st.integers(1, 2))
    def reply(self, count: int) -> None:
        values = [self.new() for _ in range(count)]
        self.leaving.append((self.memory.outgoing([v.copy() for v in values], D, DTYPE), values))

    @rule(k=st.integers(0, 9))
    def send(self, k: int) -> None:
        if self.leaving and self.leaving[k % len(self.leaving)][0].ready():
            self.sending.append(self.leaving.pop(k % len(self.leaving)))

    @rule(k=st.integers(0, 9))
    def sent(self, k: int) -> None:
        if self.sending:
            self.sending.pop(k % len(self.sending))[0].release()

    @rule(k=st.integers(0, 9))
    def end(self, k: int) -> None:
        if self.device.pending:
            self.device.end(k)

    @invariant()
    def what_mpi_reads_is_whole(self) -> None:
        for outgoing, values in self.sending:
            assert all(map(np.array_equal, outgoing.buffers, values))

    @invariant()
    def no_buffer_has_two_users(self) -> None:
        self.loading = [(buffer, over) for buffer, over in self.loading if not over[0]]
        loading = [id(buffer) for buffer, _ in self.loading]
        waiting = [id(b) for incoming, _ in self.full if not incoming._loads for b in incoming.buffers]
        room = [id(b) for incoming in self.empty for b in incoming.buffers]
        out = [id(b) for outgoing, _ in self.leaving + self.sending for b in outgoing.buffers]
        users = loading + waiting + room + out
        assert len(users) == len(set(users))

    @invariant()
    def pinned_memory_is_bounded(self) -> None:
        assert self.device.pinned <= ROOM


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PINNED_BYTES", ROOM * D * DTYPE.itemsize)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)


def test_there_is_always_a_buffer_and_pinned_ones_are_used_again() -> None:
    """Updates that wait for the server do not keep out the message that it waits to send; only ROOM stay pinned."""
    device = Slow()
    staged = Staged(device)  # type: ignore[arg-type]
    waiting = [staged.outgoing([np.full(D, k, DTYPE)], D, DTYPE) for k in range(3 * ROOM)]
    incoming = staged.incoming(1, D, DTYPE)
    assert len({id(b) for each in (*waiting, incoming) for b in each.buffers}) == 3 * ROOM + 1
    incoming.load()
    incoming.load()
    assert len(device.pending) == 3 * ROOM + 1, "one load, however often it is asked for"
    while device.pending:
        device.end(0)
    assert all(each.ready() and (each.buffers[0] == k).all() for k, each in enumerate(waiting))
    for each in waiting:
        each.release()
    again = [staged.outgoing([np.zeros(D, DTYPE)], D, DTYPE) for _ in range(ROOM)]
    assert {id(each.buffers[0]) for each in again} == {id(each.buffers[0]) for each in waiting[:ROOM]}


def test_a_vector_is_let_go_when_it_is_copied() -> None:
    device = Slow()
    v = np.ones(D, DTYPE)
    count = sys.getrefcount(v)
    outgoing = Staged(device).outgoing([v], D, DTYPE)  # type: ignore[arg-type]
    assert sys.getrefcount(v) > count
    device.end(0)
    assert outgoing.ready() and sys.getrefcount(v) == count


def test_host_memory_copies_nothing() -> None:
    v = np.ones(D, DTYPE)
    assert HOST.from_host(v) is v and HOST.to_host(v) is v
    outgoing = HOST.outgoing([v], D, DTYPE)
    assert outgoing.buffers[0] is v and outgoing.ready()
    incoming = HOST.incoming(2, D, DTYPE)
    assert all(a is b and a.shape == (D,) and a.dtype == DTYPE for a, b in zip(incoming.get(), incoming.buffers))
    assert OutgoingVectors(()).ready()
