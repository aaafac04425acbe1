"""Clients of which each rank of a group has a part: bits, bytes, checkpoints, failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import algorithms, open_run
from mpifl.algorithms.base import NEEDS
from mpifl.config.registry import FAMILIES
from tests.mpi.cases import CASES, job
from tests.mpi.conftest import Start, in_one_job, run_all, succeed, write
from tests.mpi.files import differing
from tests.verified import verify_files

pytestmark = [pytest.mark.mpi, pytest.mark.long, pytest.mark.timeout(400)]
DEADLINE = 200.0
FEW: dict[str, Any] = {"stop": {"updates": 24}, "evaluate": {"updates": 12}}


def sharded(dim: int = 13, **options: Any) -> dict[str, Any]:
    """The clients of `quadratics`; 13 numbers are cut into 7 and 6, or 4, 4, 4 and 1."""
    return {"entry": "tests.own_clients:quadratics", "options": {"kind": "ShardedSite", "dim": dim, **options}}


def fits(name: str) -> bool:
    """Whether the method sends one vector each way, and keeps none on its clients."""
    cls = FAMILIES["algorithm"].find(name)
    met = all("adds_term" in NEEDS[need] for need, option in cls().client_needs().items() if not option)
    return met and {cls.vectors_up, cls.min_vectors_up, cls.vectors_down} == {1} and not vars(cls().init_client(0, 0))


def case(name: str) -> dict[str, Any]:
    """A job of the method, on clients that are sharded."""
    found = next(c for c in CASES.values() if c["algorithm"]["name"] == name)
    cohort = {"cohort": 4} if found["algorithm"].get("cohort", 0) > 7 else {}
    algorithm = {key: value for key, value in found["algorithm"].items() if key != "solver"}
    return job({**algorithm, **cohort}, sharded(), clock=found["clock"], **FEW)


METHODS = [name for name in [*algorithms.names(), *algorithms.ALIASES] if fits(name)]
EVERY = {name: case(name) for name in METHODS if any(c["algorithm"]["name"] == name for c in CASES.values())}
LARGE = job({"name": "fedbuff", "trigger": {"every": 3}, "local_steps": 2}, sharded(20001), **FEW)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield (folder := tmp_path_factory.mktemp("sharded"))
    verify_files(folder)


@pytest.mark.parametrize(
    ("cases", "counts"),  # (ranks, ranks per client)
    [(EVERY, [(5, 2), (5, 4)]), ({"large": LARGE}, [(5, 2), (5, 4), (4, 3)])],
    ids=["methods", "large"],
)
def test_the_bits_are_those_of_one_process(
    folder: Path, cases: dict[str, Any], counts: list[tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    """Where each rank has its part of the vectors as where one has all; norms of updates included."""
    assert len(EVERY) > 10
    alone = run_all(folder / f"{request.node.callspec.id}-alone", 0, cases, DEADLINE)
    for ranks, g in counts:
        name = f"{request.node.callspec.id}-{ranks}-{g}"
        again = run_all(folder / name, ranks, cases, DEADLINE, f"ranks_per_client={g}")
        wrong = {name: differing(alone / f"{name}.h5", again / f"{name}.h5") for name in cases}
        assert not {name: what for name, what in wrong.items() if what}, (ranks, g)


@pytest.mark.parametrize("g", [2, 4])
def test_each_rank_receives_and_sends_its_part_alone(run: Start, tmp_path: Path, g: int) -> None:
    """d/g numbers of 4 bytes for each message and update: of 8 rounds of 3 clients, and of the one that is dropped."""
    d = 20_000
    problem, algorithm = sharded(d, clients=3), {"name": "fedavg", "local_steps": 2}
    file = write(tmp_path, "b", job(algorithm, problem, stop={"updates": 24}, output="b.h5", ranks_per_client=g))
    run(1 + g, "-m", "tests.mpi.counted", file, code=0, deadline=60)
    server, *members = json.loads((tmp_path / "bytes.json").read_text())
    part = d // g * 4
    assert server == [0, 0] and [received for received, _ in members] == [27 * part] * g
    ((sent, remainder),) = {divmod(sent, part) for _, sent in members}
    assert 24 <= sent <= 27 and not remainder
    with open_run(tmp_path / "b.h5") as found:  # as where one rank has all, with headers
        assert set(found.updates.bytes) == {128 + 4 * d}


def test_resumed_and_replayed_with_other_groups(folder: Path) -> None:
    """Updates in flight are whole in a checkpoint, so any number of ranks continues from it."""
    (here := folder / "part").mkdir()
    whole = run_all(folder / "whole", 0, {"s": {**LARGE, "stop": {"updates": 48}}}, DEADLINE)

    def command(ranks: int, *words: str) -> None:
        (reply,) = in_one_job(here, ranks, [[*words]], DEADLINE)
        assert set(reply.codes) == {0}, reply

    part = {**LARGE, "checkpoint": {"end": True}, "stop": {"updates": 12}, "output": "s.h5"}
    command(5, "run", str(write(here, "s", part)), "ranks_per_client=2")
    for ranks, g, updates in ((5, 4, 24), (0, 1, 36), (4, 3, 48)):
        command(ranks, "resume", "s.h5", "--trust", f"stop.updates={updates}", f"ranks_per_client={g}")
    assert not differing(whole / "s.h5", here / "s.h5", but=("events",))
    real = {**LARGE, "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}, "output": "r.h5"}
    command(5, "run", str(write(here, "r", real)), "ranks_per_client=2")
    command(0, "replay", "r.h5", "--trust", "output=r-1.h5")
    command(5, "replay", "r.h5", "--trust", "output=r-2.h5", "ranks_per_client=4")
    for again in ("r-1.h5", "r-2.h5"):
        assert not differing(here / "r.h5", here / again, but=("events",))


# -- failures ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("raises", "ValueError: one member alone"),
        ("nan", "client 1: fit returned a y that is not finite"),
        ("length", "client 1: fit returned a y that is float32 of shape (5,), not float32 of shape (6,)"),
        ("steps", "fit returned another model or number of steps on rank 2 than on rank 1"),
    ],
)
def test_what_goes_wrong_on_one_member_is_an_error_of_its_client(tmp_path: Path, trouble: str, says: str) -> None:
    """Client 1 is lost; the others go on, their parts of later updates not mistaken for those of this one."""
    problem = sharded(12, trouble=trouble)
    whole = job({"name": "fedbuff", "trigger": {"every": 3}}, problem, **FEW, output="t.h5", ranks_per_client=2)
    (reply,) = in_one_job(tmp_path, 3, [["run", str(write(tmp_path, "t", whole))]], 60)
    assert set(reply.codes) == {0}, reply
    with open_run(tmp_path / "t.h5") as found:
        assert found.clients.state.tolist() == ["live", "lost", *["live"] * 5]
        (text,) = found.events.text[found.events.kind == "lost"]
        assert says in text and len(found.updates) == 24
    succeed(tmp_path, 0, [["verify", "t.h5"]], 60)
