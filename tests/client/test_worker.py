"""The worker: what it refuses and survives, what a checkpoint holds of its clients, and where their states are."""
# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from mpifl import ConfigError, RunFailed
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, Objective, State, Update
from mpifl.client import states
from mpifl.client.states import ClientStates
from mpifl.client.worker import Worker
from mpifl.signals import Interrupted, SignalRecorder
from mpifl.transport.client_end import ClientError
from tests.mpi.cases import SMALL, job
from tests.mpi.conftest import mpifl
from tests.mpi.files import differing
from tests.quadratic_runs import Quadratic
from tests.server.test_resume import ALL, kept, run
from tests.tiers import parameters

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


def worker(*clients: int) -> Worker:
    objectives = {i: Counting(np.full(3, 1.0 + i), np.full(3, float(i))) for i in clients}
    return Worker(Area(step_size=0.5, local_steps=3), X0, objectives)


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
SENDS = "client 0 sends "


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("vectors", "steps", "numbers", "says"),
    [
        ((X0,), 2**31, (), f"{SENDS}local_steps=2147483648, {STEPS}"),
        ((X0,), -5, (), f"{SENDS}local_steps=-5, {STEPS}"),
        ((X0,), 1.5, (), f"{SENDS}local_steps=1.5, {STEPS}"),
        ((X0,), "3", (), f"{SENDS}local_steps='3', {STEPS}"),
        ((), 1, (), f"{SENDS}0 vectors, fewer than min_vectors_up (1)"),
        ((X0, X0), 1, (), f"{SENDS}2 vectors, more than vectors_up (1)"),
        (([1.0, 2.0, 3.0],), 1, (), f"{SENDS}a list {PLACE}"),
        ((X0[0],), 1, (), f"{SENDS}float64 of shape (), not float64 of shape (3,)"),
        (X0, 1, (), f"{SENDS}vectors=ndarray, not a tuple of vectors: Update((y,), steps)"),
        ((X0,), 1, ("1.5",), f"{SENDS}numbers=('1.5',), not numbers of float64"),
        ((X0,), 1, (10**400,), f"{SENDS}numbers=(1000"),
        ((X0,), 1, 0.5, f"{SENDS}numbers=0.5, not numbers of float64"),
        ((X0,), 1, (0.5,) * 7, f"{SENDS}7 numbers, more than 6"),
        ((np.full(3, 1.5e308),), 1, (), "the update's norm overflows float64"),
        ((np.array([1.0, np.inf, 0.0]),), 1, (), "the update is not finite"),
        ((X0,), 1, (np.nan,), "the update is not finite"),
        ((2 * X0,), 1, (), "the update's norm 4.58258 is above faults.norm"),  # 2 sqrt(1 + 4 + 1/4)
    ],
)
def test_a_wrong_update_is_refused_and_the_state_restored(vectors: Any, steps: Any, numbers: Any, says: str) -> None:
    host, sent = given(Update(vectors, steps, numbers), norm=2.5)
    assert isinstance(sent, Update)
    assert sent.refused.startswith(says) and len(sent.refused) < 1200
    assert sent.vectors == sent.numbers == () and sent.local_steps == 0
    assert not host.failed_clients
    assert host.states[0] == State(k=0)


@pytest.mark.parametrize("steps", [0, 3, 3.0, np.int32(3), np.float32(3), 2**31 - 1])
def test_an_update_is_what_mpi_sends(steps: Any) -> None:
    """Its numbers are floats, and whole numbers are local steps."""
    _, sent = given(Update([X0], steps, (np.float64(0.5), 3, True)))  # type: ignore[arg-type]
    assert isinstance(sent, Update) and not sent.refused
    assert (sent.local_steps, type(sent.local_steps), type(sent.vectors)) == (int(steps), int, tuple)
    assert sent.numbers == (0.5, 3.0, 1.0) and {*map(type, sent.numbers)} == {float}


