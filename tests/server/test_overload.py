"""Runs in real time whose server cannot keep up: when they end, what their rows say, and their replay."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mpifl import Run, open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.cli import main
from mpifl.objective import Objective
from tests.mpi.files import differing

CLIENTS = 2


def job(folder: Path, **more: Any) -> Path:
    file = folder / "job.yaml"
    content = {
        "name": "late", "seed": 0, "output": str(folder / "late.h5"), "problem": {"clients": CLIENTS},
        "algorithm": {"name": "area", "trigger": {"every": 2}}, "clock": {"mode": "real", "delay": "none"}, **more,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    return file


def slow(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[int, float], otherwise: float = 0.0) -> None:
    """Contacts of this length, by round."""
    train = Area.train

    def waiting(self: Area, client: State, message: Message, objective: Objective) -> Update:
        time.sleep(seconds.get(message.round, otherwise))
        return train(self, client, message, objective)

    monkeypatch.setattr(Area, "train", waiting)


def check_times(run: Run) -> None:
    """No row of a run is earlier than an update or an aggregation that it reflects; times never decrease."""
    updates, aggregations, evaluations = run.updates, run.aggregations, run.evaluations
    for frame in (updates, aggregations, evaluations):
        assert frame.time.is_monotonic_increasing
    for row in evaluations.itertuples():
        assert row.updates == 0 or row.time >= updates.time[row.updates - 1]
        assert row.version == 0 or row.time >= aggregations.time[row.version - 1]
        assert row.updates == len(updates) or row.time <= updates.time[row.updates]
    assert np.all(aggregations.time >= updates.time[aggregations.updates - 1].to_numpy())
    assert evaluations.age.between(0, evaluations.time).all()


@pytest.mark.long
def test_a_server_that_was_overloaded_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A contact of 1.3 s: an evaluation is late by that, the final line and `show` say it; a replay has the bits."""
    slow(monkeypatch, {3: 1.3})
    assert main(["run", str(job(tmp_path, stop={"time": 1.5}, evaluate={"every": 0.05}))]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    clause = "the server was overloaded: evaluations up to "
    assert clause in last and "longer evaluate.every than 0.05 s or clients on ranks of their own (mpirun)" in last
    path = tmp_path / "late.h5"
    with open_run(path) as run:
        check_times(run)
        late = run.evaluations[run.evaluations.age > 1.0]
        assert 1 <= len(late) <= CLIENTS and late.age.max() <= 2 * 1.3 + 1.0
        due = (run.evaluations.time - run.evaluations.age).iloc[1:-1] / 0.05
        assert np.allclose(due, due.round(), atol=1e-6)  # multiples of 0.05 s
        assert due.round().is_unique
    assert main(["show", str(path)]) == 0
    assert clause in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["replay", str(path)]) == 0
    assert clause not in capsys.readouterr().out
    assert not differing(path, tmp_path / "late-replay.h5", but=("events",))


@pytest.mark.long
def test_contacts_that_take_longer_than_their_delays_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four clients in one process compute 0.08 s each: a contact takes 4 x 0.08 s where 0.1 s was asked."""
    slow(monkeypatch, {}, otherwise=0.08)
    more: dict[str, Any] = {"problem": {"clients": 4}, "stop": {"updates": 40}, "evaluate": {"updates": 40}}
    clock = {"mode": "real", "delay": {"name": "fixed", "seconds": 0.1}}
    assert main(["run", str(job(tmp_path, clock=clock, **more))]) == 0
    with open_run(tmp_path / "late.h5") as run:
        found = re.search(r"contacts took (\S+) s where the delay model says 0.1 s", capsys.readouterr().out)
        assert found and float(found[1]) == pytest.approx(run.attrs["contact_seconds"], rel=0.05)
        assert run.attrs["contact_delay"] == pytest.approx(0.1)
        assert 0.25 < run.attrs["contact_seconds"] < 0.5
    assert main(["show", str(tmp_path / "late.h5")]) == 0
    assert found[0] in capsys.readouterr().out


def test_times_go_on_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a signal ends after 20 events, and that is resumed: its clock goes on from the checkpoint."""
    receive = Area.receive

    def interrupting(self: Area, server: State, i: int, update: Update, staleness: int) -> None:
        receive(self, server, i, update, staleness)
        if server.k >= 20:
            os.kill(os.getpid(), signal.SIGTERM)

    clock = {"mode": "real", "delay": {"name": "fixed", "seconds": 0.01}}
    with monkeypatch.context() as patch:
        patch.setattr(Area, "receive", interrupting)
        assert main(["run", str(job(tmp_path, stop={"time": 0.6}, evaluate={"every": 1e-3}, clock=clock))]) == 143
    path = tmp_path / "late.h5"
    with open_run(path) as run:
        first = run.updates.time.tolist()
    assert main(["resume", str(path)]) == 0
    with open_run(path) as run:
        check_times(run)
        assert len(run.updates) > len(first) >= 10 and run.updates.time.tolist()[: len(first)] == first
        assert run.evaluations.time.iloc[-1] >= 0.6 and (run.updates.time > 0.6).sum() <= 1
    assert main(["verify", str(path)]) == 0
    assert main(["replay", str(path)]) == 0
    assert not differing(path, tmp_path / "late-replay.h5", but=("events",))


@pytest.mark.parametrize("mode", ["virtual", "real"])
def test_a_run_that_is_not_late_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """A virtual run is never late, however long its clients compute."""
    slow(monkeypatch, {1: 0.2 if mode == "virtual" else 0.0})
    clock = {"mode": mode, "delay": {"name": "fixed", "seconds": 0.01}}
    assert main(["run", str(job(tmp_path, stop={"time": 0.1}, evaluate={"every": 0.01}, clock=clock))]) == 0
    assert main(["show", str(tmp_path / "late.h5")]) == 0
    out = capsys.readouterr().out
    assert "overload" not in out and "contacts took" not in out
    with open_run(tmp_path / "late.h5") as run:
        assert mode == "real" or (len(run.evaluations) == 11 and (run.evaluations.age == 0).all())


def test_virtual_time_that_would_never_pass_until_the_last_update(tmp_path: Path, refused: Callable[..., str]) -> None:
    """2 clients of 1 contact in 1,000 s make 30 updates in 15,000 s: 1.5 million evaluations every 0.01 s."""
    clock = {"mode": "virtual", "delay": {"name": "fixed", "seconds": 1000}}
    file = job(tmp_path, stop={"updates": 30}, evaluate={"every": 0.01}, clock=clock)
    says = "evaluate.every=0.01: more than 1,000,000 evaluations to the end (15000 s of virtual time)"
    assert says in refused("run", file) and not (tmp_path / "late.h5").exists()
    assert main(["run", str(file), "stop.time=1"]) == 0
