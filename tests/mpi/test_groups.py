"""Clients that several ranks compute: bits that do not depend on how many, failures, wrong numbers of ranks."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.faults.harness import began, needs_tolerance, replays
from tests.mpi.cases import CASES, DIGITS, job
from tests.mpi.conftest import MPIFL, ROOT, Start, in_one_job, one_line, run_all, succeed, until, write
from tests.mpi.files import differing
from tests.mpi.test_virtual import METHODS
from tests.tiers import long
from tests.verified import verify_files

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]
DEADLINE = 250.0
ROWS = {**DIGITS, "batch_size": 16, "micro_batches": 12}  # 16 rows in 12 pieces of 1 or 2
TORCH = {**ROWS, "model": {"name": "torch-mlp", "hidden": [8]}, "test_split": 0.2}
NORM = {**ROWS, "batch_size": 36, "clients": 4, "model": {"name": "resnet", "norm": "batch"}}
FEW: dict[str, Any] = {"stop": {"updates": 24}, "evaluate": {"updates": 12}, "overwrite": True}
LARGE = {**ROWS, "model": {"name": "mlp", "hidden": 200}}  # a model that no frame holds


def grouped(name: str) -> dict[str, Any]:
    """The case of a method, on rows."""
    case = CASES[name]
    problem = {**ROWS, **({"test_split": 0.2} if "test_split" in case["problem"] else {})}
    algorithm = dict(case["algorithm"])
    if isinstance(algorithm.get("cohort"), int):
        algorithm["cohort"] = min(algorithm["cohort"], 5)
    return {**case, "problem": problem, "algorithm": algorithm, **FEW}


NUMPY = {CASES[name]["algorithm"]["name"]: grouped(name) for name in METHODS}
MODULES = {
    "torch-area": job({"name": "area", "step_size": 1, "trigger": {"every": 3}}, TORCH, **FEW),
    "torch-personal": job({"name": "apfl", "local_steps": 2}, {**TORCH, "dtype": "float64"}, **FEW),
    "torch-scaffold": job({"name": "scaffold", "cohort": 4, "local_epochs": 1}, TORCH, **FEW),
    "torch-svrg": job({"name": "fedavg", "local_steps": 2, "solver": "svrg"}, TORCH, **FEW),
    "torch-adam": job(
        {"name": "fedbuff", "local_steps": 2, "solver": {"name": "torch", "optimizer": "Adam", "state": "kept"}},
        TORCH, **FEW,
    ),
    "batch-norm": job({"name": "fedavg", "local_steps": 2}, NORM, **{**FEW, "stop": {"updates": 8}}),
    "dropout": job({"name": "fedprox", "local_steps": 2}, {"entry": "tests.mpi.group_problems:dropout", **{
        key: ROWS[key] for key in ("batch_size", "micro_batches")}}, **FEW),
    "augmented": job(
        {"name": "fedavg", "local_steps": 2},
        {"entry": "tests.problems.test_row_draws:problem", "batch_size": 4, "micro_batches": 4}, **FEW,
    ),
}  # fmt: skip
LARGE_MODEL = job({"name": "fedbuff", "local_steps": 2}, LARGE, **FEW)
SHARDED = {"entry": "tests.own_clients:quadratics", "options": {"kind": "ShardedSite", "dim": 20_001}}
PARTS = job({"name": "fedbuff", "trigger": {"every": 3}}, SHARDED, **FEW)
FAST = {name: NUMPY[name] for name in ("area", "scaffold")} | {"large": LARGE_MODEL, "sharded": PARTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield (folder := tmp_path_factory.mktemp("groups"))
    verify_files(folder)


@pytest.mark.parametrize(
    ("cases", "counts"),  # (ranks, ranks per client)
    [
        pytest.param(FAST, [(5, 2)], marks=pytest.mark.smoke),
        long(NUMPY, [(5, 2), (4, 3)]),
        long(FAST, [(9, 4), (3, 1)]),
        long(MODULES, [(5, 2), (5, 4), (2, 1)]),
    ],
    ids=["few", "numpy", "four", "torch"],
)
def test_the_bits_do_not_depend_on_the_ranks_of_a_client(
    folder: Path, cases: dict[str, Any], counts: list[tuple[int, int]]
) -> None:
    alone = run_all(folder / "alone", 0, cases, DEADLINE)
    for ranks, g in counts:
        again = run_all(folder / f"on-{ranks}-{g}", ranks, cases, DEADLINE, f"ranks_per_client={g}")
        wrong = {name: differing(alone / f"{name}.h5", again / f"{name}.h5") for name in cases}
        assert not {name: what for name, what in wrong.items() if what}, (ranks, g)


@pytest.mark.long
def test_a_plain_sum_has_other_bits(run: Start, folder: Path, tmp_path: Path) -> None:
    """What the test above notices: each rank adds its gradients in order, and MPI_Allreduce the ranks' sums."""
    alone = run_all(folder / "tree", 0, {"large": LARGE_MODEL}, DEADLINE)
    file = write(tmp_path, "large", LARGE_MODEL)
    run(5, "-m", "tests.mpi.plain_sum", file, "output=plain.h5", "ranks_per_client=4", code=0)
    run(5, *MPIFL, "run", file, "output=ours.h5", "ranks_per_client=4", code=0)
    assert not differing(alone / "large.h5", tmp_path / "ours.h5")
    assert "model/x" in differing(alone / "large.h5", tmp_path / "plain.h5")


