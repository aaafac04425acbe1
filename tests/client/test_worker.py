"""The worker's snapshots: a client is restored on another rank from what a checkpoint holds of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, Objective, State, Update
from mpifl.client.worker import Worker
from mpifl.signals import Interrupted, SignalRecorder
from mpifl.transport.client_end import ClientError
from tests.quadratic_runs import Quadratic

X0 = np.array([1.0, -2.0, 0.5])


@dataclass
class Counting(Quadratic):
    """An objective with a state: the number of gradients it has computed."""

    own: dict[str, np.ndarray] = field(default_factory=lambda: {"calls": np.zeros(1)})

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        self.own["calls"] = self.own["calls"] + 1
        return super().gradient(x, rows)

    def save(self) -> dict[str, Any]:
        return dict(self.own)

    def load(self, saved: dict[str, Any]) -> None:
        self.own = dict(saved)


def worker(*clients: int, norm: float | None = None) -> Worker:
    algorithm = Area(step_size=0.5, local_steps=3)
    return Worker(algorithm, X0, {i: Counting(np.full(3, 1.0 + i), np.full(3, float(i))) for i in clients}, norm=norm)


def message(round: int) -> Message:
    return Message((X0 / 2,), (0.5,), version=round + 4, round=round)


def trained(host: Worker, i: int, round: int) -> Update:
    update = host.train(i, message(round))
    assert isinstance(update, Update)
    return update


def test_a_restored_client_continues_as_the_one_that_was_saved() -> None:
    first, second = worker(0, 2), worker(0, 2)
    sent = trained(first, 2, 0)
    first.held.add(2, time.perf_counter() + 100, sent)
    saved = first.snapshots()[2]
    assert saved.objective["calls"] == [3.0]  # local steps
    update, hold = second.restore(2, saved)
    assert 99 < hold < 100
    assert update is not None
    for got in (update, second.last_updates[2]):
        np.testing.assert_array_equal(got.vectors[0], sent.vectors[0])
        assert got._replace(vectors=()) == sent._replace(vectors=())
    for name, value in vars(first.states[2]).items():
        np.testing.assert_array_equal(getattr(second.states[2], name), value)
    one, other = trained(first, 2, 1), trained(second, 2, 1)
    np.testing.assert_array_equal(one.vectors[0], other.vectors[0])
    assert first.snapshots()[2].objective["calls"] == second.snapshots()[2].objective["calls"] == [6.0]


@dataclass(frozen=True)
class Numbered(Area):
    """An update with these numbers."""

    numbers: tuple[Any, ...] = ()

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return Update((message.vectors[0],), 1, self.numbers)


def test_the_numbers_of_an_update_are_what_mpi_sends() -> None:
    host = Worker(Numbered(numbers=(np.float64(0.5), 3, True)), X0, {0: Counting(np.ones(3), np.zeros(3))})
    numbers = trained(host, 0, 0).numbers
    assert numbers == (0.5, 3.0, 1.0) and {*map(type, numbers)} == {float}
    host = Worker(Numbered(numbers=(0.5,) * 7), X0, {0: Counting(np.ones(3), np.zeros(3))})
    assert trained(host, 0, 0).refused == "client 0 sends 7 numbers, more than 6"


@dataclass(frozen=True)
class Given(Area):
    """Sends an update as it is given, or raises it."""

    update: Any = None

    def init_client(self, x0: np.ndarray, i: int) -> State:
        return State(k=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        client.k += 1
        if isinstance(self.update, BaseException):
            raise self.update
        assert isinstance(self.update, Update)
        return self.update


def given(update: Any, x0: np.ndarray = X0, **more: Any) -> tuple[Worker, Update | ClientError]:
    host = Worker(Given(update=update), x0, {0: Counting(np.ones(3), np.zeros(3))}, **more)
    return host, host.train(0, message(0))


STEPS = "not an integer from 0 to 2^31 - 1"
PLACE = "in place of a vector, not float64 of shape (3,)"


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (Update((X0,), 2**70), f"local_steps=1180591620717411303424, {STEPS}"),
        (Update((X0,), 2**31), f"local_steps=2147483648, {STEPS}"),
        (Update((X0,), -5), f"local_steps=-5, {STEPS}"),
        (Update((X0,), 1.5), f"local_steps=1.5, {STEPS}"),  # type: ignore[arg-type]
        (Update((X0,), None), f"local_steps=None, {STEPS}"),  # type: ignore[arg-type]
        (Update((X0,), float("nan")), f"local_steps=nan, {STEPS}"),  # type: ignore[arg-type]
        (Update((X0,), "3"), f"local_steps='3', {STEPS}"),  # type: ignore[arg-type]
        (Update((), 1), "0 vectors, fewer than min_vectors_up (1)"),
        (Update((X0, X0), 1), "2 vectors, more than vectors_up (1)"),
        (Update(([1.0, 2.0, 3.0],), 1), f"a list {PLACE}"),
        (Update((None,), 1), f"a NoneType {PLACE}"),
        (Update((X0[0],), 1), "float64 of shape (), not float64 of shape (3,)"),
        (Update(X0, 1), "vectors=ndarray, not a tuple of vectors: Update((y,), steps)"),  # type: ignore[arg-type]
        (Update((X0,), 1, ("1.5",)), "numbers=('1.5',), not numbers of float64"),  # type: ignore[arg-type]
        (Update((X0,), 1, (None,)), "numbers=(None,), not numbers of float64"),  # type: ignore[arg-type]
        (Update((X0,), 1, (10**400,)), "numbers=(1000"),
        (Update((X0,), 1, 0.5), "numbers=0.5, not numbers of float64"),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_update_is_refused_and_the_state_restored(update: Update, says: str) -> None:
    host, sent = given(update)
    assert isinstance(sent, Update)
    assert sent.refused.startswith(f"client 0 sends {says}") and len(sent.refused) < 1200
    assert sent.vectors == sent.numbers == () and sent.local_steps == 0
    assert not host.failed_clients
    assert host.states[0] == State(k=0)


@pytest.mark.parametrize("steps", [0, 3, 3.0, np.int32(3), np.float32(3), 2**31 - 1])
def test_whole_numbers_are_local_steps(steps: Any) -> None:
    _, sent = given(Update([X0], steps))  # type: ignore[arg-type]
    assert isinstance(sent, Update) and not sent.refused
    assert (sent.local_steps, type(sent.local_steps), type(sent.vectors)) == (int(steps), int, tuple)


def test_a_method_may_declare_that_its_clients_may_send_nothing() -> None:
    @dataclass(frozen=True)
    class Lazy(Given):
        min_vectors_up = 0

    sent = Worker(Lazy(update=Update((), 2)), X0, {0: Counting(np.ones(3), np.zeros(3))}).train(0, message(0))
    assert isinstance(sent, Update) and (sent.refused, sent.norm, sent.local_steps) == ("", 0.0, 2)


class OwnError(BaseException):
    """Of a user, and no Exception."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, OwnError, SystemExit])
