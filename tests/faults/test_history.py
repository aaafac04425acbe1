"""Runs in real time under stress: each ends at its stop time and loses no update; its replay has the same bits.

A job is drawn by a seed: slow contacts, slow evaluations, an evaluation every millisecond, timed triggers, updates that
are refused, client ranks that are killed, a server that is stopped for a while (SIGSTOP). Its methods write down each
contact at the client, in a file of the process, before the update is sent: who the server heard is then compared with
who spoke.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Algorithm, Message, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.objective import Objective, Vector
from tests.faults.harness import Counted, amount, began, counting, intolerant, job, pids, replays
from tests.mpi.conftest import Command, mpifl, until, write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
CONTACTS = "MPIFL_CONTACTS"  # the folder of what clients write down; unset: nothing is, and nothing is slow
SLACK = 1.0  # s that a busy machine may take where nothing else does


@dataclass(frozen=True)
class Stressed(Algorithm):
    """A method that is slow, sends wrong updates, and writes down each contact."""

    slow: float = 0.0
    """s that a contact takes"""
    heavy: float = 0.0
    """s that an evaluation takes"""
    wrong: int = 0
    """every so many updates one is not finite; 0: none"""

    def init_client(self, x0: Vector, i: int) -> State:
        state = super().init_client(x0, i)
        state.i = i
        return state

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        begin = time.time()
        update = super().train(client, message, objective)
        if self.wrong and (3 * client.i + message.round) % self.wrong == self.wrong - 1:
            update = update._replace(vectors=tuple(v * np.array(nan, v.dtype) for v in update.vectors))
        if folder := os.environ.get(CONTACTS):
            time.sleep(self.slow)
            norm = sqrt(sum(float(v @ v) for v in update.vectors))
            line = f"{client.i} {message.round} {begin!r} {time.time()!r} {norm!r}\n"
            file = os.open(Path(folder, str(os.getpid())), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, line.encode())
            os.close(file)
        return update

    def penalty(self, x: Vector) -> float:
        """0, after so many seconds in which it holds the interpreter: an evaluation that slows the server down."""
        end = time.perf_counter() + (self.heavy if CONTACTS in os.environ else 0.0)
        while time.perf_counter() < end:
            pass
        return 0.0


@dataclass(frozen=True)
class StressedArea(Stressed, Area):
    """AREA."""


@dataclass(frozen=True)
class StressedFedBuff(Stressed, FedBuff):
    """FedBuff."""


@dataclass(frozen=True)
class StressedFedAvg(Stressed, FedAvg):
    """FedAvg."""


# -- runs --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """One run: its job, its ranks (0: one process), and what is done to it, in seconds after its start."""

    job: dict[str, Any]
    ranks: int
    kills: list[tuple[float, int]]  # when, which rank
    stalls: list[tuple[float, float]]  # when, for how long rank 0 is stopped

    @property
    def place(self) -> str:
        """The processes of a run, and what is done to them."""
        acts = [name for name, done in (("ranks killed", self.kills), ("server stopped", self.stalls)) if done]
        return ", ".join([f"{self.ranks} ranks" if self.ranks else "one process", *acts])


def draw_case(seed: int, tolerant: bool = True) -> Case:
    """tolerant: whether this MPI survives ranks that die."""
    draw = random.Random(seed)
    stop = draw.choice([0.7, 1.0, 1.5])
    ranks = draw.choice([0, 2, 3, 4])
    name = draw.choice(["Area", "Area", "FedBuff", "FedBuff", "FedAvg"])
    algorithm: dict[str, Any] = {
        "name": f"{__name__}:Stressed{name}", "step_size": 0.05, "local_steps": draw.choice([1, 3]),
        "slow": draw.choice([0.0, 0.0, 0.005, 0.1]), "heavy": draw.choice([0.0, 0.002, 0.1]),
        "wrong": draw.choice([0, 0, 3, 10]),
    }  # fmt: skip
    if name == "FedAvg":
        algorithm["cohort"] = draw.choice([2, 4])
    else:
        triggers = [{"every": 2}, {"period": 0.001}, {"period": 0.05}, {"poisson": 50}, {"poisson": 5000}]
        algorithm |= {"trigger": draw.choice(triggers), "reply": draw.choice(["before", "after", "deferred"])}
    content = {
        "seed": seed, "output": "h.h5", "algorithm": algorithm,
        "problem": {"clients": draw.choice([4, 6]), "model": {"name": "quadratic", "dim": draw.choice([10, 20_000])},
                    "dtype": "float64"},
        "clock": {"mode": "real", "delay": draw.choice([{"name": "none"}, {"name": "exponential", "rate": 50}])},
        "stop": {"time": stop}, "faults": {"refusals": 1000},
        "evaluate": draw.choice([{"every": 1e-3}, {"every": 1e-3}, {"every": 1e-5}, {"every": 0.05}, {"updates": 1}]),
    }  # fmt: skip
    kills, stalls = [], []
    if tolerant and ranks > 2 and draw.random() < 0.5:
        victims = draw.sample(range(1, ranks), draw.randrange(1, ranks - 1))
        kills = [(draw.uniform(0, stop), rank) for rank in victims]
    if draw.random() < 0.4:
        length = draw.choice([0.2, 0.5, 1.2])
        stalls = [(draw.choice([draw.uniform(0, stop), stop - length / 2]), length)]
    return Case(content, ranks, kills, [(max(0.0, when), length) for when, length in stalls])


def run_case(case: Case, folder: Path) -> Command:
    """Runs it to its end in `folder`, which is empty: `h.h5`, and what its clients wrote in `contacts`."""
    contacts = folder / "contacts"
    contacts.mkdir()
    path = folder / "h.h5"
    os.environ[CONTACTS] = str(contacts)
    try:
        with job(folder, case.ranks, "run", write(folder, "h", case.job), tolerant=bool(case.kills)) as command:
            start = until(lambda: began(path), command, "the start")
            ranks = pids(command) if case.ranks else {0: command.process.pid}
            acts = [(when, signal.SIGKILL, rank) for when, rank in case.kills]
            for when, length in case.stalls:
                acts += [(when, signal.SIGSTOP, 0), (when + length, signal.SIGCONT, 0)]
            for when, number, rank in sorted(acts):
                time.sleep(max(0.0, start + when - time.time()))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ranks[rank], number)
            return command.ends_well(40)
    finally:
        del os.environ[CONTACTS]


# -- the check ---------------------------------------------------------------------------------------------------------
def read_contacts(folder: Path) -> dict[int, list[tuple[int, float, float, float]]]:
    """Round, begin and end (Unix time), and the update's norm of every contact, by client."""
    found: dict[int, list[tuple[int, float, float, float]]] = defaultdict(list)
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            i, round, begin, end, norm = line.split()
            found[int(i)].append((int(round), float(begin), float(end), float(norm)))
    return found


