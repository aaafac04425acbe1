"""Clients that go on and off in real time, in runs whose ranks or whose whole job is killed.

Contacts take 1/60 s on average; a client is on for 0.25 s and off for 0.25 s in turn, from a point of its own. So there
are at every instant updates that ranks hold back, messages that wait, and rounds that wait for members. Whatever is
killed: an update is consumed while its client is on, every client that is live goes on, the methods that correct for
unequal rates end at the optimum of all clients, and a replay has the same bits.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.scheduling.availability import Renewal
from tests.faults.harness import (
    Counted,
    amount,
    began,
    counting,
    job,
    kill_all,
    mpifl,
    needs_tolerance,
    pids,
    replays,
    run_and_kill,
    saved,
    slain,
)  # fmt: skip
from tests.faults.spy import gap_at_checkpoint, quadratics
from tests.faults.test_resume import hurt
from tests.mpi.conftest import until, write

pytestmark = [pytest.mark.mpi, pytest.mark.long, pytest.mark.timeout(300)]
RANKS, CLIENTS, DIM = 5, 8, 4
*_, OPTIMUM, MODEL = quadratics(CLIENTS, DIM)
ON, OFF = 0.25, 0.25  # s
RENEWAL: dict[str, Any] = {"name": "renewal", "on": ON, "off": OFF, "distribution": "fixed"}
LATE = 0.1  # s after an on period in which a busy server may still consume what came in it
KILLS = 1.5  # s from the start in which ranks are killed
EVERY, POLLED = {"trigger": {"every": 3}}, {"step_size": 0.05, "local_steps": 3, "period": 0.05}
# Method, how many updates the run has, how close to the optimum of all clients it ends (None: its limit is another
# point), and options of clock.availability.
METHODS: dict[str, tuple[dict[str, Any], int, float | None, dict[str, Any]]] = {
    "area": ({"name": "area", "step_weights": "one", **EVERY, "reply": "deferred"}, 1500, 1e-6, {}),
    "area, restart": ({"name": "area", "step_weights": "one", **EVERY}, 1000, 1e-6, {"interrupted": "restart"}),
    "ace": ({"name": "ace", "step_size": 0.01}, 2500, 1e-6, {}),
    "ca2fl": ({"name": "ca2fl", **EVERY, "step_size": 0.05}, 1500, None, {}),
    "fedavg": ({"name": "fedavg"}, 320, 1e-6, {}),
    "fedavg, available": ({"name": "fedavg", "cohort": 6}, 500, None, {"cohort_from": "available"}),
    "fedbuff": ({"name": "fedbuff", "trigger": {"period": 0.05}, "reply": "after"}, 1000, None, {}),
    "fedcompass": ({"name": "fedcompass", "min_steps": 1, "max_steps": 4, "step_size": 0.02}, 500, None, {}),
    "mifa": ({"name": "mifa", "step_size": 0.03, "period": 0.05}, 1500, 1e-3, {}),
    "mifa, available": ({"name": "mifa", "step_size": 0.1, "cohort": 6}, 500, None, {"cohort_from": "available"}),
    "ringleader": ({"name": "ringleader", "step_size": 0.02}, 1500, None, {}),
    "quafl": ({**POLLED, "name": "quafl"}, 800, None, {}),
    "favas, available": ({**POLLED, "name": "favas", "cohort": 4}, 500, None, {"cohort_from": "available"}),
    "ringmaster": ({"name": "ringmaster", "threshold": 4, "step_size": 0.02}, 1500, None, {}),
    "scaffold": ({"name": "scaffold", "local_steps": 2, "step_size": 0.1}, 320, 1e-6, {}),
    "feddr": ({"name": "feddr", "alpha": 1.0, "eta": 0.4, "local_steps": 20}, 320, 1e-6, {}),
}
FEW = 800  # most updates of a run whose lost clients leave it no optimum to reach
INCREMENTS = ["area", "ace", "scaffold"]

counted = counting(13, "availability")


def content(name: str, seed: int, lost: str, count: int, **more: Any) -> dict[str, Any]:
    algorithm, _, _, options = METHODS[name]
    return {
        "problem": {"clients": CLIENTS, "model": MODEL, "dtype": "float64"},
        "algorithm": {"step_size": 0.2, **algorithm}, "seed": seed, "output": "a.h5",
        "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 60}, "availability": {**RENEWAL, **options}},
        "stop": {"updates": count, "time": 90}, "evaluate": {"every": 0.5}, "faults": {"lost": lost}, **more,
    }  # fmt: skip


def check(path: Path, name: str, seed: int, since: float, count: int) -> None:
    """Asserts what the head of this file says of a run of so many updates, in which nothing was killed after `since`
    (s)."""
    _, enough, close, _ = METHODS[name]
    next_on = Renewal(on=ON, off=OFF, distribution="fixed").on_periods(CLIENTS, seed)
    with open_run(path) as run:
        assert run.status == "completed" and len(run.updates) == count
        rows, live = run.updates, run.clients.index[run.clients.state == "live"]
        assert rows.time.is_monotonic_increasing
        on = [next_on(row.client, row.time - LATE)[0] <= row.time for row in rows.itertuples()]
        assert np.mean(on) > 0.9, "updates are consumed while their clients are off"
        assert set(rows.client[rows.time > since]) >= set(live), "a client does not go on"
        assert (rows.waited >= 0).all() and rows.waited.max() < OFF + LATE
        if close and count == enough and set(run.clients.state) == {"live"}:
            assert np.abs(run.model - OPTIMUM).max() < close
    assert mpifl("verify", path) == 0


@pytest.mark.parametrize("seed", amount(1, 5))
@pytest.mark.parametrize("lost", ["rehost", "freeze"])
@pytest.mark.parametrize("name", METHODS)
def test_one_or_two_ranks_are_killed(name: str, lost: str, seed: int, tmp_path: Path, counted: Counted) -> None:
    """Their clients move to other ranks, or are lost."""
    needs_tolerance()
    path, draw = tmp_path / "a.h5", random.Random(f"{seed} {lost}")
    count = METHODS[name][1] if lost == "rehost" else min(FEW, METHODS[name][1])
    with counted(f"availability, ranks killed, {lost}") as told:
        file = content(name, seed, lost, count, checkpoint={"every": draw.choice([0.2, 0.6, 2.0])})
        plan = [(draw.uniform(0, KILLS), rank) for rank in draw.sample(range(1, RANKS), draw.choice([1, 2]))]
        killed, _ = run_and_kill(tmp_path, RANKS, write(tmp_path, "a", file), path, plan)
        check(path, name, seed, KILLS, count)
        with open_run(path) as run:
            hosted = set(run.clients.index[run.clients["rank"].isin(killed)])
            assert set(run.clients.index[run.clients.state == "lost"]) == (hosted if lost == "freeze" else set())
            assert lost == "freeze" or hosted <= set(run.events.client[run.events.kind == "rehosted"])
        if lost == "freeze":
            replays(path)
        elif name.startswith("area"):
            assert gap_at_checkpoint(path) < 1e-12
        told[0] = "replayed bit for bit" if lost == "freeze" else "every client goes on"


@pytest.mark.parametrize("seed", amount(1, 5))
@pytest.mark.parametrize("name", METHODS)
def test_the_whole_job_is_killed(name: str, seed: int, tmp_path: Path, counted: Counted) -> None:
    """Launcher and all, once or twice, and resumed on other numbers of ranks, none included."""
    path, draw, count = tmp_path / "a.h5", random.Random(f"{name} {seed}"), METHODS[name][1]
    with counted("availability, job killed and resumed") as told:
        file = write(tmp_path, "a", content(name, seed, "stop", count))
        told[0] = hurt(tmp_path, draw, file, path, "checkpoint.every=0.2", most=5)
        with open_run(path) as run:
            since = run.events.time[run.events.kind == "resumed"].max()
        check(path, name, seed, since, count)
        replays(path)


@pytest.mark.parametrize("name", INCREMENTS)
def test_a_rank_is_killed_and_then_the_job(name: str, tmp_path: Path, counted: Counted) -> None:
    """The clients of the dead rank have moved; the checkpoints that follow have them where they are."""
    needs_tolerance()
    path, draw = tmp_path / "a.h5", random.Random(name)
    with counted("availability, a rank and then the job killed"):
        file = write(tmp_path, "a", content(name, 300, "rehost", METHODS[name][1], checkpoint={"every": 0.2}))
        with job(tmp_path, RANKS, "run", file) as command:
            start = until(lambda: began(path), command, "the start")
            slain(command, pids(command), [(start + draw.uniform(0, KILLS), draw.randrange(1, RANKS))])
            before = saved(path)
            until(lambda: saved(path) >= before + 2, command, "checkpoints")
            kill_all(command, draw)
        with job(tmp_path, draw.choice([2, 3]), "resume", path) as command:
            command.ends_well(120)
        with open_run(path) as run:
            assert {"rehosted", "resumed"} <= set(run.events.kind)
            since = run.events.time[run.events.kind == "resumed"].max()
        check(path, name, 300, since, METHODS[name][1])