@pytest.mark.long
def test_resumed_and_replayed_with_other_groups(folder: Path) -> None:
    """A run is resumed with other ranks a client, and a run in real time replayed on one process and on groups."""
    saved = {**NUMPY["scaffold"], "checkpoint": {"end": True}}
    whole = run_all(folder / "whole", 0, {"s": {**NUMPY["scaffold"], "stop": {"updates": 48}}}, DEADLINE)
    (here := folder / "part").mkdir()
    succeed(here, 5, [["run", str(write(here, "s", saved)), "output=s.h5", "ranks_per_client=2"]], DEADLINE)
    succeed(here, 4, [["resume", "s.h5", "stop.updates=36", "ranks_per_client=3"]], DEADLINE)
    succeed(here, 0, [["resume", "s.h5", "stop.updates=48"]], DEADLINE)
    assert not differing(whole / "s.h5", here / "s.h5", but=("events",))
    real = {**LARGE_MODEL, "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}}
    succeed(here, 5, [["run", str(write(here, "r", real)), "output=r.h5", "ranks_per_client=4"]], DEADLINE)
    succeed(here, 0, [["replay", "r.h5", "output=r-1.h5"]], DEADLINE)
    succeed(here, 5, [["replay", "r.h5", "output=r-2.h5", "ranks_per_client=2"]], DEADLINE)
    for again in ("r-1.h5", "r-2.h5"):
        assert not differing(here / "r.h5", here / again, but=("events",))


# -- wrong numbers of ranks --------------------------------------------------------------------------------------------
WRONG = [
    (
        "run",
        ["ranks_per_client=3"],
        "the other 4 ranks cannot be divided into groups of 3; expected 2 or 4; or start 4 or 7 ranks",
    ),
    (
        "check",
        ["ranks_per_client=3"],
        "the other 4 ranks cannot be divided into groups of 3; expected 2 or 4; or start 4 or 7 ranks",
    ),
    (
        "run",
        ["ranks_per_client=12"],
        "the other 4 ranks cannot be divided into groups of 12; expected 4; or start 13 ranks",
    ),
    ("run", ["ranks_per_client=5"], "equally many of the problem.micro_batches=12; expected 4 or 6; or set"),
    ("run", ["ranks_per_client=2", "problem={clients: 4, model: quadratic}"], "problem.micro_batches=1"),
]


def test_wrong_numbers_of_ranks_are_one_line(tmp_path: Path) -> None:
    """On all ranks, before any work; `mpifl check` prints the layout of a right one."""
    file = str(write(tmp_path, "w", NUMPY["scaffold"]))
    commands = [[command, file, *words] for command, words, _ in WRONG]
    *wrong, right = in_one_job(tmp_path, 5, [*commands, ["check", file, "ranks_per_client=2"]])
    for (_, _, says), reply in zip(WRONG, wrong, strict=True):
        assert one_line(reply, says), reply
    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    assert f"# ranks: 0 on {host}, the server; 2 groups: 1-2 on {host}, 3-4 on {host}" in right.out
    assert "3, 5, 7, ..." in right.out and set(right.codes) == {0}


# -- failures ----------------------------------------------------------------------------------------------------------
REAL: dict[str, Any] = {
    "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 20}},
    "stop": {"time": 3.0}, "ranks_per_client": 2, "output": "t.h5",
}  # fmt: skip


def troubled(trouble: str = "", rank: int = 0, **more: Any) -> dict[str, Any]:
    """A job whose gradients make trouble on one rank (`group_problems.Troubled`)."""
    model = {"name": "tests.mpi.group_problems:Troubled", "trouble": trouble, "rank": rank}
    problem = {**ROWS, "clients": 6, "model": model, "micro_batches": 4}
    return job({"name": "fedbuff", "trigger": {"every": 3}}, problem, **{**REAL, **more})


@pytest.mark.long
@pytest.mark.parametrize("policy", ["freeze", "rehost", "stop"])
def test_a_member_raises(start: Start, tmp_path: Path, policy: str) -> None:
    """What one rank of a client raises is the client's error, once; the ranks of its group go on."""
    file = write(tmp_path, "t", troubled("raises", 2, faults={"lost": policy}))
    done = start(7, *MPIFL, "run", file)
    until(lambda: began(tmp_path / "t.h5"), done, "the start")
    (tmp_path / "raises").touch()
    done.end(40)
    assert done.code == (3 if policy == "stop" else 0) and "trouble on rank 2" in done.err, str(done)
    if policy != "stop":
        with open_run(tmp_path / "t.h5") as found:
            kinds = {"freeze": "lost", "rehost": "rehosted"}
            events = found.events[found.events.kind == kinds[policy]]
            assert found.status == "completed" and len(events) and events.text.str.contains("raised on rank 2").all()


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "victim", "policy"),
    [
        ("troubled", 2, "freeze"), ("troubled", 2, "rehost"), ("troubled", 4, "stop"), ("troubled", 1, "rehost"),
        ("troubled", 3, "freeze"), ("own", 2, "freeze"), ("own", 2, "rehost"), ("own", 4, "stop"),
        ("sharded", 2, "freeze"), ("sharded", 1, "rehost"), ("sharded", 4, "rehost"), ("sharded", 4, "stop"),
    ],
)  # fmt: skip
def test_a_rank_of_a_group_dies(start: Start, tmp_path: Path, make: str, victim: int, policy: str) -> None:
    """Leader or member: the clients of the group are lost once, move to another group, or the run ends."""
    needs_tolerance()
    file = write(
        tmp_path, "t", {"own": own, "sharded": sharded, "troubled": troubled}[make](**REAL, faults={"lost": policy})
    )
    command = start(7, *MPIFL, "run", file, tolerant=True)
    until(lambda: began(tmp_path / "t.h5"), command, "the start")
    os.kill(command.rank(victim), signal.SIGKILL)
    command.ends_well(40, 3 if policy == "stop" else 0)
    leader = victim - 1 + victim % 2
    if policy == "stop":
        assert f"was lost: rank {leader} died" in command.err, str(command)
        return
    with open_run(tmp_path / "t.h5") as run:
        home = set(run.clients.index[run.clients["rank"] == leader])
        events = run.events[run.events.kind == {"freeze": "lost", "rehost": "rehosted"}[policy]]
        assert run.status == "completed" and set(events.client) == home and len(events) == len(home), str(command)
        if policy == "rehost":
            assert (run.clients.state == "live").all() and home & set(run.updates[run.updates.time > 2].client)
    if victim != leader:
        assert f"rank {leader} ends: rank {victim} of its group died" in command.err
    if policy == "freeze" and make != "own":  # whose sums are MPI's
        replays(tmp_path / "t.h5")


