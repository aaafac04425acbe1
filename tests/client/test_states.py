"""Clients get their states at first contact, and keep them in memory or in a file: the same bits."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mpifl import ConfigError, RunFailed
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, Objective, State, Update
from mpifl.client import states
from mpifl.client.states import ClientStates
from mpifl.client.worker import Worker
from tests.mpi.cases import SMALL, job
from tests.mpi.files import differing
from tests.quadratic_runs import Quadratic
from tests.server.test_resume import ALL, kept, mpifl, run

__all__ = ["kept"]
X0 = np.array([1.0, -2.0, 0.5], np.float32)


def first(i: int) -> State:
    return State(y=X0, count=i)


@pytest.fixture(params=["memory", "file", "both"])
def kept_states(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClientStates:
    monkeypatch.setattr(states, "BLOCK_BYTES", 2 * X0.nbytes)  # two vectors
    limit = {"memory": None, "file": 0.0, "both": 2.0 * X0.nbytes}[request.param]
    return ClientStates(range(9), first, X0, limit, str(tmp_path))


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
    kept_states[4] = State(y=X0 + 1)
    copy = kept_states.copy_of(4)
    kept_states[4] = State(y=X0 + 2)
    np.testing.assert_array_equal(copy.y, X0 + 1)
    np.testing.assert_array_equal(kept_states[4].y, X0 + 2)


def test_clients_that_leave_and_come(kept_states: ClientStates) -> None:
    kept_states[3] = State(y=X0 + 1)
    for i in (3, 5):
        del kept_states[i]
        assert i not in kept_states
        with pytest.raises(KeyError):
            kept_states[i]
    assert list(kept_states) == [0, 1, 2, 4, 6, 7, 8] and len(kept_states) == 7
    with pytest.raises(KeyError):
        kept_states.copy_of(20)
    for i in (3, 20):
        kept_states[i] = State(y=X0 + i)
        assert i in kept_states
        np.testing.assert_array_equal(kept_states[i].y, X0 + i)
    assert {*kept_states.changed()} == {3, 20}


def test_a_client_that_has_not_computed_has_no_state() -> None:
    made: list[int] = []
    lazy = ClientStates(range(1_000_000), lambda i: made.append(i) or State(y=X0), X0)  # type: ignore[func-returns-value]
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
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    table = ClientStates(range(3), first, X0, 0.0, str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunFailed, match=r"memory\.client_states: .* No space left on device"):
        table[1] = State(y=X0)
    with pytest.raises(
        ConfigError, match=r"no file for the clients' states can be made there: No such file or directory"
    ):
        ClientStates(range(3), first, X0, 0.0, str(tmp_path / "missing"))


class SometimesNone(Area):
    def init_client(self, x0: np.ndarray, i: int) -> State:
        return State(y=x0) if i < 2 else cast(State, None)


def test_an_initial_state_that_is_none_is_refused_before_the_run() -> None:
    objectives = {i: Quadratic(np.ones(3), np.zeros(3)) for i in range(3)}
    with pytest.raises(ConfigError, match=r"SometimesNone\.init_client: returned a NoneType"):
        Worker(SometimesNone(), np.ones(3), objectives)


@dataclass(frozen=True)
class RefusedFirst(Area):
    """The first update of each client is not finite; its state is then the initial one."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        return update if message.round else Update((np.nan * update.vectors[0],), 1)


@pytest.mark.long
def test_refused_first_updates_in_flight_are_saved(tmp_path: Path, kept: list[Path]) -> None:
    """From each checkpoint a run goes on, also where clients are in flight that have stored no state yet."""
    case = job({"name": f"{__name__}:RefusedFirst"}, {**SMALL, "clients": 12}, faults={"refusals": 9})
    whole = run(tmp_path, "whole", {**case, "checkpoint": {}})
    run(tmp_path, "made", {**case, "checkpoint": {"updates": 3}})
    for saved in kept[:2]:
        assert mpifl("resume", saved, "--trust") == 0
        assert not differing(whole, saved, but=("events",))


def test_a_checkpoint_without_an_update_that_was_in_flight_is_refused(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshots = Worker.snapshots
    monkeypatch.setattr(Worker, "snapshots", lambda *args: {i: s for i, s in snapshots(*args).items() if i != 3})
    run(tmp_path, "made", job({"name": "area"}, SMALL, checkpoint={"updates": 13}))
    assert mpifl("resume", kept[0]) == 2
    assert (
        "the update of client 3, which was in flight, is missing; expected a complete checkpoint"
    ) in capsys.readouterr().err


SHORT = ["apfl"]


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in ALL]
)
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
