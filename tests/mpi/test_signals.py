"""A signal ends a run cleanly: the file is complete and says so, and no process remains."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mpifl import open_run
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.runfile.tables import TABLES
from mpifl.signals import REPEAT_SECONDS
from mpifl.tools.verify.run_file import check_file
from tests.faults.harness import began, replays
from tests.mpi.conftest import RUN, Command, Start, until, write
from tests.mpi.files import consumed
from tests.tiers import long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
JOB = {
    "seed": 1, "problem": {"clients": 6, "model": {"name": "quadratic", "dim": 20}},
    "algorithm": {"name": "area", "trigger": {"every": 3}}, "stop": {"time": 1e4}, "evaluate": {"updates": 10},
    "output": "s.h5",
}  # fmt: skip
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
SLOW = {"mode": "real", "delay": {"name": "fixed", "seconds": 1000}}
VIRTUAL = {"mode": "virtual", "delay": {"name": "exponential", "rate": 20}}


def closed(path: Path, cut_off: bool = False) -> bool:
    """Whether the file of an ended run was closed, whose rows must be those of its history. It must have been, except
    where cut_off: a launcher kills its ranks early, Open MPI's after 0.25 s, on any machine."""
    check_file(path)
    with open_run(path) as file:
        assert file.status == "interrupted" or (file.status == "running" and file.open_ended)
        assert cut_off or not file.open_ended
        return not file.open_ended


def read(path: Path) -> dict[str, pd.DataFrame]:
    """All tables as they are at this instant, which must be a part of a history."""
    check_file(path)
    with open_run(path) as file:
        return {name: getattr(file, name) for name in TABLES}


def assert_follows(new: dict[str, pd.DataFrame], old: dict[str, pd.DataFrame]) -> None:
    """What was there is there, as it was."""
    assert all(rows.empty or new[name].iloc[: len(rows)].equals(rows) for name, rows in old.items())


@pytest.mark.parametrize(
    ("to", "number", "ranks", "clock"),
    [
        pytest.param("launcher", signal.SIGTERM, 4, REAL, marks=pytest.mark.smoke),
        long("launcher", signal.SIGTERM, 3, SLOW),
        long("launcher", signal.SIGINT, 3, REAL),
        long("rank 0", signal.SIGTERM, 3, VIRTUAL),
        long("rank 0", signal.SIGINT, 4, REAL),
    ],
)
def test_a_signal_ends_a_run_and_leaves_a_file_that_can_be_replayed(
    start: Start, tmp_path: Path, to: str, number: signal.Signals, ranks: int, clock: dict
) -> None:
    path = tmp_path / "s.h5"
    command = start(ranks, *RUN, write(tmp_path, "signal", {**JOB, "clock": clock}))
    until(lambda: began(path) if clock is SLOW else consumed(path), command, "updates")
    os.kill(command.rank(0) if to == "rank 0" else command.process.pid, number)
    done = command.end(20)
    assert "Traceback" not in done.err, str(done)
    assert done.code in {128 + number} | ({1} if to == "launcher" else set()), str(done)  # Open MPI's own is 1
    if closed(path, cut_off=to == "launcher" and number == signal.SIGTERM):
        before = path.read_bytes()
        replays(path)
        assert path.read_bytes() == before


@pytest.mark.parametrize(("ranks", "victim"), [(4, 2), long(4, 0), long(0, 0)])
def test_a_process_is_killed(start: Start, tmp_path: Path, ranks: int, victim: int) -> None:
    """The launcher ends the other ranks; what was written stays readable. Whoever reads the file meanwhile, and after,
    finds whole rows, those that were there before among them."""
    path = tmp_path / "s.h5"
    command = start(ranks, *RUN, write(tmp_path, "killed", {**JOB, "clock": REAL}))
    until(lambda: consumed(path) >= 20, command, "updates")
    seen = read(path)
    for _ in range(20):
        time.sleep(0.05)
        assert_follows(new := read(path), seen)
        seen = new
    os.kill(command.rank(victim) if ranks else command.process.pid, signal.SIGKILL)
    done = command.end(20)
    assert done.code not in (0, 2) and "Traceback" not in done.err, str(done)
    assert_follows(read(path), seen)
    closed(path, cut_off=True)
    assert len(seen["updates"]) > 20


# -- several signals ---------------------------------------------------------------------------------------------------
TWO = [(signal.SIGTERM, signal.SIGUSR1), (signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)]