def test_whatever_a_client_raises_is_its_failure(error: type[BaseException]) -> None:
    host, answer = given(error())
    assert isinstance(answer, ClientError) and answer.text.endswith(error.__name__)
    assert host.failed_clients == {0: answer.text}
    assert host.states[0] == State(k=0)


@dataclass(frozen=True)
class Signalled(Area):
    """Gets a signal while it trains."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal came first")


def test_a_signal_is_no_failure_of_the_client_that_it_interrupts() -> None:
    host = Worker(Signalled(), X0, {0: Counting(np.ones(3), np.zeros(3))})
    with SignalRecorder(), pytest.raises(Interrupted):
        host.train(0, message(0))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with SignalRecorder() as signals, pytest.raises(KeyboardInterrupt) as caught:
            signals.record()
            signals.arrived(signal.SIGINT)
            signals._first -= 10  # a later signal has the action from before: Python's, a KeyboardInterrupt
            host.train(0, message(0))
    finally:
        signal.signal(signal.SIGINT, before)
    assert type(caught.value) is KeyboardInterrupt and not host.failed_clients


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_norm_whose_square_is_no_float32() -> None:
    """Three entries of 2^100 have the norm sqrt(3) 2^100; the norm of others has the bits of the plain sum."""
    x0 = np.zeros(3, np.float32)
    _, sent = given(Update((np.full(3, 2.0**100, np.float32),), 1), x0)
    assert isinstance(sent, Update) and not sent.refused
    assert sent.norm == pytest.approx(3**0.5 * 2.0**100, rel=1e-15)
    v = np.array([0.1, 0.7, -0.3], np.float32)
    _, sent = given(Update((v,), 1), x0)
    assert isinstance(sent, Update) and sent.norm == float(v @ v) ** 0.5
    _, sent = given(Update((np.full(3, 1e200),), 1))
    assert isinstance(sent, Update) and sent.norm == pytest.approx(3**0.5 * 1e200, rel=1e-15)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([1.5e308] * 3, "the update's norm overflows float64"),
        ([1.0, float("inf"), 0.0], "the update is not finite"),
        ([1.0, float("nan"), 0.0], "the update is not finite"),
    ],
)
def test_what_an_infinite_norm_is_called(entries: list[float], says: str) -> None:
    _, sent = given(Update((np.array(entries),), 1))
    assert isinstance(sent, Update) and sent.refused == says


def test_a_client_that_has_not_computed_is_in_no_snapshot() -> None:
    host = worker(0, 1)
    trained(host, 1, 0)
    assert list(host.snapshots()) == [1]


def test_a_failed_client_is_saved_with_its_error_alone() -> None:
    host, other = worker(0, 1), worker(0, 1)
    host.add_failed_client(1, "raised on rank 2")
    saved = host.snapshots()
    assert (saved[1].error, saved[1].state, saved[1].update) == ("raised on rank 2", None, None)
    assert other.restore(1, saved[1]) == (None, 0.0)
    assert other.train(1, message(0)) == ClientError("raised on rank 2")


def test_clients_that_are_added_keep_those_that_are_there() -> None:
    host = worker(0)
    before = trained(host, 0, 0)
    host.add_failed_client(3, "could not be hosted")
    host.add_clients({3: Counting(np.full(3, 4.0), np.full(3, 3.0))})
    assert sorted(host.states) == [0, 3]
    assert host.failed_clients == {}
    assert host.last_updates == {0: before}
    np.testing.assert_array_equal(trained(host, 3, 0).vectors[0], trained(worker(3), 3, 0).vectors[0])


def test_an_update_above_the_norm_is_refused_and_the_state_restored() -> None:
    host = worker(0, norm=1e-3)
    before = dict(vars(host.states[0]))
    update = trained(host, 0, 0)
    assert update.vectors == ()
    assert update.refused.endswith("is above faults.norm")
    assert float(update.refused.split()[3]) == pytest.approx(update.norm, rel=1e-5)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(host.states[0], name), value)
