"""Clients that several ranks compute, or of which each has a part: bits that do not depend on how many, failures."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import algorithms, open_run
from mpifl.algorithms.base import NEEDS
from mpifl.config.registry import FAMILIES
from tests.faults.harness import began, needs_tolerance, replays
from tests.mpi.cases import CASES, DIGITS, job
from tests.mpi.conftest import MPIFL, ROOT, Command, Start, all_refused, in_one_job, run_all, until, write
from tests.mpi.files import all_differences, differing
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


def sharded(dim: int = 13, **options: Any) -> dict[str, Any]:
    """Clients of which each rank has a part; 13 numbers are cut into 7 and 6, or 4, 4, 4 and 1."""
    return {"entry": "tests.own_clients:quadratics", "options": {"kind": "ShardedSite", "dim": dim, **options}}


def fits(name: str) -> bool:
    """Whether the method sends one vector each way, and keeps none on its clients."""
    cls = FAMILIES["algorithm"].find(name)
    met = all("adds_term" in NEEDS[need] for need, option in cls().client_needs().items() if not option)
    return met and {cls.vectors_up, cls.min_vectors_up, cls.vectors_down} == {1} and not vars(cls().init_client(0, 0))


def sharded_case(name: str) -> dict[str, Any]:
    """A job of the method, on clients that are sharded."""
    found = next(case for case in CASES.values() if case["algorithm"]["name"] == name)
    cohort = {"cohort": 4} if found["algorithm"].get("cohort", 0) > 7 else {}
    algorithm = {key: value for key, value in found["algorithm"].items() if key != "solver"}
    return job({**algorithm, **cohort}, sharded(), clock=found["clock"], **FEW)


NUMPY = {CASES[name]["algorithm"]["name"]: grouped(name) for name in METHODS}
PARTS = {name: sharded_case(name) for name in [*algorithms.names(), *algorithms.ALIASES] if fits(name)}
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
LARGE_PARTS = job({"name": "fedbuff", "trigger": {"every": 3}, "local_steps": 2}, sharded(20_001), **FEW)
FAST = {name: NUMPY[name] for name in ("area", "scaffold")} | {"large": LARGE_MODEL, "sharded": LARGE_PARTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield (folder := tmp_path_factory.mktemp("groups"))
    verify_files(folder)


@pytest.mark.parametrize(
    ("cases", "counts"),  # (ranks, ranks per client)
    [
        pytest.param(FAST, [(5, 2)], marks=pytest.mark.smoke),
        long(NUMPY, [(5, 2), (4, 3)]),
        long(FAST, [(9, 4), (3, 1), (4, 3)]),
        long(MODULES, [(5, 2), (5, 4), (2, 1)]),
        long(PARTS, [(5, 2), (5, 4)]),
    ],
    ids=["few", "numpy", "four", "torch", "sharded"],
)
def test_the_bits_do_not_depend_on_the_ranks_of_a_client(
    folder: Path, cases: dict[str, Any], counts: list[tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    """Norms of updates included."""
    assert len(PARTS) > 10
    here = folder / request.node.callspec.id
    here.mkdir()
    alone = run_all(here / "alone", 0, cases, DEADLINE)
    for ranks, g in counts:
        again = run_all(here / f"on-{ranks}-{g}", ranks, cases, DEADLINE, f"ranks_per_client={g}")
        assert not all_differences(alone, again, cases), (ranks, g)


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
@pytest.mark.parametrize(
    ("saved", "real"), [(NUMPY["scaffold"], LARGE_MODEL), (LARGE_PARTS, LARGE_PARTS)], ids=["whole", "sharded"]
)
def test_resumed_and_replayed_with_other_groups(tmp_path: Path, saved: dict[str, Any], real: dict[str, Any]) -> None:
    """A run is resumed with other ranks a client, and a run in real time replayed on one process and on groups."""

    def command(ranks: int, *words: str | Path) -> None:
        (reply,) = in_one_job(tmp_path, ranks, [[*map(str, words)]], DEADLINE)
        assert set(reply.codes) == {0}, reply

    command(0, "run", write(tmp_path, "w", {**saved, "stop": {"updates": 48}}), "output=w.h5")
    part = {**saved, "checkpoint": {"end": True}, "stop": {"updates": 12}}
    command(5, "run", write(tmp_path, "s", part), "output=s.h5", "ranks_per_client=2")
    for ranks, g, updates in ((5, 4, 24), (0, 1, 36), (4, 3, 48)):
        command(ranks, "resume", "s.h5", "--trust", f"stop.updates={updates}", f"ranks_per_client={g}")
    assert not differing(tmp_path / "w.h5", tmp_path / "s.h5", but=("events",))
    timed = {**real, "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}}
    command(5, "run", write(tmp_path, "r", timed), "output=r.h5", "ranks_per_client=4")
    command(0, "replay", "r.h5", "--trust", "output=r-1.h5")
    command(5, "replay", "r.h5", "--trust", "output=r-2.h5", "ranks_per_client=2")
    for again in ("r-1.h5", "r-2.h5"):
        assert not differing(tmp_path / "r.h5", tmp_path / again, but=("events",))


@pytest.mark.long
@pytest.mark.parametrize("g", [2, 4])
def test_each_rank_receives_and_sends_its_part_alone(run: Start, tmp_path: Path, g: int) -> None:
    """d/g numbers of 4 bytes for each message and update: of 8 rounds of 3 clients, and of the one that is dropped."""
    d = 20_000
    case = job({"name": "fedavg", "local_steps": 2}, sharded(d, clients=3), **FEW, output="b.h5", ranks_per_client=g)
    run(1 + g, "-m", "tests.mpi.counted", write(tmp_path, "b", case), code=0)
    server, *members = json.loads((tmp_path / "bytes.json").read_text())
    part = d // g * 4
    assert server == [0, 0] and [received for received, _ in members] == [27 * part] * g
    ((sent, remainder),) = {divmod(sent, part) for _, sent in members}
    assert 24 <= sent <= 27 and not remainder
    with open_run(tmp_path / "b.h5") as found:  # as where one rank has all, with headers
        assert set(found.updates.bytes) == {128 + 4 * d}


# -- wrong numbers of ranks --------------------------------------------------------------------------------------------
DIVIDED = "the other 4 ranks cannot be divided into groups of"
WRONG = [
    ("run", ["ranks_per_client=3"], f"{DIVIDED} 3; expected 2 or 4; or start 4 or 7 ranks"),
    ("check", ["ranks_per_client=3"], f"{DIVIDED} 3; expected 2 or 4; or start 4 or 7 ranks"),
    ("run", ["ranks_per_client=12"], f"{DIVIDED} 12; expected 4; or start 13 ranks"),
    ("run", ["ranks_per_client=5"], "equally many of the problem.micro_batches=12; expected 4 or 6; or set"),
    ("run", ["ranks_per_client=2", "problem={clients: 4, model: quadratic}"], "problem.micro_batches=1"),
]


def test_wrong_numbers_of_ranks_are_one_line(tmp_path: Path) -> None:
    """On all ranks, before any work; `mpifl check` prints the layout of a right one."""
    file = str(write(tmp_path, "w", NUMPY["scaffold"]))
    wrong = [([command, file, *words], says) for command, words, says in WRONG]
    (right,) = all_refused(tmp_path, 5, wrong, ["check", file, "ranks_per_client=2"])
    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    assert f"# ranks: 0 on {host}, the server; 2 groups: 1-2 on {host}, 3-4 on {host}" in right.out
    assert "3, 5, 7, ..." in right.out and set(right.codes) == {0}


# -- failures ----------------------------------------------------------------------------------------------------------
REAL: dict[str, Any] = {
    "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 20}},
    "stop": {"time": 3.0}, "ranks_per_client": 2, "output": "t.h5",
}  # fmt: skip
KINDS = {"freeze": "lost", "rehost": "rehosted"}


def troubled(trouble: str = "", rank: int = 0, **more: Any) -> dict[str, Any]:
    """A job whose gradients make trouble on one rank (`group_problems.Troubled`)."""
    model = {"name": "tests.mpi.group_problems:Troubled", "trouble": trouble, "rank": rank}
    problem = {**ROWS, "clients": 6, "model": model, "micro_batches": 4}
    return job({"name": "fedbuff", "trigger": {"every": 3}}, problem, **{**REAL, **more})


def own(trouble: str = "", **more: Any) -> dict[str, Any]:
    """A job whose clients have custom training loops (`group_problems.Site`)."""
    problem = {"entry": "tests.mpi.group_problems:sites", "options": {"trouble": trouble}, "dtype": "float64"}
    more = {"stop": {"updates": 40}, "output": "o.h5", **more}
    return job({"name": "fedbuff", "trigger": {"every": 2}}, problem, **more)


def begun(start: Start, folder: Path, case: dict[str, Any], ranks: int = 7, **options: bool) -> Command:
    """Starts a run; the command, once the clock runs."""
    command = start(ranks, *MPIFL, "run", write(folder, "t", case), **options)
    until(lambda: began(folder / "t.h5"), command, "the start")
    return command


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "policy", "says"),
    [
        ("raises", "freeze", "raised on rank 2"), ("raises", "rehost", "raised on rank 2"), ("raises", "stop", ""),
        ("hangs", "freeze", "gave no answer for 4 s"),
    ],
)  # fmt: skip
def test_a_member_raises_or_hangs(start: Start, tmp_path: Path, trouble: str, policy: str, says: str) -> None:
    """What one rank of a client raises is the client's error, once; the ranks of its group go on. With patience the
    clients of a group that hangs are lost, and the job ends."""
    if hangs := trouble == "hangs":
        needs_tolerance()
    more = {"stop": {"time": 12.0 if hangs else 3.0}, "faults": {"lost": policy, "patience": 4 if hangs else None}}
    done = begun(start, tmp_path, troubled(trouble, 2, **more), tolerant=hangs)
    (tmp_path / trouble).touch()
    done.end(60)
    assert done.code == (3 if policy == "stop" else 0) and (hangs or "trouble on rank 2" in done.err), str(done)
    if policy != "stop":
        with open_run(tmp_path / "t.h5") as found:
            events = found.events[found.events.kind == KINDS[policy]]
            assert found.status == "completed" and len(events) and events.text.str.contains(says).all()
            assert not hangs or set(events.client) == {0, 3}


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "victim", "policy"),
    [
        ("troubled", 2, "freeze"), ("troubled", 4, "stop"), ("troubled", 1, "rehost"), ("troubled", 3, "freeze"),
        ("own", 2, "freeze"), ("own", 2, "rehost"), ("sharded", 2, "freeze"), ("sharded", 1, "rehost"),
        ("sharded", 4, "rehost"), ("sharded", 4, "stop"),
    ],
)  # fmt: skip
def test_a_rank_of_a_group_dies(start: Start, tmp_path: Path, make: str, victim: int, policy: str) -> None:
    """Leader or member: the clients of the group are lost once, move to another group, or the run ends."""
    needs_tolerance()
    more = {**REAL, "faults": {"lost": policy}}
    case = {**LARGE_PARTS, **more} if make == "sharded" else {"own": own, "troubled": troubled}[make](**more)
    command = begun(start, tmp_path, case, tolerant=True)
    os.kill(command.rank(victim), signal.SIGKILL)
    command.ends_well(40, 3 if policy == "stop" else 0)
    leader = victim - 1 + victim % 2
    if policy == "stop":
        assert f"was lost: rank {leader} died" in command.err, str(command)
        return
    with open_run(tmp_path / "t.h5") as run:
        home = set(run.clients.index[run.clients["rank"] == leader])
        events = run.events[run.events.kind == KINDS[policy]]
        assert run.status == "completed" and set(events.client) == home and len(events) == len(home), str(command)
        if policy == "rehost":
            assert (run.clients.state == "live").all() and home & set(run.updates[run.updates.time > 2].client)
    if victim != leader:
        assert f"rank {leader} ends: rank {victim} of its group died" in command.err
    if policy == "freeze" and make != "own":  # whose sums are MPI's
        replays(tmp_path / "t.h5")


@pytest.mark.long
@pytest.mark.parametrize("rank", [3, 4])
def test_a_client_moves_to_a_group_of_which_one_rank_cannot_make_it(start: Start, tmp_path: Path, rank: int) -> None:
    """It is an error of that client, which is moved on or lost; the group goes on with its own clients."""
    needs_tolerance()
    case = troubled("cannot be made", rank, faults={"lost": "rehost"})
    command = begun(start, tmp_path, case, tolerant=True)
    (tmp_path / "cannot be made").touch()
    os.kill(command.rank(2), signal.SIGKILL)
    command.end(40)
    assert command.code == 0, str(command)
    with open_run(tmp_path / "t.h5") as run:
        moved, last = {0, 3}, run.updates[run.updates.time > 2]
        assert run.status == "completed" and set(last.client) >= {1, 2, 4, 5}
        texts = run.events.text[run.events.client.isin(moved)].tolist()
        assert any(f"raised on rank {rank}" in text and "trouble on rank" in text for text in texts), texts


@pytest.mark.long
def test_a_signal_ends_a_run_of_groups(start: Start, tmp_path: Path) -> None:
    """It is saved, and resumes with one rank a client."""
    command = begun(start, tmp_path, troubled(stop={"updates": 4000}), 5)
    os.kill(command.rank(0), signal.SIGTERM)
    command.ends_well(40, 143)
    start(3, *MPIFL, "resume", "t.h5", "ranks_per_client=1", "stop.updates=4010", "--trust").ends_well()
    with open_run(tmp_path / "t.h5") as run:
        assert run.status == "completed" and json.loads(run.attrs["hosts"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("raises", "ValueError: one member alone"),
        ("nan", "client 1: fit returned a y that is not finite"),
        ("length", "client 1: fit returned a y that is float32 of shape (5,), not float32 of shape (6,)"),
        ("steps", "fit returned another model or number of steps on rank 2 than on rank 1"),
    ],
)
def test_what_goes_wrong_with_a_part_is_an_error_of_its_client(tmp_path: Path, trouble: str, says: str) -> None:
    """Client 1 is lost; the others go on, their parts of later updates not mistaken for those of this one."""
    algorithm = {"name": "fedbuff", "trigger": {"every": 3}}
    case = job(algorithm, sharded(12, trouble=trouble), **FEW, output="t.h5", ranks_per_client=2)
    (reply,) = in_one_job(tmp_path, 3, [["run", str(write(tmp_path, "t", case))]])
    assert set(reply.codes) == {0}, reply
    with open_run(tmp_path / "t.h5") as found:
        assert found.clients.state.tolist() == ["live", "lost", *["live"] * 5]
        (text,) = found.events.text[found.events.kind == "lost"]
        assert says in text and len(found.updates) == 24
    verify_files(tmp_path)


# -- training loops of one's own ---------------------------------------------------------------------------------------
@pytest.mark.long
def test_all_ranks_of_a_group_run_a_training_loop(run: Start, tmp_path: Path) -> None:
    """They have a communicator of their own, and after a resume the state that was saved on the first one."""
    run_all(tmp_path, 0, {"alone": own()}, DEADLINE)
    file = write(tmp_path, "o", own(stop={"updates": 20}, checkpoint={"end": True}))
    run(5, *MPIFL, "run", file, "ranks_per_client=2", code=0)
    run(4, *MPIFL, "resume", "o.h5", "--trust", "stop.updates=40", "ranks_per_client=3", code=0)
    with open_run(tmp_path / "alone.h5") as one, open_run(tmp_path / "o.h5") as other:
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
def test_examples_with_sharded_models_have_the_loss_of_one_process(
    run: Start, tmp_path: Path, name: str, g: int
) -> None:
    """The examples on two groups, or one: each rank has a part of the parameters; the loss is that of one process."""
    pytest.importorskip("torch")
    words = ["run", str(ROOT / "examples" / "own_training" / f"{name}.yaml"), "stop.updates=8"]
    run(0, *MPIFL, *words, "output=one.h5", code=0)
    run(5, *MPIFL, *words, "output=f.h5", f"ranks_per_client={g}", deadline=200, code=0)
    with open_run(tmp_path / "one.h5") as one, open_run(tmp_path / "f.h5") as found:
        assert found.evaluations.train_loss.tolist() == pytest.approx(one.evaluations.train_loss.tolist(), rel=1e-4)
        assert found.evaluations.train_loss.iloc[-1] < found.evaluations.train_loss.iloc[0]