@pytest.mark.long
def test_a_member_hangs(start: Start, tmp_path: Path) -> None:
    """With patience its client is lost, and the job ends."""
    needs_tolerance()
    file = write(tmp_path, "t", troubled("hangs", 2, faults={"patience": 4}, stop={"time": 12.0}))
    command = start(7, *MPIFL, "run", file, tolerant=True)
    until(lambda: began(tmp_path / "t.h5"), command, "the start")
    (tmp_path / "hangs").touch()
    command.ends_well(60, 0)
    with open_run(tmp_path / "t.h5") as found:
        assert found.status == "completed" and set(found.clients.index[found.clients.state == "lost"]) == {0, 3}


@pytest.mark.long
def test_a_signal_ends_a_run_of_groups(start: Start, tmp_path: Path) -> None:
    """It is saved, and resumes with one rank a client."""
    file = write(tmp_path, "t", troubled(stop={"updates": 4000}))
    command = start(5, *MPIFL, "run", file)
    until(lambda: began(tmp_path / "t.h5"), command, "the start")
    os.kill(command.rank(0), signal.SIGTERM)
    command.ends_well(40, 143)
    again = start(3, *MPIFL, "resume", "t.h5", "ranks_per_client=1", "stop.updates=4010", "--trust")
    again.ends_well(60, 0)
    with open_run(tmp_path / "t.h5") as run:
        assert run.status == "completed" and json.loads(run.attrs["hosts"])