def test_a_method_may_declare_that_its_clients_may_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Given, "min_vectors_up", 0)
    _, sent = given(Update((), 2))
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
class InPlace(Area):
    """Changes the message at its first contact, or at the second what it sent at the first."""

    first: int = 0

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if message.round == self.first:
            (message.vectors[0] if self.first == 0 else client.sent)[:] = 0
        client.sent = message.vectors[0] + 1
        return Update((client.sent,), 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_client_cannot_change_a_message_or_what_it_has_sent(first: int) -> None:
    client = Worker(InPlace(first=first), X0, {0: Counting(np.ones(3), np.zeros(3))})
    answers = [client.train(0, Message((X0 + round,), round=round)) for round in range(2)]
    assert [isinstance(answer, ClientError) for answer in answers] == [first == 0, first == 1]
    refusal = answers[first]
    assert isinstance(refusal, ClientError) and refusal.text.endswith("ValueError: assignment destination is read-only")


def test_a_signal_is_no_failure_of_the_client_that_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Area, "train", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    host = worker(0)
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


def test_a_failed_client_is_saved_with_its_error_alone() -> None:
    """And a client that has not computed is not saved."""
    host, other = worker(0, 1, 2), worker(0, 1)
    trained(host, 2, 0)
    host.add_failed_client(1, "raised on rank 2")
    saved = host.snapshots()
    assert sorted(saved) == [1, 2]
    assert (saved[1].error, saved[1].state, saved[1].update) == ("raised on rank 2", None, None)
    assert other.restore(1, saved[1]) == (None, 0.0)
    assert other.train(1, message(0)) == ClientError("raised on rank 2")


def test_clients_that_are_added_keep_those_that_are_there() -> None:
    host = worker(0)
    before = trained(host, 0, 0)
    host.add_failed_client(3, "could not be hosted")
    host.add_clients({3: Counting(np.full(3, 4.0), np.full(3, 3.0))})
    assert [i for i in range(20) if i in host.states] == [0, 3]
    assert host.failed_clients == {}
    assert host.last_updates == {0: before}
    np.testing.assert_array_equal(trained(host, 3, 0).vectors[0], trained(worker(3), 3, 0).vectors[0])


# -- states at first contact, in memory or in a file -------------------------------------------------------------------
START = np.array([1.0, -2.0, 0.5], np.float32)


def first(i: int) -> State:
    return State(y=START, count=i)


@pytest.fixture(params=["memory", "file", "both"])
def kept_states(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClientStates:
    monkeypatch.setattr(states, "BLOCK_BYTES", 2 * START.nbytes)  # two vectors
    limit = {"memory": None, "file": 0.0, "both": 2.0 * START.nbytes}[request.param]
    return ClientStates(range(9), first, START, limit, str(tmp_path))


def test_states_are_those_stored_last_or_the_initial_ones(kept_states: ClientStates) -> None:
    """Values of any name, dtype, shape and type replace each other."""
    draw, stored = np.random.default_rng(0), dict[int, dict[str, Any]]()
    for k in range(200):
        y = draw.standard_normal(6).astype(np.float32)
        choices: list[dict[str, Any]] = [
            {"y": y[::2]}, {"y": y[:3].astype(np.float64)}, {"y": y[:3].reshape(1, 3)}, {"y": y[:3]}, {"y": y[:2]}, {},
            {"z": y[:3]}, {"y": y[:3], "z": y[3:]}, {"y": y[:3], "count": k}, {"weights": {1: 0.5}},
            {"y": y[:3].view(np.int32)}, {"y": np.float32(1.5)},
        ]  # fmt: skip
        i = int(draw.integers(9))
        stored[i] = choices[k % len(choices)]
        kept_states[i] = State(**stored[i])
        for j in range(9):
            expected = stored.get(j, vars(first(j)))
            for state in (kept_states[j], kept_states.copy_of(j)):
                assert list(vars(state)) == list(expected)
                for name, value in expected.items():
                    found = vars(state)[name]
                    assert type(found) is type(value) and getattr(found, "dtype", 0) == getattr(value, "dtype", 0)
                    np.testing.assert_equal(found, value)
    assert sorted(kept_states.changed()) == sorted(stored)


def test_a_copy_is_not_changed_when_its_client_is_stored_again(kept_states: ClientStates) -> None:
    kept_states[4] = State(y=START + 1)
    copy = kept_states.copy_of(4)
    kept_states[4] = State(y=START + 2)
    np.testing.assert_array_equal(copy.y, START + 1)
    np.testing.assert_array_equal(kept_states[4].y, START + 2)


def test_clients_that_leave_and_come(kept_states: ClientStates) -> None:
    kept_states[3] = State(y=START + 1)
    for i in (3, 5):
        kept_states.remove(i)
        assert i not in kept_states
        with pytest.raises(KeyError):
            kept_states[i]
    assert [i for i in range(20) if i in kept_states] == [0, 1, 2, 4, 6, 7, 8]
    with pytest.raises(KeyError):
        kept_states.copy_of(20)
    for i in (3, 20):
        kept_states[i] = State(y=START + i)
        assert i in kept_states
        np.testing.assert_array_equal(kept_states[i].y, START + i)
    assert {*kept_states.changed()} == {3, 20}


def test_a_client_that_has_not_computed_has_no_state() -> None:
    made: list[int] = []
    lazy = ClientStates(range(1_000_000), lambda i: made.append(i) or State(y=START), START)  # type: ignore[func-returns-value]
    assert 999_999 in lazy and 1_000_000 not in lazy and not made
    lazy[7] = lazy.copy_of(7)
    lazy.copy_of(7)
    assert made == [7] and [*lazy.changed()] == [7]


def test_a_failed_contact_leaves_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with objects: a client that raises, or whose update is refused, keeps the state that it had."""
    x0, message = np.ones(3), Message((np.zeros(3),), (0.5,))
    many = Worker(Area(), x0, {i: Quadratic(np.full(3, 1.0 + i), np.zeros(3)) for i in range(3)}, limit=0.0,
                  folder=str(tmp_path))  # fmt: skip
    many.train(1, message)
    y = many.states[1].y.copy()
    for bad in (Message((np.full(3, np.inf),), (0.5,)), Message((), ())):
        with np.errstate(all="ignore"):
            many.train(1, bad)
            many.train(2, bad)
        np.testing.assert_array_equal(many.states[1].y, y)
        np.testing.assert_array_equal(many.states[2].y, x0)


@pytest.mark.parametrize("limit", [None, 0.0])
def test_a_rule_may_move_a_vector_and_send_it(limit: float | None, tmp_path: Path) -> None:
    """Contact k stores k as `new` and what was `new` as `old`, and sends that: k - 1, also after contact k + 1."""

    class Shifts(Area):
        def init_client(self, x0: np.ndarray, i: int) -> State:
            return State(new=0 * x0, old=0 * x0)

        def train(self, state: State, message: Message, objective: object) -> Update:
            state.old, state.new = state.new, message.vectors[0]
            return Update((state.old,), 1)

    clients = Worker(Shifts(), np.ones(3), {0: Quadratic(np.ones(3), np.zeros(3))}, limit=limit, folder=str(tmp_path))
    sent = [clients.train(0, Message((np.full(3, float(k)),))) for k in range(1, 5)]
    assert [update.vectors[0].tolist() for update in sent if isinstance(update, Update)] == [[k] * 3 for k in range(4)]
    assert clients.states[0].new.tolist() == [4] * 3 and clients.states[0].old.tolist() == [3] * 3


def test_a_full_disk_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ClientStates(range(3), first, START, 0.0, str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunFailed, match=r"memory\.client_states: .* No space left on device"):
        table[1] = State(y=START)
    with pytest.raises(ConfigError, match="no file for the clients' states can be made there: No such file or dir"):
        ClientStates(range(3), first, START, 0.0, str(tmp_path / "missing"))


def test_an_initial_state_that_is_none_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Area, "init_client", lambda self, x0, i: State(y=x0) if i < 2 else None)
    with pytest.raises(ConfigError, match="lambda>: returned a NoneType; expected a State"):
        worker(0, 1, 2)


def test_a_refused_first_update_in_flight_is_saved() -> None:
    """Of a client that has stored no state yet."""
    host, sent = given(Update((), 1))
    assert isinstance(sent, Update) and sent.refused
    saved = host.snapshots()[0]
    other, _ = given(Update((X0,), 1))
    restored, _ = other.restore(0, saved)
    assert restored and restored.refused == sent.refused and other.states[0] == State(k=0)


def test_a_checkpoint_without_an_update_that_was_in_flight_is_refused(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    snapshots = Worker.snapshots
    monkeypatch.setattr(Worker, "snapshots", lambda *args: {i: s for i, s in snapshots(*args).items() if i != 3})
    run(tmp_path, "made", job({"name": "area"}, SMALL, checkpoint={"updates": 13}))
    says = "the update of client 3, which was in flight, is missing; expected a complete checkpoint"
    assert says in refused("resume", kept[0])


@pytest.mark.parametrize("name", parameters(ALL, ["apfl"]))
def test_runs_have_the_same_bits(name: str, tmp_path: Path, kept: list[Path]) -> None:
    """Of every kind of run: all states in a file, and resumed from checkpoints."""
    whole = run(tmp_path, "whole", {**ALL[name], "checkpoint": {}})
    made = run(tmp_path, "made", {**ALL[name], "memory": {"client_states": 0, "folder": str(tmp_path)}})
    assert not differing(whole, made, but=("events",))
    resumed = kept[len(kept) // 2]
    assert mpifl("resume", resumed) == 0
    assert not differing(whole, resumed, but=("events",))
    assert not [path for path in tmp_path.rglob("*") if "client-states" in path.name]


def test_states_are_beside_a_run_file_whose_folder_is_new(tmp_path: Path) -> None:
    file, output = tmp_path / "job.yaml", tmp_path / "new" / "folder" / "a.h5"
    file.write_text(json.dumps(job({"name": "scaffold", "cohort": 4, "local_steps": 2}, SMALL)))
    assert mpifl("run", file, "memory.client_states=0", f"output={output}", "name=a") == 0
    assert [*output.parent.iterdir()] == [output]


def test_a_killed_run_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import os, signal, numpy as np\n"
        "from mpifl.client.states import ClientStates; from mpifl.algorithms.base import State\n"
        f"table = ClientStates(range(4), lambda i: State(), np.zeros(5), 0.0, {str(tmp_path)!r})\n"
        "table[1] = State(y=np.ones(5)); assert table[1].y.sum() == 5; os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -9
    assert not list(tmp_path.iterdir())
