"""Two hosts, and a network between them that delays, reorders and loses, is cut for a while, or for good.

| what | what becomes of the run |
|---|---|
| frames 10 to 40 ms late, out of order, 2 % lost | goes on: TCP brings all of it, in order |
| cut for some seconds | goes on, later by as long again: TCP sends again; nothing comes twice |
| cut for good | goes on without that host's clients, given up after `faults.patience`, and completes its file |
| cut for good, and `mpirun` notices | Open MPI cannot go on without a daemon: it ends the job; resume takes over |

`mpirun` notices by the keep-alive of its own connections: after 300 s and 9 probes 20 s apart, unless told otherwise.
Until then it does not end either, though the run is over; its exit code then says nothing of the run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.faults.harness import FULL, Counted, amount, began, counting, needs_tolerance, replays, saved
from tests.faults.network import HOSTS, Wire, missing
from tests.faults.spy import replayed
from tests.mpi.cases import CASES, job
from tests.mpi.conftest import TOLERANT, Command, mpiexec, mpifl, until, write

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not FULL, reason="two network namespaces: in the full pass, make faults"),
    pytest.mark.skipif(FULL and bool(missing()), reason=f"no two hosts here: {missing()}"),
]
RANKS = 3  # a host
LENGTH = 5.0  # s
LONGER = 12.0  # s; TCP waits longer and longer before it sends again, after a cut as long as that again
PATIENCE = 4  # s, on a machine that is busy with other things too
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
METHODS = ["area-large", "feddane", "fedbuff"]

counted = counting(6, "network")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Wire]:
    needs_tolerance()
    made = Wire(tmp_path)
    try:
        made.up()
        yield made
    finally:
        made.down()


def start(hosts: Wire, folder: Path, file: Path, notices: int = 300, btl: str = "tcp,self") -> Command:
    """A run on two hosts, fault tolerance on. notices: s until the launcher misses one; btl: what MPI may use."""
    alive = ("time", notices), ("intvl", 1), ("probes", 2)
    launcher = [
        str(mpiexec()), *TOLERANT, "--prtemca", "plm_ssh_agent", str(hosts.agent), "--mca", "btl", btl,
        "--host", ",".join(f"{name}:{RANKS}" for name in HOSTS), "--map-by", f"ppr:{RANKS}:node:OVERSUBSCRIBE",
        "--bind-to", "none", "-n", str(2 * RANKS),
        *(word for key, value in alive for word in ("--prtemca", f"oob_tcp_keepalive_{key}", str(value))),
    ]  # fmt: skip
    return Command([*hosts.on_first, *launcher, sys.executable, "-m", "mpifl", "run", str(file)], folder).start()


def written(folder: Path, name: str, seed: int, length: float = LENGTH, **more: Any) -> Path:
    case = {**CASES[name], "problem": {**CASES[name]["problem"], "clients": 10}}
    case["algorithm"] = {key: value for key, value in case["algorithm"].items() if key != "cohort"}  # all in each round
    every = {"clock": REAL, "stop": {"time": length}, "evaluate": {"every": 0.5}, "output": "n.h5", "seed": seed}
    return write(folder, "n", {**case, **every, **more})


def check_whole(path: Path, name: str) -> None:
    """All that is recorded gives the model, bit for bit; for AREA the sums add up."""
    replays(path)
    if name == "area-large":
        path.with_name("n-replay.h5").unlink()
        assert replayed(path).gap < 1e-12


def ended(command: Command) -> Command:
    """Waits for the launcher, and then for the other host's ranks, which have to notice by themselves."""
    command.process.wait(90)
    end = time.monotonic() + 30
    while command.processes() and time.monotonic() < end:
        time.sleep(0.1)
    return command.end(10)