# -- training loops of one's own ---------------------------------------------------------------------------------------
def own(trouble: str = "", **more: Any) -> dict[str, Any]:
    """A job whose clients have custom training loops (`group_problems.Site`)."""
    problem = {"entry": "tests.mpi.group_problems:sites", "options": {"trouble": trouble}, "dtype": "float64"}
    return job(
        {"name": "fedbuff", "trigger": {"every": 2}}, problem, **{"stop": {"updates": 40}, "output": "o.h5", **more}
    )


def sharded(**more: Any) -> dict[str, Any]:
    """A job whose clients are sharded over the ranks of their groups."""
    return {**PARTS, "evaluate": {"updates": 20}, **more}


@pytest.mark.long
def test_all_ranks_of_a_group_run_a_training_loop(run: Start, folder: Path, tmp_path: Path) -> None:
    """They have a communicator of their own, and after a resume the state that was saved on the first one."""
    alone = run_all(folder / "own", 0, {"o": own()}, DEADLINE)
    file = write(tmp_path, "o", own(stop={"updates": 20}, checkpoint={"end": True}))
    run(5, *MPIFL, "run", file, "ranks_per_client=2", code=0)
    run(4, *MPIFL, "resume", "o.h5", "--trust", "stop.updates=40", "ranks_per_client=3", code=0)
    with open_run(alone / "o.h5") as one, open_run(tmp_path / "o.h5") as other:
        assert other.model == pytest.approx(one.model, rel=1e-12)
        assert other.updates.client.tolist() == one.updates.client.tolist()


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("raises", "MPI_ERR_PROC_FAILED|one member alone|died"),
        ("raises, no collective", "ValueError: one member alone"),
        ("unlike", "fit returned another model or number of steps on rank 2 than on rank 1"),
        ("hangs", "gave no answer for 4 s"),
        ("another communicator", "gave no answer for 4 s"),
    ],
)
def test_a_loop_that_makes_trouble_on_one_member(run: Start, tmp_path: Path, trouble: str, says: str) -> None:
    """Its clients are lost one by one, with a line each, and the run ends; none waits without end."""
    needs_tolerance()
    file = write(tmp_path, "o", own(trouble, faults={"patience": 4}))
    done = run(3, *MPIFL, "run", file, "ranks_per_client=2", tolerant=True, deadline=90)
    assert done.code == 3 and re.search(says, done.err), str(done)
    with open_run(tmp_path / "o.h5") as found:
        assert found.status == "failed" and (found.clients.state == "lost").all()


@pytest.mark.long
@pytest.mark.parametrize("g", [2, 4])
@pytest.mark.parametrize("name", ["fsdp", "sharded"])
def test_fsdp(run: Start, tmp_path: Path, name: str, g: int) -> None:
    """The examples on two groups, or one: each rank has a part of the parameters; the loss is that of one process."""
    pytest.importorskip("torch")
    words = ["run", str(ROOT / "examples" / "own_training" / f"{name}.yaml"), "stop.updates=8"]
    run(0, *MPIFL, *words, "output=one.h5", code=0)
    run(5, *MPIFL, *words, "output=f.h5", f"ranks_per_client={g}", deadline=200, code=0)
    with open_run(tmp_path / "one.h5") as one, open_run(tmp_path / "f.h5") as found:
        assert found.evaluations.train_loss.tolist() == pytest.approx(one.evaluations.train_loss.tolist(), rel=1e-4)
        assert found.evaluations.train_loss.iloc[-1] < found.evaluations.train_loss.iloc[0]