def check_history(case: Case, folder: Path) -> dict[str, int]:
    """Asserts that a run ended at its stop time, and that it consumed what its clients sent, each once and in order.

    What was sent last is under way at the end, and is reported as dropped, unless its rank was killed, together with
    what was asked for and not begun. Returns counts.
    """
    path, heard = folder / "h.h5", read_contacts(folder / "contacts")
    stop, stalled = float(case.job["stop"]["time"]), sum(length for _, length in case.stalls)
    killed, surely = {rank for _, rank in case.kills}, 0
    with open_run(path) as run:
        updates, events, evaluations = run.updates, run.events, run.evaluations
        assert run.status == "completed", run.status
        longest = max((end - begin for each in heard.values() for _, begin, end, _ in each), default=0.0)
        last = stop + longest + stalled + SLACK
        late = updates[updates.time > stop]
        assert len(late) <= 1, f"{len(late)} updates were consumed after {stop} s: {late.time.tolist()}"
        assert all((frame.time <= last).all() for frame in (updates, evaluations, run.aggregations))
        made = run.aggregations.time
        for row in evaluations.itertuples():
            assert row.version == 0 or row.time >= made[row.version - 1], f"{row} is earlier than its model"
        assert run.attrs["wall_seconds"] <= last, "the run did not end at its stop time"
        counts = {"updates": len(updates), "refused": 0, "under way": 0, "evaluations": len(evaluations)}
        for i in run.clients.index:
            rounds = [round for round, *_ in heard[i]]
            assert rounds == [*range(len(rounds))], f"client {i} was asked for rounds {rounds}"
            norms = [norm for *_, norm in heard[i]]
            good = [norm for norm in norms if isfinite(norm)]  # those that are not are refused
            consumed = updates.norm[updates.client == i].tolist()
            assert consumed == good[: len(consumed)], f"client {i} sent other updates than the server consumed"
            refused = int(((events.kind == "refused") & (events.client == i)).sum())
            under_way = len(norms) - len(consumed) - refused
            assert 0 <= under_way <= 1, f"client {i}: {len(norms)} sent, {len(consumed)} consumed, {refused} refused"
            assert 0 <= len(norms) - len(good) - refused <= 1
            counts["refused"] += refused
            counts["under way"] += under_way
            surely += 0 if run.clients["rank"][i] in killed else under_way
        dropped = sum(int(text.split()[0]) for text in events.text[events.kind == "dropped"])
        assert surely <= dropped <= len(run.clients), f"{counts}, of live ranks {surely}, but {dropped} dropped"
        return counts


