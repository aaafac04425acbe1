"""Vectors staged through host buffers: whatever ends when, each arrives whole and no buffer has two users at a time."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mpifl import memory
from mpifl.memory import HOST, Departure, Staged, cuda_aware, rare_full_collections
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
        self.empty.append(self.memory.arrival(count, D, DTYPE))

    @rule(k=st.integers(0, 9))
    def receive(self, k: int) -> None:
        if self.empty:
            arrival = self.empty.pop(k % len(self.empty))
            values = [self.new() for _ in arrival.buffers]
            for buffer, value in zip(arrival.buffers, values, strict=True):
                buffer[:] = value
            self.full.append((arrival, values))

    @rule(k=st.integers(0, 9))
    def load(self, k: int) -> None:
        if self.full:
            arrival, _ = self.full[k % len(self.full)]
            before = len(self.device.pending)
            arrival.load()
            self.loading += [(source, over) for _, source, over in self.device.pending[before:]]

    @rule(k=st.integers(0, 9))
    def compute(self, k: int) -> None:
        if self.full:
            self.load(k)
            arrival, values = self.full.pop(k % len(self.full))
            assert all(map(np.array_equal, arrival.get(), values))

    @rule(count=st.integers(1, 2))
    def reply(self, count: int) -> None:
        values = [self.new() for _ in range(count)]
        self.leaving.append((self.memory.departure([v.copy() for v in values], D, DTYPE), values))

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
        for departure, values in self.sending:
            assert all(map(np.array_equal, departure.buffers, values))

    @invariant()
    def no_buffer_has_two_users(self) -> None:
        self.loading = [(buffer, over) for buffer, over in self.loading if not over[0]]
        loading = [id(buffer) for buffer, _ in self.loading]
        waiting = [id(b) for arrival, _ in self.full if not arrival._loads for b in arrival.buffers]
        room = [id(b) for arrival in self.empty for b in arrival.buffers]
        out = [id(b) for departure, _ in self.leaving + self.sending for b in departure.buffers]
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


def test_buffers_are_used_again() -> None:
    """A thousand contacts one after another, of two vectors down and one up, take two pinned buffers."""
    device = Slow()
    staged = Staged(device)  # type: ignore[arg-type]
    buffers = set()
    for _ in range(1000):
        arrival = staged.arrival(2, D, DTYPE)
        arrival.load()
        arrival.load()
        assert len(device.pending) == 2, "one load, however often it is asked for"
        departure = staged.departure([arrival.get()[0]], D, DTYPE)
        buffers |= {id(b) for b in (*arrival.buffers, *departure.buffers)}
        assert not departure.ready()
        device.end(0)
        assert departure.ready()
        departure.release()
    assert len(buffers) == device.pinned == 2


def test_there_is_always_a_buffer() -> None:
    """Updates that wait for the server do not keep out the message that it waits to send; only ROOM stay pinned."""
    device = Slow()
    staged = Staged(device)  # type: ignore[arg-type]
    waiting = [staged.departure([np.full(D, k, DTYPE)], D, DTYPE) for k in range(3 * ROOM)]
    arrival = staged.arrival(1, D, DTYPE)
    assert len({id(b) for each in (*waiting, arrival) for b in each.buffers}) == 3 * ROOM + 1
    while device.pending:
        device.end(0)
    assert all(each.ready() and (each.buffers[0] == k).all() for k, each in enumerate(waiting))
    for each in waiting:
        each.release()
    again = [staged.departure([np.zeros(D, DTYPE)], D, DTYPE) for _ in range(ROOM)]
    assert {id(each.buffers[0]) for each in again} == {id(each.buffers[0]) for each in waiting[:ROOM]}


def test_a_vector_is_let_go_when_it_is_copied() -> None:
    device = Slow()
    v = np.ones(D, DTYPE)
    count = sys.getrefcount(v)
    departure = Staged(device).departure([v], D, DTYPE)  # type: ignore[arg-type]
    assert sys.getrefcount(v) > count
    device.end(0)
    assert departure.ready() and sys.getrefcount(v) == count


def test_host_memory_copies_nothing() -> None:
    v = np.ones(D, DTYPE)
    assert HOST.from_host(v) is v and HOST.to_host(v) is v
    departure = HOST.departure([v], D, DTYPE)
    assert departure.buffers[0] is v and departure.ready()
    arrival = HOST.arrival(2, D, DTYPE)
    assert all(a is b and a.shape == (D,) and a.dtype == DTYPE for a, b in zip(arrival.get(), arrival.buffers))
    assert Departure(()).ready()


# -- what MPI says of itself -------------------------------------------------------------------------------------------
OPEN_MPI, MPICH = "Open MPI v5.0.8, package", "MPICH Version:      4.3.2"
CRAY, MVAPICH = "MPI VERSION    : CRAY MPICH version 8.1.29.24", "MVAPICH2 Version      :\t2.3.7"


class Library:
    """What ctypes finds in a library: functions that are missing, or give these answers."""

    def __init__(self, **answers: int) -> None:
        if "open" in answers:
            self.MPIX_Query_cuda_support = lambda: answers["open"]
        if "mpich" in answers:
            cuda = answers["mpich"]
            self.MPIX_GPU_query_support = lambda kind, found: setattr(found._obj, "value", cuda if kind == 0 else 0)


@pytest.mark.parametrize(
    ("version", "library", "environment", "expected"),
    [
        (OPEN_MPI, {"open": 1}, {}, True), (OPEN_MPI, {"open": 0}, {}, False), (OPEN_MPI, {}, {}, False),
        (OPEN_MPI, {"open": 0}, {"MPICH_GPU_SUPPORT_ENABLED": "1", "MV2_USE_CUDA": "1"}, False),
        (OPEN_MPI, {"open": 0}, {"MPIFL_CUDA_AWARE": "1"}, True),
        (OPEN_MPI, {"open": 1}, {"MPIFL_CUDA_AWARE": "0"}, False),
        (OPEN_MPI, {"open": 1}, {"MPIFL_CUDA_AWARE": ""}, True),
        (MPICH, {"mpich": 1}, {}, True), (MPICH, {"mpich": 0}, {}, False),
        (CRAY, {"open": 1}, {}, False), (CRAY, {}, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        (CRAY, {"open": 1}, {"MPICH_GPU_SUPPORT_ENABLED": "0"}, False),
        (MVAPICH, {"open": 1}, {}, False), (MVAPICH, {}, {"MV2_USE_CUDA": "1"}, True),
    ],
)  # fmt: skip
def test_whether_mpi_takes_gpu_memory(
    monkeypatch: pytest.MonkeyPatch, version: str, library: dict[str, int], environment: dict[str, str], expected: bool
) -> None:
    for name in ("MPIFL_CUDA_AWARE", "MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Get_library_version=lambda: version))  # type: ignore[arg-type]
    monkeypatch.setattr(memory, "_loaded", lambda name: {f"/lib/{name}.so"})
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: Library(**library))
    assert cuda_aware() is expected


def test_without_mpi_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPIFL_CUDA_AWARE", raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(memory, "_loaded", lambda name: pytest.fail("asked"))
    assert cuda_aware() is False


def test_loaded_libraries() -> None:
    """Those of this process, by name; one that is not loaded, or is none, says no."""
    assert memory._loaded("no such library") == set()
    files = memory._loaded("libc.")
    assert files and all(os.path.basename(file).startswith("libc.") for file in files)
    assert not any(map(memory._reports_cuda, [*files, "/none/libmpi.so", __file__]))


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 12)
    yield (700, 10, 12)
    gc.set_threshold(*before)


def test_overlapping_runs_leave_the_garbage_collector_as_it_was(thresholds: tuple[int, int, int]) -> None:
    """Two runs in threads, of which the first to begin is the first to end."""
    first, second = rare_full_collections(), rare_full_collections()
    for step in (first.__enter__, second.__enter__):
        step()
        assert gc.get_threshold() == (700, 10, 1200)
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 1200)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == thresholds and gc.get_freeze_count() == 0


@pytest.mark.parametrize("old", [0, 2**31 - 1])
def test_any_threshold_of_the_garbage_collector(thresholds: tuple[int, int, int], old: int) -> None:
    gc.set_threshold(700, 10, old)
    with rare_full_collections():
        assert gc.get_threshold() == (700, 10, old)
    assert gc.get_threshold() == (700, 10, old)