@pytest.mark.parametrize(
    ("ranks", "numbers", "between"),
    [(0, TWO[0], 0.0), long(0, TWO[1], 0.0), long(0, TWO[2], 0.3), long(3, TWO[0], 0.0), long(3, TWO[1], 0.05)],
)
def test_a_second_signal_within_a_second_is_the_first(
    start: Start, tmp_path: Path, ranks: int, numbers: tuple[signal.Signals, signal.Signals], between: float
) -> None:
    """Every rank gets both, as from a launcher that passes on what the ranks were sent as well."""
    path = tmp_path / "s.h5"
    command = start(ranks, *RUN, write(tmp_path, "twice", {**JOB, "clock": VIRTUAL}))
    until(lambda: consumed(path) >= 20, command, "updates")
    victims = [command.rank(r) for r in range(ranks)] or [command.process.pid]
    for number in numbers:
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, number)
        time.sleep(between)
    done = command.ends_well(20, 130 if numbers[0] == signal.SIGINT else 143)
    assert "race condition" not in done.err, str(done)
    assert f"to continue: mpifl resume {path.name}" in done.out, str(done)
    first = [number.name for number in numbers]  # of two that are pending together the system delivers either first
    assert closed(path)
    with open_run(path) as file:
        assert re.search("|".join(first), file.events.text.iloc[-1]), file.events.text.iloc[-1]


@pytest.fixture
def hanging(tmp_path: Path, start: Start) -> Any:
    """Starts a run whose clients compute for ever from their round 3 on; its command, once one does."""

    def begin(ranks: int, grace: float, native: bool = False, **more: Any) -> Command:
        trouble = "computes" if native else "hangs"
        algorithm = {"name": "tests.mpi.own:Failing", "at": trouble, "all": True, "trigger": {"every": 3}}
        job = {**JOB, "clock": VIRTUAL, "algorithm": algorithm, "faults": {"grace": grace}, **more}
        command = start(ranks, *RUN, write(tmp_path, "hanging", job))
        until((tmp_path / "trouble").exists, command, "a client that hangs")
        time.sleep(0.2)  # it is inside, whatever it does
        return command

    return begin


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "native"), [(0, False), (0, True), (3, False)])
def test_a_second_signal_later_ends_at_once(hanging: Any, ranks: int, native: bool) -> None:
    command = hanging(ranks, 50.0, native)
    victim = command.rank(0) if ranks else command.process.pid
    os.kill(victim, signal.SIGINT)
    time.sleep(REPEAT_SECONDS + 0.2)
    assert command.process.poll() is None
    os.kill(victim, signal.SIGINT)
    done = command.end(15 if ranks else 5)
    by_signal = "Interrupt (signal 2)" in done.out  # MPICH's launcher may end with the number of the signal
    assert done.code not in ((0,) if by_signal else (0, 2)), str(done)
    assert ranks or done.code in (130, -signal.SIGINT), str(done)
    assert "Traceback" not in done.err, str(done)


@pytest.mark.parametrize(("ranks", "native"), [long(0, False), (0, True), long(3, False), long(3, True)])
def test_a_run_ends_within_grace_of_a_signal(hanging: Any, tmp_path: Path, ranks: int, native: bool) -> None:
    """Although clients compute for ever: with all rows, and the model that belongs to them."""
    command = hanging(ranks, grace := 2.0 if ranks else 0.5, native)
    begin = time.monotonic()
    os.kill(command.rank(0) if ranks else command.process.pid, signal.SIGTERM)
    done = command.ends_well(20, 143)
    assert time.monotonic() - begin < grace + 6, str(done)
    assert closed(tmp_path / "s.h5")
    with open_run(tmp_path / "s.h5") as file:
        assert len(file.updates) >= 3
        text = " ".join(file.events.text)
    if ranks:
        assert "checkpoint 1 could not be completed: no answer for" in done.err, str(done)
    else:
        says = r"client \d did not end computing within faults.grace=0.5 s of SIGTERM"
        assert re.search(says, text), text
        assert re.search(rf"mpifl: {says}; s.h5: interrupted, \d+ updates in ", done.err), str(done)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("every", [0.5, None])
def test_the_command_of_a_run_whose_launcher_got_a_signal_continues_it(
    start: Start, tmp_path: Path, number: signal.Signals, every: float | None
) -> None:
    """From a checkpoint, or anew: a launcher may leave no time for one. No update that a checkpoint has is lost."""
    path = tmp_path / "s.h5"
    words = [*RUN, write(tmp_path, "s", {**JOB, "clock": REAL, "checkpoint": {"every": every}, "stop": {"time": 4}})]
    first = start(4, *words)
    until(lambda: len(sets(folder_of(path))) if every else consumed(path), first, "checkpoint or row")
    first.process.send_signal(number)
    first.end()
    with open_run(path) as file:
        assert file.status in ("interrupted", "running")
        rows, saved = file.updates, file.events[file.events.kind == "checkpoint"].text.tolist()
    again = start(4, *words).ends_well()
    with open_run(path) as file:
        assert file.status == "completed" and file.evaluations.time.iloc[-1] >= 4
        resumed = file.events[file.events.kind == "resumed"]
        assert ("starts anew" in again.err) == resumed.empty
        count = 0 if resumed.empty else int(resumed.updates.iloc[-1])
        assert file.updates[:count].equals(rows[:count])
        if saved:  # "2: 4 parts, 0.01 MB, 0.1 s": updates go on while it is written
            (number,) = re.findall(r"from checkpoint (\d+)", resumed.text.iloc[-1])
            assert int(number) >= int(saved[-1].partition(":")[0])
    assert (tmp_path / "s.h5.unfinished").exists() == resumed.empty
