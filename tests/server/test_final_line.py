"""What a run that has failed says about the cause: errors without text, refusals before a resume."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.errors import RunFailed
from mpifl.objective import Objective

JOB: dict[str, Any] = {
    "name": "line", "seed": 1, "problem": {"clients": 3, "model": {"name": "quadratic", "dim": 5}},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 20}}, "stop": {"time": 1.0},
    "faults": {"refusals": 1000, "norm": 10.0},
}  # fmt: skip


@dataclass(frozen=True)
class Silent(Area):
    """A rule that fails without a word."""

    def aggregate(self, server: State) -> None:
        raise RunFailed


@dataclass(frozen=True)
class Refused(Area):
    """Sends what is not finite, later what is too large; interrupts the run unless there is a file `resumed`."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if message.round == 3 and not Path("resumed").exists():
            os.kill(os.getpid(), signal.SIGUSR1)
        return Update((np.full(5, 1e9 if message.round else np.nan, np.float32),), 1)


def job(algorithm: type, path: Path) -> dict[str, Any]:
    name = f"{algorithm.__module__}:{algorithm.__name__}"
    return {**JOB, "algorithm": {"name": name, "trigger": {"every": 1}}, "output": str(path)}


def test_a_failure_without_text_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(RunFailed):
        mpifl.run(job(Silent, tmp_path / "silent.h5"))
    with mpifl.open_run(tmp_path / "silent.h5") as run:
        assert run.status == "failed" and run.events.kind.tolist()[0] == "failed"


def test_a_resumed_run_names_the_first_refusal_of_all_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        mpifl.run(job(Refused, tmp_path / "refused.h5"))
    Path("resumed").touch()
    with pytest.raises(RunFailed, match=r"the first refusal: client \d: the update is not finite"):
        mpifl.resume(tmp_path / "refused.h5", trust=True)
