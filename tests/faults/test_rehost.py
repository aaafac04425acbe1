"""What lost clients mean to AREA, on quadratics whose optima are known.

`rehost`: the clients of dead ranks go on elsewhere, the sums add up, and the limit is the optimum of all clients'
objective. `freeze`: the y_i of lost clients stay what they were, and with a constant step alpha and one local step the
limit x is where x = (1/n) (sum over the living of (x - alpha A_i (x - c_i)) + sum over the lost of y_i), that is
x = (alpha sum over the living of A_i c_i + sum over the lost of y_i) / (alpha sum over the living of A_i + the lost).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from tests.faults.harness import Counted, amount, counting, needs_tolerance, run_and_kill, saved
from tests.faults.spy import gap_at_checkpoint, quadratics, replayed
from tests.mpi.conftest import write
from tests.mpi.files import differing

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]
RANKS, CLIENTS, DIM = 9, 12, 4
STEP = 0.2
UPDATES = 3000  # of a run, 3 s and more: some 25 times what the distance to the limit takes to fall to 1/e
DEATHS = 2.0  # s from the start in which ranks die
CURVATURES, OPTIMA, OPTIMUM, MODEL = quadratics(CLIENTS, DIM)
CLOSE = 1e-9

counted = counting(3, "rehost")


def quadratic(lost: str, **more: Any) -> dict[str, Any]:
    return {
        "problem": {"clients": CLIENTS, "model": MODEL, "dtype": "float64"},
        "algorithm": {"name": "area", "step_size": STEP, "step_weights": "one", "trigger": {"every": 3}},
        "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 80}},
        "stop": {"updates": UPDATES}, "evaluate": {"every": 0.5}, "faults": {"lost": lost}, "output": "q.h5", "seed": 0,
        **more,
    }  # fmt: skip


def biased(y: np.ndarray, lost: list[int]) -> np.ndarray:
    """(d,) the limit with the y_i, (lost, d), of the clients that were lost."""
    living = [i for i in range(CLIENTS) if i not in lost]
    a, c = CURVATURES[living], OPTIMA[living]
    return (STEP * (a * c).sum(0) + y.sum(0)) / (STEP * a.sum(0) + len(lost))


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(1, 30))
def test_rehost(seed: int, tmp_path: Path, counted: Counted) -> None:
    """Deaths before the first checkpoint, between two, and of ranks that had taken others' clients over."""
    needs_tolerance()
    draw = random.Random(seed)
    path, deaths = tmp_path / "q.h5", 1 + (seed + 2) % (RANKS - 2)
    every = draw.choice([0.1, 0.3, 1.0])
    file = write(tmp_path, "q", quadratic("rehost", checkpoint={"every": every}, seed=seed))
    with counted("rehost") as told:
        plan = [(draw.uniform(0, DEATHS), rank) for rank in draw.sample(range(1, RANKS), deaths)]
        killed, done = run_and_kill(tmp_path, RANKS, file, path, plan, 40)
        with open_run(path) as run:
            assert run.status == "completed" and set(run.clients.state) == {"live"}, str(done)
            moved = run.events.client[run.events.kind == "rehosted"]
            assert set(run.clients.index[run.clients["rank"].isin(killed)]) <= set(moved), str(done)
            assert set(run.updates.client[-UPDATES // 10 :]) == set(run.clients.index), "every client goes on"
            assert np.abs(run.model - OPTIMUM).max() < CLOSE
            assert (run.clients.updates.sum() == len(run.updates)) and saved(path) > 1
        assert gap_at_checkpoint(path) < 1e-13
        told[0] = "at the optimum of all clients"


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(1, 30))
def test_freeze(seed: int, tmp_path: Path, counted: Counted) -> None:
    needs_tolerance()
    draw = random.Random(seed)
    path, deaths = tmp_path / "q.h5", 1 + (seed + 2) % (RANKS - 2)
    file = write(tmp_path, "q", quadratic("freeze", seed=seed))
    with counted("freeze") as told:  # they die before anything has converged, so that it matters
        plan = [(draw.uniform(0, 0.3), rank) for rank in draw.sample(range(1, RANKS), deaths)]
        _, done = run_and_kill(tmp_path, RANKS, file, path, plan)  # one client alone takes 40 s
        spy = replayed(path)
        assert not differing(path, tmp_path / "q-replay.h5", but=("events",))
        with open_run(path) as run:
            lost = sorted(run.clients.index[run.clients.state == "lost"])
            assert len(lost) >= deaths, str(done)
            limit = biased(np.array([spy.consumed[i] for i in lost]), lost)
            assert np.abs(run.model - limit).max() < CLOSE
            assert np.abs(limit - OPTIMUM).max() > 100 * CLOSE, "no bias to be told from the optimum"
        told[0] = "at the stated biased point"
