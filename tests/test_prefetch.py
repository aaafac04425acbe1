"""Prefetching the rows of clients: which bytes are read, and that a run with it has the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import open_run, prefetch
from mpifl.algorithms.base import Update
from mpifl.client import worker
from mpifl.prefetch import Prefetch
from mpifl.scheduling import delays, due_times
from mpifl.scheduling.delays import Exponential
from mpifl.scheduling.live import VirtualClock
from mpifl.transport import in_process, message_table


@pytest.mark.parametrize(
    ("width", "dtype", "bytes_read"),
    [
        (10, "f4", [0, 39]),
        (8, "f8", [0, 63]),
        (9, "f8", [0, 64, 71]),
        (1, "i8", [0]),
        (130, "u1", [0, 64, 128, 129]),
    ],
)
def test_a_byte_of_each_cache_line_of_a_row(
    width: int, dtype: str, bytes_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "CACHED_BYTES", 0)
    table = np.zeros((7, width), dtype)
    begin = table.__array_interface__["data"][0]
    columns = Prefetch([table]).columns
    assert [column.__array_interface__["data"][0] - begin for column in columns] == bytes_read
    assert {column.shape for column in columns} == {(7,)}
    Prefetch([table])([6, 0])


def test_tables_that_are_left_out() -> None:
    """Small ones, long rows, and those that do not lie in one piece."""
    large = prefetch.CACHED_BYTES + 8
    assert Prefetch([np.zeros(large, np.uint8)]).columns
    small, long = np.zeros(prefetch.CACHED_BYTES, np.uint8), np.zeros((large, prefetch.MAX_ROW_BYTES + 1), np.uint8)
    assert not Prefetch([small, long]).columns
    assert not Prefetch([np.zeros((8, large), np.uint8).T, np.zeros((0, 4))]).columns


STOP = {"stop": {"updates": 1}, "evaluate": {"updates": 1}}
PROBLEMS: dict[str, dict[str, Any]] = {
    "quadratic": {"model": {"name": "quadratic", "dim": 3}},
    "equal": {"model": {"name": "logistic"}, "data": {"name": "fedpd-synthetic", "dim": 4, "samples": 3}},
    "unequal": {"model": {"name": "logistic"}, "data": {"name": "digits"}, "partition": {"name": "dirichlet"}},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_has_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the server's table and, if clients have as many rows as each other, those of the data."""
    calls: list[int] = []

    class Counted(Prefetch):
        def __call__(self, clients: Sequence[int]) -> None:
            calls.append(len(self.columns))
            super().__call__(clients)

    def run(output: str) -> list[np.ndarray]:
        job = mpifl.load_job(
            {
                "name": output, "seed": 3, "problem": {**PROBLEMS[name], "clients": 40, "batch_size": 2},
                "algorithm": {"name": "area", "step_size": 0.1}, "output": str(tmp_path / f"{output}.h5"),
                "clock": {"mode": "virtual", "delay": {"name": "exponential"}}, "stop": {"updates": 500},
            }
        )  # fmt: skip
        mpifl.run(job)
        with open_run(job.output) as file:
            columns = [file.evaluations["train_loss"], file.updates["norm"], file.updates["client"]]
            return [file.model, *(column.to_numpy() for column in columns)]

    expected = run("plain")
    for module in (message_table, worker):
        monkeypatch.setattr(module, "MAX_CLIENTS_AS_OBJECTS", 0)
    monkeypatch.setattr(delays, "MAX_CLIENTS_ALL_DRAWS", 0)
    monkeypatch.setattr(prefetch, "CACHED_BYTES", 0)
    monkeypatch.setattr("mpifl.server.session.Prefetch", Counted)
    monkeypatch.setattr(message_table, "MAX_BYTES", 1 << 20)
    for name_of, value in {"SORTED": 4, "SAMPLED": 2}.items():
        monkeypatch.setattr(due_times, name_of, value)
    monkeypatch.setattr(in_process, "AHEAD", 8)
    monkeypatch.setattr(in_process, "AHEAD_SECONDS", 600.0)
    found = run("prefetched")
    for values, others in zip(expected, found, strict=True):
        np.testing.assert_array_equal(others, values, strict=True)
    assert len(calls) > 50 and set(calls) == {
        2
    }  # bytes read of a client: its first and last of 32 in the server's table


def test_contact_times_of_the_clients_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock reads them when it is asked for these clients; it needs no delay model that has such tables."""
    monkeypatch.setattr(prefetch, "CACHED_BYTES", 0)
    read: list[list[int]] = []
    monkeypatch.setattr(Prefetch, "__call__", lambda self, clients: read.append([len(self.columns), *clients]))
    for times, columns in ((Exponential(rate=1.0).contact_times(5, 0), 8 + 1 + 1), (lambda client, round: 1.0, 0)):
        read.clear()
        clock = VirtualClock(times)
        for i in range(5):
            clock.contact_time(i, 0)
        clock.next_update(Source(), 1e9)  # sorts the due times
        assert read == []
        clients = clock.next_clients(3)
        assert len(clients) == 3 and read == [[columns, *clients]]


class Source:
    """Clients that answer at once."""

    def receive_from(self, i: int, timeout: float = 0.0) -> Update:
        return Update((), 0)

    def receive_any(self, timeout: float) -> None:
        return None
