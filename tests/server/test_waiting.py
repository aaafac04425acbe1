"""The log says whom the server waits for when no update comes."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

import mpifl.server.failures as failures_module
from mpifl.config.job import Faults
from mpifl.server.client_table import ClientTable
from mpifl.server.failures import ClientFailures
from mpifl.transport.server_end import describe_clients


class Scene:
    """Four clients on ranks 1, 2, 1, 2; `idle` is an idle event after some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, patience: float | None = None) -> None:
        self.now, self.arrived, self.on = 100.0, {0, 2}, inf
        monkeypatch.setattr(failures_module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.clients = ClientTable(4)
        self.clients.in_flight[:] = self.now
        transport: Any = SimpleNamespace(rank_of=[1, 2, 1, 2], has_arrived=self.arrived.__contains__)
        faults = Faults(patience=patience)
        self.failures = ClientFailures(faults, self.clients, transport, lambda i, s: min(s, self.on))
        self.idle(0.0)

    def idle(self, seconds: float, updates: int = 0) -> None:
        self.now += seconds
        self.failures.report_waiting(updates)


def test_one_line_names_rank_and_clients_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It names those whose updates have not arrived, and is repeated after a minute."""
    scene = Scene(monkeypatch)
    scene.idle(5.0)
    assert not caplog.messages
    for _ in range(25):
        scene.idle(0.2)
    line = "no update for 8 s: the server waits for clients 1, 3 on rank 2; faults.patience=null, so it waits"
    assert caplog.messages == [f"{line} without limit"]
    for _ in range(280):
        scene.idle(0.2)
    assert len(caplog.messages) == 1
    scene.idle(5.0)
    assert len(caplog.messages) == 2


def test_the_line_says_when_clients_are_lost(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    Scene(monkeypatch, patience=30.0).idle(9.0)
    assert caplog.messages[0].endswith("faults.patience=30, then they are lost")


@pytest.mark.parametrize("why", ["updates come", "delay", "off", "arrived"])
def test_no_line_while_something_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """Updates are consumed, the drawn delay of the clients is not over, they are off, or their updates have arrived."""
    scene = Scene(monkeypatch)
    if why == "delay":
        scene.clients.in_flight[:] = 100.0 + 115.0
    if why == "off":
        scene.on = 7.0
    if why == "arrived":
        scene.arrived |= {1, 3}
    for count in range(20):
        scene.idle(6.0, count if why == "updates come" else 0)
    assert not caplog.messages


def test_clients_are_named_with_their_rank() -> None:
    rank_of = [1, 2, 3] * 10
    assert describe_clients([4], rank_of) == "client 4 on rank 2"
    assert describe_clients([4, 0, 2, 7], rank_of) == "clients 4, 7 on rank 2 and 2 more on other ranks"
    assert describe_clients(range(1, 30, 3), rank_of) == "clients 1, 4, 7, 10, 13, 16, 19, 22, ... on rank 2"
