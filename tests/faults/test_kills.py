"""Client ranks die by SIGKILL at random instants; the run ends well, its file is whole, and a replay has the same bits.

The instants are drawn by a seed; before the first message, together, or one after the other until shortly before the
end. Small vectors travel in a frame, large ones behind it, so that a rank may die in the midst of one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mpifl import open_run
from tests.faults.harness import Tally, amount, counting, needs_tolerance, replays, run_and_kill
from tests.mpi.cases import CASES
from tests.mpi.conftest import write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]
RANKS = 9
LENGTH = 2.0  # s of a run
NOTICE = 1.0  # s in which a death is noticed, on a machine that is busy with other things too

METHODS = [
    "area-deferred", "area-digits", "area-large", "area-on-and-off", "fedbuff", "fedbuff-deferred", "fedavg-all",
    "fedavg-samples", "fedavg-available", "feddr", "feddane", "scaffold", "async-feddr",
]  # fmt: skip
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 50}}


counted = counting(1, "kills")


def draw_plan(draw: random.Random, ranks: int) -> list[tuple[float, int]]:
    """(Seconds after the start, rank) of each death of so many client ranks."""
    victims = draw.sample(range(1, RANKS), ranks)
    how = draw.choice(["at the start", "together", "one by one", "one by one"])
    if how == "at the start":
        return [(0.0, rank) for rank in victims]
    if how == "together":
        instant = draw.uniform(0, 0.9 * LENGTH)
        return [(instant, rank) for rank in victims]
    return [(draw.uniform(0, 0.95 * LENGTH), rank) for rank in victims]


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(2, 200))
def test_killed(seed: int, tmp_path: Path, counted: Tally) -> None:
    needs_tolerance()
    draw = random.Random(seed)
    name = METHODS[3 * seed % len(METHODS)]
    deaths = 1 + (4 * seed + seed // len(METHODS)) % (RANKS - 2)  # at least one client rank lives
    plan, case = draw_plan(draw, deaths), CASES[name]
    clock = {**case["clock"], **REAL}  # some clients go on and off
    more = {"clock": clock, "stop": {"time": LENGTH}, "evaluate": {"every": 0.5}, "output": "k.h5", "seed": seed}
    file = write(tmp_path, "k", {**case, "problem": {**case["problem"], "clients": 12}, **more})
    path = tmp_path / "k.h5"
    with counted.run(name) as told:
        killed, done = run_and_kill(tmp_path, RANKS, file, path, plan, 40)
        check_file(path, killed, f"{plan}: {done}")
        replays(path)
        told[0] = "completed, replayed bit for bit"


def check_file(path: Path, killed: dict[int, float], told: str) -> None:
    """Checks that the file is complete and names the lost clients; `killed`: when (Unix time) each rank was killed."""
    with open_run(path) as run:
        assert run.status == "completed" and not run.open_ended, told
        assert run.model_version == len(run.aggregations)
        counts = run.updates.client.value_counts().reindex(run.clients.index, fill_value=0)
        assert (run.clients.updates == counts).all()
        assert run.updates.time.is_monotonic_increasing and run.evaluations.updates.iloc[-1] == len(run.updates)
        ranks = run.clients["rank"]
        lost = set(run.clients.index[run.clients.state == "lost"])
        end = run.attrs["began"] + LENGTH
        surely = {rank for rank, when in killed.items() if when < end - NOTICE}
        assert set(ranks.index[ranks.isin(surely)]) <= lost <= set(ranks.index[ranks.isin(killed)]), told
        rows = run.events[run.events.kind == "lost"]
        assert sorted(rows.client) == sorted(lost), told
        for row in rows.itertuples():
            assert (run.updates.client.iloc[row.updates :] != row.client).all(), f"an update of a lost client: {told}"
        living = set(run.clients.index) - lost
        assert not surely or set(run.updates[run.updates.time > LENGTH - NOTICE / 2].client) & living, told
