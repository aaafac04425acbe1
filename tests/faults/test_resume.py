"""The whole job is killed or gets a signal at a random instant, and is resumed under other numbers of ranks.

Under the virtual clock the file at the end is that of the run that nobody killed, bit for bit. Under the real clock a
replay of all that the file holds gives its model bit for bit, and AREA's sums add up.
"""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.scheduling.availability import Renewal
from tests.faults.harness import Counted, amount, counting, intolerant, job, kill_all, saved
from tests.faults.spy import replayed
from tests.mpi.cases import AREA, CASES, DIGITS, SMALL
from tests.mpi.cases import job as of
from tests.mpi.conftest import Command, mpifl, until, write
from tests.mpi.files import differing
from tests.mpi.test_virtual import METHODS

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
NUMBERS = [0, 2, 3, 5, 9]  # of ranks; 0: one process without a launcher
LARGE = {"clients": 10, "model": {"name": "quadratic", "dim": 20000}, "dtype": "float64"}
TORCH = of({"name": "apfl", "local_steps": 2}, {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]},
                                                "test_split": 0.2, "dtype": "float64"})  # fmt: skip
VIRTUAL = {name: CASES[name] for name in [*METHODS, "area-deferred", "area-large", "area-period", "area-on-and-off"]}
VIRTUAL["apfl-torch"] = TORCH
SETS = 12  # checkpoints of an uninterrupted run
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 60}}
ON_AND_OFF: dict[str, Any] = {"on": 0.25, "off": 0.25, "distribution": "fixed"}  # s
RENEWAL = {"name": "renewal", **ON_AND_OFF}
LATE = 0.1  # s after an on period in which a busy server may still consume what came in it

counted = counting(2, "resume")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run files of runs that nobody killed, made in one process when they are asked for."""
    folder = tmp_path_factory.mktemp("whole")

    class Made(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            path = folder / f"{list(VIRTUAL).index(name)}.h5"
            assert mpifl("run", write(folder, path.stem, virtual(name)), f"output={path}") == 0
            self[name] = path
            return path

    return Made()


def every(name: str) -> int:
    """The updates from one checkpoint to the next, which take some tenths of a second."""
    model = VIRTUAL[name]["problem"]["model"]
    if model["name"] == "torch-mlp":
        return 20
    return 300 if model["name"] != "quadratic" else 100 if model["dim"] > 1000 else 600


def virtual(name: str) -> dict[str, Any]:
    return {**VIRTUAL[name], "stop": {"updates": every(name) * SETS + 7}, "evaluate": {"updates": 2 * every(name)}}


def killed(command: Command, path: Path, draw: random.Random) -> bool:
    """Kills a job; whether that, and not its end, is what ended the run."""
    if command.over():
        assert command.end().code == 0, str(command)
        return False
    kill_all(command, draw)
    with open_run(path) as run:
        return run.status != "completed"


def signalled(command: Command, path: Path, ranks: int, draw: random.Random) -> bool:
    """Sends a signal to a rank or the launcher; likewise. The run is saved, and ends with the signal's exit code."""
    if command.over():
        return killed(command, path, draw)
    number, rank = draw.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]), draw.randrange(-1, ranks)
    victim = command.process.pid if rank < 0 else command.rank(rank)
    os.kill(victim, number)
    done = command.end(40)
    with open_run(path) as run:
        if run.status == "completed":
            return False
        if ranks and rank < 0 and number != signal.SIGUSR1:  # the launcher leaves its ranks little time
            assert done.code in (1, 128 + number) and "Traceback" not in done.err, str(done)
            return True
        assert run.status == "interrupted" and not run.open_ended
        assert run.events.kind.iloc[-1] == "interrupted" and number.name in run.events.text.iloc[-1]
    assert done.code == (130 if number == signal.SIGINT else 143) and "Traceback" not in done.err, str(done)
    assert f"to continue: mpifl resume {path}" in done.out, str(done)
    return True


def ended(command: Command, path: Path, ranks: int, before: int, draw: random.Random, most: int) -> bool:
    """Ends a job a moment after it has completed some checkpoints more than `before`."""
    wanted = before + draw.randint(1, most)
    until(lambda: saved(path) >= wanted or command.over(), command, "a checkpoint")
    time.sleep(draw.uniform(0, 0.1))
    return signalled(command, path, ranks, draw) if draw.random() < 0.4 else killed(command, path, draw)


