"""Ranks with clients die by SIGKILL at random instants; the run ends well, its file is whole, a replay has the same bits.

The instants are drawn by a seed; before the first message, together, or one after the other until shortly before the
end. Small vectors travel in a frame, large ones behind it, so that a rank may die in the midst of one, or of a sum of
its group.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.tools.verify.run_file import check_file
from mpifl.transport.layout import Layout
from tests.faults.harness import Counted, amount, counting, needs_tolerance, replays, run_and_kill
from tests.mpi.cases import CASES, DIGITS, job
from tests.mpi.conftest import write

pytestmark = [pytest.mark.mpi, pytest.mark.long, pytest.mark.timeout(180)]
RANKS = 9
LENGTH = 2.0  # s of a run
NOTICE = 1.0  # s in which a death is noticed, on a machine that is busy with other things too

METHODS = [
    "area-deferred", "area-digits", "area-large", "area-on-and-off", "fedbuff", "fedbuff-deferred", "fedavg-all",
    "fedavg-samples", "fedavg-available", "feddr", "feddane", "scaffold", "async-feddr",
]  # fmt: skip
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 50}}
MORE: dict[str, Any] = {"stop": {"time": LENGTH}, "evaluate": {"every": 0.5}, "output": "k.h5"}
MODELS = {"small": ({"name": "logistic"}, 12), "large": ({"name": "mlp", "hidden": 300}, 20_001)}
GROUPED = {
    "fedbuff": {"name": "fedbuff", "trigger": {"every": 4}, "local_steps": 4},
    "area": {"name": "area", "trigger": {"every": 3}},
    "scaffold": {"name": "scaffold", "cohort": 5, "local_steps": 3},
    "sharded": {"name": "fedbuff", "trigger": {"every": 4}},  # on clients of which each rank of a group has a part
}

counted = counting(1, "kills")


def draw_plan(draw: random.Random, ranks: int) -> list[tuple[float, int]]:
    """(Seconds after the start, rank) of each death of so many client ranks."""
    victims = draw.sample(range(1, RANKS), ranks)
    how = draw.choice(["at the start", "together", "one by one", "one by one"])
    if how == "one by one":
        return [(draw.uniform(0, 0.95 * LENGTH), rank) for rank in victims]
    instant = 0.0 if how == "at the start" else draw.uniform(0, 0.9 * LENGTH)
    return [(instant, rank) for rank in victims]


@pytest.mark.parametrize("seed", amount(2, 200))
def test_killed(seed: int, tmp_path: Path, counted: Counted) -> None:
    needs_tolerance()
    draw = random.Random(seed)
    name = METHODS[3 * seed % len(METHODS)]
    deaths = 1 + (4 * seed + seed // len(METHODS)) % (RANKS - 2)  # at least one client rank lives
    plan, case = draw_plan(draw, deaths), CASES[name]
    case = {**case, **MORE, "clock": {**case["clock"], **REAL}, "seed": seed}  # some clients go on and off
    with counted(name) as told:
        killed_and_checked(tmp_path, {**case, "problem": {**case["problem"], "clients": 12}}, plan)
        told[0] = "completed, replayed bit for bit"


@pytest.mark.parametrize("seed", amount(4, 100))
def test_a_rank_of_a_group_is_killed(seed: int, tmp_path: Path, counted: Counted) -> None:
    """Of 4 groups of 2: a leader or the other member. The clients of its group are lost once, or move."""
    needs_tolerance()
    draw = random.Random(seed)
    method, model = [*GROUPED][seed % 4], [*MODELS][seed // 4 % 2]
    victim, policy = draw.randrange(1, RANKS), ["freeze", "rehost"][seed // 8 % 2]
    (made, dim), options = MODELS[model], {"ranks_per_client": 2, "faults": {"lost": policy}}
    problem: dict[str, Any] = {**DIGITS, "clients": 8, "batch_size": 16, "micro_batches": 4, "model": made}
    if method == "sharded":
        problem = {"entry": "tests.own_clients:quadratics", "options": {"kind": "ShardedSite", "clients": 8, "dim": dim}}
    case = job(GROUPED[method], problem, **MORE, **options, clock=REAL, seed=seed)
    with counted(f"groups of 2: {method}, {model}, {policy}") as told:
        killed_and_checked(tmp_path, case, [(draw.uniform(0, 0.9 * LENGTH), victim)], 2, policy)
        told[0] = "completed, replayed bit for bit" if policy == "freeze" else "completed"


def killed_and_checked(
    folder: Path, case: dict[str, Any], plan: list[tuple[float, int]], group: int = 1, policy: str = "freeze"
) -> None:
    """Runs the case and kills ranks. Its file must be complete, and name the clients of the dead groups, each once."""
    path, layout = folder / "k.h5", Layout(RANKS, group)
    killed, done = run_and_kill(folder, RANKS, write(folder, "k", case), path, plan, 60)
    told = f"{plan}: {done}"
    with open_run(path) as run:
        assert run.status == "completed" and not run.open_ended, told
        assert run.model_version == len(run.aggregations)
        counts = run.updates.client.value_counts().reindex(run.clients.index, fill_value=0)
        assert (run.clients.updates == counts).all()
        assert run.updates.time.is_monotonic_increasing and run.evaluations.updates.iloc[-1] == len(run.updates)
        end = run.attrs["began"] + LENGTH
        leaders = {layout.group_of(rank)[0]: when < end - NOTICE for rank, when in killed.items()}
        surely = [leader for leader, early in leaders.items() if early]
        home = run.clients["rank"]
        rows = run.events[run.events.kind == ("lost" if policy == "freeze" else "rehosted")]
        gone = set(rows.client)
        assert len(rows) == len(gone), told
        assert set(home.index[home.isin(surely)]) <= gone <= set(home.index[home.isin(leaders)]), told
        lost = set(run.clients.index[run.clients.state == "lost"])
        assert lost == (gone if policy == "freeze" else set()), told
        for row in rows.itertuples() if policy == "freeze" else ():
            assert (run.updates.client.iloc[row.updates :] != row.client).all(), f"an update of a lost client: {told}"
        living = set(run.clients.index) - lost
        assert not surely or set(run.updates[run.updates.time > LENGTH - NOTICE / 2].client) & living, told
    check_file(path)
    if policy == "freeze":
        replays(path)
