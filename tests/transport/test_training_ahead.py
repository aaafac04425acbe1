"""Clients of the server's process that compute before their updates are asked for: how many, and that nothing else
of a run changes by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.client.worker import Worker
from mpifl.objective import Objective
from mpifl.transport import in_process
from mpifl.transport.in_process import InProcessTransport
from tests.quadratic_runs import Quadratic

N = 6


class Failing(Area):
    """AREA, of which client 2 fails at its contact 3, and refuses to send an update at its contact 1."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        if objective.i == 2 and message.round == 3:  # type: ignore[attr-defined]
            raise ValueError("no more data")
        if objective.i == 2 and message.round == 1:  # type: ignore[attr-defined]
            return Update((np.full_like(update.vectors[0], np.nan),), 1)
        return update


def transport(d: int) -> tuple[InProcessTransport, list[int]]:
    """A transport to N clients that have been sent a message, and the clients that compute, in that order."""
    rules, order = Area(), list[int]()
    worker = Worker(rules, np.zeros(d), {i: Quadratic(np.ones(d), np.full(d, float(i))) for i in range(N)})
    train: Callable[..., Any] = worker.train

    def counted(i: int, message: Message) -> Any:
        order.append(i)
        return train(i, message)

    worker.train = counted  # type: ignore[method-assign]
    found = InProcessTransport(worker, N)
    found.next_clients = lambda most: [3, 0, 5, 3, 1][:most]
    for i in range(N):
        found.send(i, Message((np.zeros(d),), (0.5,)), 0.0)
    return found, order


def test_the_next_clients_compute_with_the_first() -> None:
    """Once each, and their updates are those of their own: 0.5 * c_i / n, a step of AREA from 0."""
    both_ends, order = transport(2)
    for i in (3, 0, 1, 5, 4):
        update = both_ends.receive_from(i)
        assert update
        np.testing.assert_allclose(update.vectors[0], np.full(2, 0.5 * i * Quadratic.share))
    assert order == [3, 0, 5, 1, 4]
    assert [len(both_ends.waiting()), both_ends.shut_down(0)] == [1, 1]


@pytest.mark.parametrize(
    ("bound", "value", "d", "expected"),
    [
        ("AHEAD", 2, 2, [3, 0]),
        ("AHEAD_SECONDS", -1.0, 2, [3]),
        ("AHEAD_BYTES", 15, 2, [3]),
        ("AHEAD_BYTES", 16, 2, [3, 0, 5, 1]),
        ("AHEAD", 64, 513, [3]),
    ],
)
def test_bounds(bound: str, value: float, d: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the number, of the time and of the bytes of a float64 vector."""
    monkeypatch.setattr(in_process, bound, value)
    both_ends, order = transport(d)
    assert both_ends.receive_from(3)
    assert order == expected


def test_what_is_in_flight_ahead_of_its_time() -> None:
    """A cancelled update is dropped, and one that the run does not come to is counted as dropped."""
    both_ends, order = transport(2)
    both_ends.receive_from(3)
    both_ends.cancel(0)
    assert both_ends.receive_from(0) is None and order == [3, 0, 5, 1]
    both_ends.send(0, Message((np.zeros(2),), (0.5,), round=1), 0.0)
    assert both_ends.receive_from(0) and order[4:] == [0]
    assert both_ends.shut_down(0) == 4  # 1, 2, 4 and 5


@pytest.mark.parametrize("lost", ["freeze", "stop"])
def test_a_run_has_the_same_rows(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of updates, aggregations and events: what clients fail or refuse counts when their updates are due."""

    def run(output: str) -> list[Any]:
        job = {
            "name": "ahead", "seed": 3, "problem": {"model": {"name": "quadratic", "dim": 3}, "clients": 8},
            "algorithm": {"name": f"{__name__}:Failing", "step_size": 0.1, "trigger": {"every": 2}},
            "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 1.0}}, "stop": {"updates": 100},
            "faults": {"lost": lost}, "checkpoint": {"updates": 30}, "evaluate": {"updates": 20}, "log_interval": None,
            "output": str(tmp_path / output),
        }  # fmt: skip
        if lost == "stop":
            with pytest.raises(mpifl.RunFailed, match="no more data"):
                mpifl.run(job)
        else:
            mpifl.run(job)
        with mpifl.open_run(tmp_path / output) as file:
            columns = ["time", "client", "version", "norm"]
            assert {*file.events["kind"]} >= ({"refused", "lost"} if lost == "freeze" else {"refused"})
            return [file.model, file.updates[columns].to_numpy(), file.events[["time", "kind", "client", "text"]]]

    ahead = run("ahead.h5")
    monkeypatch.setattr(in_process, "AHEAD_SECONDS", -1.0)
    for values, expected in zip(ahead, run("due.h5"), strict=True):
        np.testing.assert_array_equal(values, expected)