HOW: dict[str, tuple[range, dict[str, Any], str]] = {  # seeds, options of the job, what becomes of the run
    "late, out of order, lost": (amount(1, 10), {}, "went on"),
    "cut for a while": (amount(1, 10), {}, "went on"),
    "cut for good": (amount(1, 6), {"faults": {"patience": PATIENCE}}, "went on without the other host's clients"),
    "cut for good, and noticed": (amount(1, 6), {"checkpoint": {"every": 0.3}}, "ended, and resumed on one host"),
}


@pytest.mark.parametrize(("how", "seed"), [(how, seed) for how, (seeds, *_) in HOW.items() for seed in seeds])
def test_a_run_over_a_bad_network_goes_on_or_is_resumed(
    how: str, seed: int, hosts: Wire, tmp_path: Path, counted: Counted
) -> None:
    """Where it is cut for good, the launcher misses its daemon on the other host when the run is long over, or while it
    goes on, and ends all ranks, whatever they could bear."""
    draw, name, path = random.Random(seed), METHODS[seed % len(METHODS)], tmp_path / "n.h5"
    (_, more, outcome), noticed, for_good = HOW[how], "noticed" in how, "good" in how
    with counted(f"{how}: {name}") as told:
        file = written(tmp_path, name, seed, LENGTH if noticed else LONGER, **more)
        command = start(hosts, tmp_path, file, notices=2 if noticed else 20 if for_good else 300)
        until(lambda: saved(path) > 1 if noticed else began(path), command, "checkpoints, or the start")
        time.sleep(draw.uniform(0, 0.5))
        hosts.set(delay=0.01, jitter=0.03, loss=0.02) if how.startswith("late") else hosts.set(loss=1.0)
        if how == "cut for a while":
            time.sleep(draw.uniform(0.5, 3.0))
            hosts.set()
        done = ended(command) if for_good else command.ends_well(60)
        with open_run(path) as run:
            assert (run.status == "completed") != noticed, str(done)
            assert len(set(run.attrs["hosts"].strip("[]").split(", "))) == 2
            far = run.clients["rank"] >= RANKS
            here = set(run.clients.index[~far] if for_good else run.clients.index)
            if not noticed:
                assert set(run.clients.index[run.clients.state == "live"]) == here, str(done)
                assert set(run.updates[run.updates.time > 0.7 * LONGER].client) == here, str(done)
        if noticed:
            assert mpifl("resume", path) == 0
            with open_run(path) as run:
                assert run.status == "completed" and set(run.clients.state) == {"live"}
        check_whole(path, name)
        told[0] = outcome


@pytest.mark.parametrize("client", [1, 3])
def test_a_rank_that_exits_on_either_host(hosts: Wire, tmp_path: Path, client: int) -> None:
    """Ranks of one host have shared memory, as usual. Ranks 0 to 2 are on the first host, rank 4 on the other."""
    command = start(hosts, tmp_path, faulty(tmp_path, "exits in C", client=client), btl="sm,tcp,self")
    done = command.end(60)
    assert done.code == 1 and f"rank {client + 1} died, with 2 clients" in done.err, str(done)
    with open_run(tmp_path / "n.h5") as run:
        assert run.status == "completed" and run.clients.state[client] == "lost"


def test_clients_of_both_hosts_end_without_the_server(hosts: Wire, tmp_path: Path) -> None:
    command = start(hosts, tmp_path, faulty(tmp_path, "hangs", all=True), btl="sm,tcp,self")
    until((tmp_path / "trouble").exists, command, "trouble")
    os.kill(command.rank(0), signal.SIGKILL)
    done = command.end(60)
    assert done.code == 3 and done.err.count("ends: rank 0 died") == 5, str(done)


def faulty(folder: Path, trouble: str, **more: Any) -> Path:
    algorithm = {"name": "tests.mpi.own:Failing", "at": trouble, "trigger": {"every": 3}, **more}
    problem = {"clients": 10, "model": {"name": "quadratic", "dim": 20}}
    return write(folder, "n", job(algorithm, problem, clock=REAL, stop={"updates": 200}, output="n.h5"))
