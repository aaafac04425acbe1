"""A rank of a group dies by SIGKILL at a random instant, also in a sum: its clients are lost once, all else goes on.

4 groups of 2: the victim is a leader or the other member. The instants are drawn by a seed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.tools.verify.run_file import check_file
from mpifl.transport.layout import Layout
from tests.faults.harness import Tally, amount, counting, needs_tolerance, replays, run_and_kill
from tests.mpi.cases import DIGITS, job
from tests.mpi.conftest import write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]
RANKS, GROUP = 9, 2
LENGTH = 2.0  # s of a run
NOTICE = 1.0  # s in which a death is noticed, on a machine that is busy with other things too
MODELS = {"small": {"name": "logistic"}, "large": {"name": "mlp", "hidden": 300}}  # in a frame, or behind one
METHODS = {
    "fedbuff": {"name": "fedbuff", "trigger": {"every": 4}, "local_steps": 4},
    "area": {"name": "area", "trigger": {"every": 3}},
    "scaffold": {"name": "scaffold", "cohort": 5, "local_steps": 3},
    "sharded": {"name": "fedbuff", "trigger": {"every": 4}},  # on clients of which each rank of a group has a part
}
DIMS = {"small": 12, "large": 20_001}

counted = counting(1, "group-kills")


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(4, 100))
def test_a_rank_of_a_group_is_killed(seed: int, tmp_path: Path, counted: Tally) -> None:
    needs_tolerance()
    draw = random.Random(seed)
    method, model = [*METHODS][seed % 4], [*MODELS][seed // 4 % 2]
    victim, policy = draw.randrange(1, RANKS), ["freeze", "rehost"][seed // 8 % 2]
    problem: dict[str, Any] = {**DIGITS, "clients": 8, "batch_size": 16, "micro_batches": 4, "model": MODELS[model]}
    if method == "sharded":
        options = {"kind": "ShardedSite", "clients": 8, "dim": DIMS[model]}
        problem = {"entry": "tests.own_clients:quadratics", "options": options}
    more = {
        "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}, "stop": {"time": LENGTH}, "seed": seed,
        "evaluate": {"every": 0.5}, "ranks_per_client": GROUP, "faults": {"lost": policy}, "output": "k.h5",
    }  # fmt: skip
    file, path = write(tmp_path, "k", job(METHODS[method], problem, **more)), tmp_path / "k.h5"
    instant = draw.uniform(0, 0.9 * LENGTH)
    with counted.run(f"{method}, {model}, {policy}") as told:
        killed, done = run_and_kill(tmp_path, RANKS, file, path, [(instant, victim)], 60)
        leader = Layout(RANKS, GROUP).group_of(victim)[0]
        with open_run(path) as run:
            assert run.status == "completed" and not run.open_ended, str(done)
            home = set(run.clients.index[run.clients["rank"] == leader])
            gone = set(run.clients.index[run.clients.state == "lost"])
            kind = "lost" if policy == "freeze" else "rehosted"
            events = run.events[run.events.kind == kind].client.tolist()
            assert len(events) == len(set(events)) and set(events) <= home, str(done)
            if killed and killed[victim] < run.attrs["began"] + LENGTH - NOTICE:
                assert set(events) == home, str(done)
            assert gone == (set(events) if policy == "freeze" else set()), str(done)
        check_file(path)
        if policy == "freeze":
            replays(path)
        told[0] = "completed, replayed bit for bit" if policy == "freeze" else "completed"
