"""A user's own classes and training loops under MPI: bits, replay, resume on other ranks, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.config.test_own_classes import ALL
from tests.mpi.cases import job
from tests.mpi.conftest import in_one_job, run_all
from tests.mpi.files import all_differences, attribute
from tests.tiers import long, parameters

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(280)]
DEADLINE = 130.0


def own(kind: str, **options: Any) -> dict[str, Any]:
    return {"entry": "tests.own_clients:quadratics", "options": {"kind": kind, **options}}


CASES = {
    "momentum": job({"name": "fedbuff", "trigger": {"every": 3}}, own("MomentumSite")),
    "generators": job({"name": "fedavg", "cohort": 4}, own("GlobalSite")),
    "term": job({"name": "fedprox", "local_steps": 3}, own("TermSite", dim=20000)),  # larger than a frame
    "gradient": job({"name": "scaffold", "local_steps": 2}, own("GradientSite", sigma=0.0)),
    "area": job({"name": "area", "trigger": {"every": 3}, "local_steps": 2}, own("Site")),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every case, run in one process."""
    return run_all(tmp_path_factory.mktemp("alone"), 0, CASES, DEADLINE)


@pytest.mark.parametrize("ranks", parameters([2, 3, 5], [3]))
def test_every_rank_count_gives_the_same_bits(alone: Path, tmp_path: Path, ranks: int) -> None:
    """With state that stays on the client, draws of the process' generators, terms, gradients, large vectors."""
    again = run_all(tmp_path / "again", ranks, CASES, DEADLINE)
    assert not all_differences(alone, again, CASES)
    facts = json.loads(attribute(again / "momentum.h5", "compute"))
    assert [fact.get("repeats") for fact in facts] == [None, True] + [None] * (ranks - 2)  # tried on one rank alone


def test_classes_of_all_families_on_three_ranks(tmp_path: Path) -> None:
    """Every rank imports the classes, and computes what one process computes."""
    alone, ranks = (run_all(tmp_path / str(n), n, {"own": ALL}, DEADLINE) for n in (0, 3))
    assert not all_differences(alone, ranks, ["own"])


@pytest.mark.parametrize("mode", ["virtual", long("real")])
def test_updates_without_vectors(tmp_path: Path, mode: str) -> None:
    """Of a model too large for a frame: its vectors, if any, follow in messages of their own."""
    problem = {"model": {"name": "quadratic", "dim": 20_000}, "clients": 3}
    clock = {"mode": mode, "delay": {"name": "exponential", "rate": 1000}}
    case = {"silent": job({"name": "tests.mpi.own:Silent"}, problem, clock=clock, stop={"updates": 40})}
    ranks = run_all(tmp_path / "ranks", 3, case, DEADLINE)
    with open_run(ranks / "silent.h5") as file:
        assert set(file.updates.bytes) == {128, 128 + 4 * 20_000}
    if mode == "virtual":
        assert not all_differences(run_all(tmp_path / "alone", 0, case, DEADLINE), ranks, case)


@pytest.mark.long
def test_a_method_may_keep_and_change_the_vectors_of_updates(tmp_path: Path) -> None:
    """Those that are too large for a frame are received into buffers that are used again."""
    problem = {"model": {"name": "quadratic", "dim": 20_000}, "clients": 5}
    case = {"keeping": job({"name": "tests.mpi.own:Keeping", "trigger": {"every": 3}}, problem)}
    alone, ranks = (run_all(tmp_path / str(n), n, case, DEADLINE) for n in (0, 3))
    assert not all_differences(alone, ranks, case)


@pytest.mark.long
def test_a_run_in_real_time_is_verified_by_its_replay(tmp_path: Path) -> None:
    real = {**CASES["momentum"], "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}}
    here = run_all(tmp_path / "real", 4, {"real": real}, DEADLINE)
    (reply,) = in_one_job(here, 0, [["verify", "real.h5", "--replay", "--trust"]], DEADLINE)
    assert reply.codes == [0] and "the replay computed the same rows and model" in reply.out, reply


@pytest.mark.long
def test_a_run_resumes_on_other_ranks(alone: Path, tmp_path: Path) -> None:
    """The clients' own states are those of the checkpoint, whichever rank has them."""
    names = ("momentum", "generators")
    parts = {name: {**CASES[name], "stop": {"updates": 25}, "checkpoint": {"end": True}} for name in names}
    run_all(tmp_path, 4, parts, DEADLINE)
    resumes = [["resume", f"{name}.h5", "stop.updates=60", "--trust"] for name in names]
    for reply in in_one_job(tmp_path, 3, resumes, DEADLINE):
        assert reply.codes == [0] * 3, reply
    assert not all_differences(alone, tmp_path, names, but=("events",))