def hurt(folder: Path, draw: random.Random, file: Path, path: Path, *words: str, most: int) -> str:
    """Runs a job, ends it once or twice, resumes it to its end; what happened."""
    begin = partial(job, folder, tolerant=not intolerant() and draw.random() < 0.5)
    *ranks, last = draw.sample(NUMBERS, draw.choice([2, 3]))
    command_line: tuple[Any, ...] = ("run", file, f"output={path}", *words)
    for k, number in enumerate(ranks):
        with begin(number, *command_line) as command:
            if k and draw.random() < 0.3:  # while it reads, makes the new file, or hands out clients
                time.sleep(draw.uniform(0.2, 1.5))
                going = killed(command, path, draw)
            else:
                going = ended(command, path, number, saved(path), draw, max(1, most // (k + 1)))
        if not going:
            return "ended once, and resumed" if k else "ended by itself"
        command_line = ("resume", path)
    with begin(last, "resume", path) as command:
        command.ends_well(120)
    return "ended once, and resumed" if len(ranks) == 1 else "ended twice, and resumed twice"


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(1, 100))
def test_a_resumed_run_in_virtual_time_has_the_bits_of_an_undisturbed_one(
    seed: int, whole: dict[str, Path], tmp_path: Path, counted: Counted
) -> None:
    draw = random.Random(seed)
    name = list(VIRTUAL)[seed % len(VIRTUAL)]
    path = tmp_path / "v.h5"
    reference = whole[name]
    with counted(f"virtual clock: {name}") as told:
        words = write(tmp_path, "v", virtual(name)), path, f"checkpoint.updates={every(name)}"
        told[0] = hurt(tmp_path, draw, *words, most=SETS // 2)
        assert not differing(reference, path, but=("events",))
        with open_run(path) as run:
            assert run.status == "completed" and not run.open_ended
            assert ("resumed" in set(run.events.kind)) == ("resumed" in told[0])


@pytest.mark.parametrize("seed", amount(1, 40))
@pytest.mark.long
def test_a_resumed_run_in_real_time_is_replayed_bit_for_bit(seed: int, tmp_path: Path, counted: Counted) -> None:
    draw = random.Random(1000 + seed)
    path = tmp_path / "r.h5"
    problem = draw.choice([{**SMALL, "dtype": "float64"}, LARGE])
    reply = draw.choice(["before", "after", "deferred"])
    clock = draw.choice([REAL, {**REAL, "availability": RENEWAL}])
    more = {"clock": clock, "stop": {"time": 3.0}, "evaluate": {"every": 0.5}, "seed": seed}
    file = write(tmp_path, "r", of({**AREA, "trigger": {"every": 3}, "reply": reply}, problem, **more))
    with counted(f"real clock: AREA, reply {reply}") as told:
        told[0] = hurt(tmp_path, draw, file, path, "checkpoint.every=0.2", most=6)
        spy = replayed(path)
        assert not differing(path, tmp_path / "r-replay.h5", but=("events",))
        assert spy.gap < 1e-12 and mpifl("verify", path) == 0
        with open_run(path) as run:
            assert run.status == "completed"
            assert 2.5 < run.updates.time.iloc[-1] < 4.0
            assert run.updates.time.diff().max() < 1.5, "the time from the kill to the resume does not count"
            due = np.floor(run.evaluations.time / 0.5)[:-1]  # the last is that of the run's end
            assert (due.diff()[1:] >= 1).all(), "each evaluation once"
            if clock is not REAL:
                next_on = Renewal(**ON_AND_OFF).on_periods(len(run.clients), seed)
                on = [next_on(row.client, row.time - LATE)[0] <= row.time for row in run.updates.itertuples()]
                assert np.mean(on) > 0.9, "updates are consumed while their clients are off"
            assert run.attrs["began"] > 0 and 2.5 < run.attrs["wall_seconds"] < 4.5
            assert set(run.updates.client[run.updates.time > 2.5]) == set(run.clients.index)
