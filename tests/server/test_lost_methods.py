"""Methods that remember every client, or wait for it, when one is lost in the middle of a run; and their replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.ace import Ace
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.favas import Favas
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.fedcompass import FedCompass
from mpifl.algorithms.mifa import Mifa
from mpifl.algorithms.quafl import QuAFL
from mpifl.algorithms.ringleader import Ringleader

SPEED = {"name": "speed", "compute": 0.1, "exchange": 0.02, "spread": 4, "noise": "exponential"}
FAIL = [True]  # whether client 2 raises in its fourth contact; a replay repeats the loss from its record


class Fails:
    """Client 2 raises in its fourth contact."""

    def init_client(self, x0: Any, i: int) -> State:
        client: State = super().init_client(x0, i)  # type: ignore[misc]
        client.number = i
        return client

    def train(self, client: State, message: Message, objective: Any) -> Update:
        if client.number == 2 and message.round == 3 and FAIL[0]:
            raise OSError("the disk of client 2 is gone")
        return super().train(client, message, objective)  # type: ignore[misc, no-any-return]


class FailsAce(Fails, Ace):
    """ACE"""


class FailsBuffer(Fails, FedBuff):
    """FedBuff"""


class FailsCompass(Fails, FedCompass):
    """FedCompass"""


class FailsMifa(Fails, Mifa):
    """MIFA"""


class FailsMifaByTime(FailsMifa):
    """MIFA with rounds of a given length"""


class FailsQuafl(Fails, QuAFL):
    """QuAFL"""


class FailsFavas(Fails, Favas):
    """FAVAS"""


class FailsRingleader(Fails, Ringleader):
    """Ringleader ASGD"""


CASES: dict[str, dict[str, Any]] = {
    "FailsAce": {"lost": "drop"},
    "FailsBuffer": {"calibrate": True, "lost": "drop", "trigger": {"every": 3}},
    "FailsCompass": {"min_steps": 2, "max_steps": 5},
    "FailsMifa": {"cohort": 4, "lost": "drop"},
    "FailsMifaByTime": {"period": 2.5},
    "FailsQuafl": {"cohort": 4, "local_steps": 5, "period": 0.5},
    "FailsFavas": {"cohort": 4, "local_steps": 5, "period": 0.5},
    "FailsRingleader": {},
}


@pytest.mark.parametrize("name", CASES)
def test_the_run_goes_on_and_is_replayed(name: str, tmp_path: Path) -> None:
    """All updates of the run are there, the model goes on moving after the loss, and a replay has the same bits."""
    FAIL[0] = True
    path = tmp_path / "run.h5"
    job = {
        "name": "lost", "seed": 3, "output": str(path), "faults": {"lost": "freeze"},
        "problem": {"clients": 6, "model": {"name": "quadratic", "dim": 5, "sigma": 0.1}, "dtype": "float64"},
        "algorithm": {"name": f"{__name__}:{name}", "step_size": 0.02, **CASES[name]},
        "clock": {"mode": "virtual", "delay": SPEED}, "stop": {"updates": 240}, "evaluate": {"updates": 40},
    }  # fmt: skip
    mpifl.run(job).close()
    with mpifl.open_run(path) as run:
        assert run.status == "completed" and len(run.updates) == 240
        (row,) = run.events[run.events.kind == "lost"].itertuples()
        assert row.client == 2 and (run.updates.client == 2).sum() == 3
        assert len(run.aggregations) > row.version + 10
        model, versions = run.model, run.updates.version.to_numpy()
    FAIL[0] = False
    mpifl.replay(path, f"output={tmp_path / 'again.h5'}", trust=True).close()
    with mpifl.open_run(tmp_path / "again.h5") as again:
        assert np.array_equal(again.model, model) and np.array_equal(again.updates.version.to_numpy(), versions)
