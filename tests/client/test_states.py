"""States of many clients in tables, in memory and in a file, against states that are objects: the same bits."""

from __future__ import annotations

import copy
import errno
import os
import subprocess
import sys
import tracemalloc
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mpifl import ConfigError, RunFailed
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, Objective, State, Update
from mpifl.client import states, worker
from mpifl.client.states import StateTable
from mpifl.client.worker import Worker
from mpifl.host_memory import resident_bytes
from mpifl.problems import on_use
from mpifl.transport.base import ClientError
from tests.mpi.cases import SMALL, job
from tests.mpi.files import differing
from tests.quadratic_runs import Quadratic
from tests.server.test_resume import ALL, kept, mpifl, run
from tests.tiers import parameters

__all__ = ["kept"]
X0 = np.array([1.0, -2.0, 0.5], np.float32)


def first(i: int) -> State:
    return State(y=X0, count=i)


@pytest.fixture(params=["memory", "file", "both"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    monkeypatch.setattr(states, "BLOCK_BYTES", 2 * X0.nbytes)  # two clients
    limit = {"memory": None, "file": 0.0, "both": 2.0 * X0.nbytes}[request.param]
    return StateTable(range(9), first, X0, limit, None if limit is None else str(tmp_path))


def test_a_table_holds_what_was_stored(table: StateTable) -> None:
    stored: dict[int, dict[str, Any]] = {}
    for k, i in enumerate([7, 2, 0, 7, 5, 8, 2]):
        value: dict[str, Any] = {"y": (X0 * k).copy(), "count": k}
        if k % 2:
            value |= {"z": X0 + k, "pair": np.arange(2.0), "weights": {1: 0.5}}
        stored[i] = value
        table[i] = State(**value)
        for j in range(9):
            expected = stored.get(j, vars(first(j)))
            assert list(vars(table[j])) == sorted(expected, key=list(vars(table[j])).index)
            for name, each in expected.items():
                np.testing.assert_equal(getattr(table[j], name), each)
    assert sorted(table.changed()) == sorted(stored)
    assert list(table) == list(range(9)) and len(table) == 9


def test_states_of_any_layout_replace_each_other(table: StateTable) -> None:
    """The usual one, and others in its place: another name, dtype, shape or type, more or fewer values, strided."""
    draw, stored, i = np.random.default_rng(0), dict[int, dict[str, Any]](), 0
    for k in range(1, 400):
        y = draw.standard_normal(6).astype(np.float32)
        others: list[dict[str, Any]] = [
            {"y": y[::2]}, {"y": y[:3].astype(np.float64)}, {"y": y[:3].reshape(1, 3)}, {"y": y}, {"y": y[:2]}, {},
            {"z": y[:3]}, {"y": y[:3], "z": y[3:]}, {"y": y[:3], "count": k}, {"count": k}, {"y": array("f", y[:3])},
            {"y": y[:3].astype(">f4")}, {"y": y[:3].view(np.int32)}, {"y": np.float32(1.5)},
        ]  # fmt: skip
        i = int(draw.integers(9)) if k % 4 == 2 else i
        value = {"y": y[:3]} if k % 4 else others[k // 4 % len(others)]  # which finds all others in the usual layout
        table[i], stored[i] = State(**value), {name: copy.copy(v) for name, v in value.items()}
        for j, expected in stored.items():
            state = table[j] if k % 2 else table.copy_of(j)
            assert state is not None and vars(state).keys() == expected.keys()
            for name, v in expected.items():
                found = vars(state)[name]
                assert type(found) is type(v) and getattr(found, "dtype", 0) == getattr(v, "dtype", 0)
                np.testing.assert_array_equal(found, v, strict=True)


def test_clients_that_leave_and_come(table: StateTable) -> None:
    del table[3]
    assert 3 not in table and table.get(3) is None and len(table) == 8
    with pytest.raises(KeyError):
        table[3]
    table[20] = State(y=X0 + 1)
    table[3] = State(y=X0 + 2)
    assert len(table) == 10 and {3, 20} <= set(table)
    np.testing.assert_array_equal(table[20].y, X0 + 1)
    np.testing.assert_array_equal(table[3].y, X0 + 2)


def test_a_client_that_has_not_computed_has_no_vector() -> None:
    """A table of 200,000 clients takes 4 bytes of each; the first that computes a block, which fills page by page."""
    n, d = 200_000, 1000
    x0 = np.zeros(d)
    tracemalloc.start()
    try:
        table = StateTable(range(n), lambda i: State(y=x0), x0)
        assert tracemalloc.get_traced_memory()[0] < 4 * n + 10_000
        before = resident_bytes()
        for i in range(100):
            table[1000 * i] = State(y=x0 + i)
        assert len(table) == n and table[99_000].y[0] == 99
        assert tracemalloc.get_traced_memory()[0] < states.BLOCK_BYTES + 4 * n + 100_000
        assert resident_bytes() - before < 100 * 8 * d + (8 << 20)
    finally:
        tracemalloc.stop()


def test_a_failed_contact_leaves_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with objects: a client that raises, or whose update is refused, keeps the state that it had."""
    x0, message = np.ones(3), Message((np.zeros(3),), (0.5,))
    many = Worker(Area(), x0, {i: Quadratic(np.full(3, 1.0 + i), np.zeros(3)) for i in range(3)}, limit=0.0,
                  folder=str(tmp_path))  # fmt: skip
    assert isinstance(many.states, StateTable)
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
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    table = StateTable(range(3), first, X0, 0.0, str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunFailed, match=r"memory\.client_states: .* No space left on device"):
        table[1] = State(y=X0)
    with pytest.raises(ConfigError, match=r"memory\.folder=.*/missing: a folder in which a file can be made \(No such"):
        StateTable(range(3), first, X0, 0.0, str(tmp_path / "missing"))


class SometimesNone(Area):
    def init_client(self, x0: np.ndarray, i: int) -> State:
        return State(y=x0) if i < 2 else cast(State, None)


def test_an_initial_state_that_is_none_fails_its_client(tmp_path: Path) -> None:
    """Where states are made when clients compute first; others are made, and refused, before the run."""
    objectives = {i: Quadratic(np.ones(3), np.zeros(3)) for i in range(3)}
    host = Worker(SometimesNone(), np.ones(3), objectives, limit=0.0, folder=str(tmp_path))
    assert isinstance(host.train(1, Message((np.zeros(3),), (0.5,))), Update)
    error = host.train(2, Message((np.zeros(3),), (0.5,)))
    assert isinstance(error, ClientError)
    assert error.text.endswith("SometimesNone.init_client: returned a NoneType")
    assert host.train(2, Message((np.zeros(3),), (0.5,))) == error
    saved = host.snapshots({})
    assert saved[2].state is None and saved[2].error == error.text and saved[1].state is not None


@dataclass(frozen=True)
class RefusedFirst(Area):
    """The first update of each client is not finite; its state is then the initial one."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        return update if message.round else Update((np.nan * update.vectors[0],), 1)


@pytest.mark.parametrize("few", [0, 100], ids=["tables", "objects"])
def test_refused_first_updates_in_flight_are_saved(
    few: int, tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From each checkpoint a run goes on, also where clients are in flight that have stored no state yet."""
    monkeypatch.setattr(on_use, "MAX_CLIENTS_AS_OBJECTS", few)
    monkeypatch.setattr(worker, "MAX_CLIENTS_AS_OBJECTS", few)
    case = job({"name": f"{__name__}:RefusedFirst"}, {**SMALL, "clients": 12}, faults={"refusals": 9})
    whole = run(tmp_path, "whole", {**case, "checkpoint": {}})
    run(tmp_path, "made", {**case, "checkpoint": {"updates": 3}})
    for saved in kept[:4]:
        assert mpifl("resume", saved, "--trust") == 0
        assert not differing(whole, saved, but=("events",))


def test_a_checkpoint_without_an_update_that_was_in_flight_is_refused(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshots = Worker.snapshots
    monkeypatch.setattr(Worker, "snapshots", lambda *args: {i: s for i, s in snapshots(*args).items() if i != 3})
    run(tmp_path, "made", job({"name": "area"}, SMALL, checkpoint={"updates": 13}))
    assert mpifl("resume", kept[0]) == 2
    assert "one with the update of client 3, which was in flight" in capsys.readouterr().err


@pytest.mark.parametrize("name", parameters(ALL, ["apfl"]))
def test_runs_have_the_same_bits(
    name: str, tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Of every kind of run: all states in a file, objectives built when they are used, and resumed from checkpoints."""
    whole = run(tmp_path, "whole", {**ALL[name], "checkpoint": {}})
    monkeypatch.setattr(on_use, "MAX_CLIENTS_AS_OBJECTS", 0)
    monkeypatch.setattr(worker, "MAX_CLIENTS_AS_OBJECTS", 0)
    if not ALL[name]["problem"].get("torch"):
        in_memory = run(tmp_path, "in-memory", {**ALL[name], "checkpoint": {}})
        assert not differing(whole, in_memory, but=("events",))
    made = run(tmp_path, "made", {**ALL[name], "memory": {"client_states": 0, "folder": str(tmp_path)}})
    assert not differing(whole, made, but=("events",))
    resumed = kept[len(kept) // 2]
    assert mpifl("resume", resumed) == 0
    assert not differing(whole, resumed, but=("events",))
    assert not [path for path in tmp_path.rglob("*") if "client-states" in path.name]


def test_a_killed_run_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import os, signal, numpy as np\n"
        "from mpifl.client.states import StateTable; from mpifl.algorithms.base import State\n"
        f"table = StateTable(range(4), lambda i: State(), np.zeros(5), 0.0, {str(tmp_path)!r})\n"
        "table[1] = State(y=np.ones(5)); assert table[1].y.sum() == 5; os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -9
    assert not list(tmp_path.iterdir())