# -- tests -------------------------------------------------------------------------------------------------------------
counted = counting(10, "history")


def content(algorithm: dict[str, Any], clients: int, stop: float, every: float) -> dict[str, Any]:
    return {
        "problem": {"clients": clients, "model": {"name": "quadratic", "dim": 3}}, "algorithm": algorithm, "seed": 0,
        "stop": {"time": stop}, "evaluate": {"every": every}, "output": "h.h5", "faults": {"refusals": 1000},
        "clock": {"mode": "real", "delay": "none"},
    }  # fmt: skip


def check_case(case: Case, folder: Path) -> str:
    """Runs a case, checks its file and replays it; returns the outcome."""
    run_case(case, folder)
    counts = check_history(case, folder)
    path = folder / "h.h5"
    assert mpifl("verify", path, "--trust") == 0
    replays(path)
    with open_run(path) as run:
        late = run.evaluations.age.max() > 1.0
    return f"completed, replayed bit for bit{', overloaded' if late else ''}" if counts["updates"] else "no update"


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(10, 120))
def test_a_run_under_stress_loses_no_update_and_is_replayed(seed: int, tmp_path: Path, counted: Counted) -> None:
    case = draw_case(seed, not intolerant())
    with counted(case.place) as told:
        told[0] = check_case(case, tmp_path)


def test_history_of_one_run(tmp_path: Path) -> None:
    """One process with slow evaluations, one every millisecond, updates that are refused, and a pause by SIGSTOP."""
    stress = {"heavy": 0.002, "wrong": 3, "trigger": {"period": 0.001}}
    algorithm = {"name": f"{__name__}:StressedArea", **stress}
    case = Case(content(algorithm, clients=6, stop=0.7, every=1e-3), 0, [], [(0.3, 0.5)])
    assert check_case(case, tmp_path).startswith("completed")


@pytest.mark.parametrize("ranks", [2, 0], ids=["a client rank", "one process"])
def test_no_contact_begins_after_the_stop_time(ranks: int, tmp_path: Path) -> None:
    """40 clients in one process, contacts of 0.2 s: those that are left at 1 s would take 7 s."""
    algorithm = {"name": f"{__name__}:StressedFedAvg", "slow": 0.2}
    case = Case(content(algorithm, clients=40, stop=1.0, every=0.1), ranks, [], [])
    run_case(case, tmp_path)
    counts = check_history(case, tmp_path)
    assert 1 <= counts["updates"] <= 1.0 / 0.2 + 1
    start = began(tmp_path / "h.h5")
    assert start and all(begin <= start + 1.0 + SLACK for each in read_contacts(tmp_path / "contacts").values()
                         for _, begin, *_ in each)  # fmt: skip
