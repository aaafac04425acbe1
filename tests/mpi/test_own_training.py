"""Clients with custom training loops under MPI: bits, replay, resume on other ranks, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.mpi.cases import job
from tests.mpi.conftest import MPIFL, Start, in_one_job, one_line, run_all, write
from tests.mpi.files import attribute, differing
from tests.tiers import parameters

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
WRONG = {**job({"name": "fedbuff", "trigger": {"every": 2}}), "problem": {"entry": "tests.own_clients:wrong"}}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every case, run in one process."""
    return run_all(tmp_path_factory.mktemp("alone"), 0, CASES, DEADLINE)


@pytest.mark.parametrize("ranks", parameters([2, 3, 5], [3]))
def test_every_rank_count_gives_the_same_bits(alone: Path, tmp_path: Path, ranks: int) -> None:
    """With state that stays on the client, draws of the process' generators, terms, gradients, large vectors."""
    again = run_all(tmp_path / "again", ranks, CASES, DEADLINE)
    wrong = {name: differing(alone / f"{name}.h5", again / f"{name}.h5") for name in CASES}
    assert not {name: what for name, what in wrong.items() if what}
    facts = json.loads(attribute(again / "momentum.h5", "compute"))
    assert [fact.get("repeats") for fact in facts] == [None, True] + [None] * (ranks - 2)  # tried on one rank alone


@pytest.mark.long
def test_a_run_in_real_time_is_verified_by_its_replay(tmp_path: Path) -> None:
    real = {**CASES["momentum"], "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}}
    here = run_all(tmp_path / "real", 4, {"real": real}, DEADLINE)
    (reply,) = in_one_job(here, 0, [["verify", "real.h5", "--replay", "--trust"]], DEADLINE)
    assert reply.codes == [0] and "the replay computed the same rows and model" in reply.out, reply


@pytest.mark.long
def test_a_run_resumes_on_other_ranks(alone: Path, tmp_path: Path) -> None:
    """The clients' own states are those of the checkpoint, whichever rank has them."""
    for name in ("momentum", "generators"):
        part = {**CASES[name], "stop": {"updates": 25}, "checkpoint": {"end": True}}
        command = ["run", str(write(tmp_path, name, part)), f"output={name}.h5"]
        (reply,) = in_one_job(tmp_path, 4, [command], DEADLINE)
        assert reply.codes == [0] * 4, reply
        (reply,) = in_one_job(tmp_path, 3, [["resume", f"{name}.h5", "stop.updates=60", "--trust"]], DEADLINE)
        assert reply.codes == [0] * 3, reply
        assert not differing(alone / f"{name}.h5", tmp_path / f"{name}.h5", but=("events",))


@pytest.mark.long
def test_every_mistake_is_one_line_before_the_run(tmp_path: Path) -> None:
    """Found on the rank of client 0, or on rank 0; all in one MPI job of 3 ranks."""
    cases = {
        "trial:length": "rank 1: client 0: fit returned a y that is float32 of shape (2,), not float32 of shape (3,)",
        "trial:raises": "rank 1: client 0: KeyError:",
        "trial:saves text": "rank 1: client 0: save returned name, which is str, not an array or a number",
        "trial:hangs": "rank 1: fit of client 0 has not returned after faults.patience=2 s",
        "evaluates to text": "client 0: evaluate returned train_loss='low', not a number",
        "no fit": "client 0 is a Lacking without a method fit",
    }
    write(tmp_path, "wrong", {**WRONG, "faults": {"patience": 2}})
    commands = [["run", "wrong.yaml", f"problem.options={{case: '{case}'}}"] for case in cases]
    commands.append(["run", "wrong.yaml", "algorithm.name=scaffold", "algorithm.trigger=null"])
    replies = in_one_job(tmp_path, 3, commands, deadline=120)
    for reply, says in zip(replies, cases.values()):
        assert one_line(reply, says), reply


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "faults", "state", "says"),
    [
        ("raises", {}, "lost", "KeyError"),
        ("length", {}, "lost", "client 1: fit returned a y that is float32 of shape (2,), not float32 of shape (3,)"),
        ("nan", {}, "aside", "the update is not finite"),
        ("hangs", {"patience": 4.0}, "lost", "gave no answer for 4 s"),
    ],
)
def test_a_client_that_does_wrong_is_lost_and_the_others_go_on(
    run: Start, tmp_path: Path, case: str, faults: dict[str, Any], state: str, says: str
) -> None:
    problem = {**WRONG["problem"], "options": {"case": case, "client": 1}}
    file = write(tmp_path, "wrong", {**WRONG, "problem": problem, "faults": faults, "output": "wrong.h5"})
    done = run(4, *MPIFL, "run", file, deadline=60)
    assert done.code == 0, str(done)
    with open_run(tmp_path / "wrong.h5") as found:
        assert len(found.updates) == 60 and found.clients.state.tolist()[::2] == ["live", "live"]
        assert found.clients.state[1] == state, found.clients
        assert says in "\n".join(found.events.text), found.events.text.tolist()
