"""QuAFL and FAVAS: their fixed points, QuAFL's invariant, FAVAS's divisors, and polls: when they come, and what clients
have done by then."""

from __future__ import annotations

from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import open_run
from mpifl.algorithms.base import Algorithm, Update
from mpifl.algorithms.favas import Favas
from mpifl.algorithms.quafl import QuAFL
from mpifl.scheduling.delays import Exponential, Speed
from mpifl.scheduling.polls import StepsSoFar
from mpifl.scheduling.timeline import Timeline
from tests.algorithms.world import World
from tests.mpi.files import differing
from tests.quadratic_runs import close, random_quadratics
from tests.tiers import long

C, E = np.array([0.0, 1.0]), np.array([3, 1])  # T3: curvature 1; local steps of clients 0 and 1 between polls


def finished(folder: Path, algorithm: dict[str, Any], delay: Any, name: str = "run", **more: Any) -> Any:
    """A run in virtual time; the file is open."""
    model = {"name": "quadratic", "curvatures": [[1.0], [1.0]], "optima": [[0.0], [1.0]], "init": "zero"}
    job = {
        "name": name, "seed": 3, "output": str(folder / f"{name}.h5"),
        "problem": {"model": model, "dtype": "float64"}, "algorithm": {"local_steps": 4, "period": 3.5, **algorithm},
        "clock": {"mode": "virtual", "delay": delay}, "stop": {"updates": 60}, "evaluate": {"updates": 1000}, **more,
    }  # fmt: skip
    mpifl.run(job).close()
    return open_run(folder / f"{name}.h5")


# -- rules -------------------------------------------------------------------------------------------------------------
class Polled(World):
    """Rounds whose members have taken given steps."""

    def poll(self, steps: dict[int, int], lost: int | None = None, after: int = 0) -> None:
        self.server.steps |= steps
        self.round(sorted(steps), lost, after)


def world(algorithm: Algorithm, n: int) -> Polled:
    return Polled(algorithm, random_quadratics(4, n), np.ones(3))


@pytest.mark.parametrize("alpha", ["stochastic", "deterministic", None], ids=["stochastic", "deterministic", "quafl"])
def test_rules_by_hand(alpha: Any) -> None:
    """FAVAS: alpha_i is P(E_i > 0) E_i or E[E_i], over the client's polls so far; X_i is the model after its last
    round. QuAFL: x <- (x + sum Y_i)/(s+1), X_i <- (x + s Y_i)/(s+1) with the x of before."""
    draw, options = np.random.default_rng(1), {"step_size": 0.1, "local_steps": 4}
    w = world(Favas(alpha=alpha, **options) if alpha else QuAFL(**options), 5)
    x, X, history = np.ones(3), [np.ones(3)] * 5, [[] for _ in range(5)]  # type: ignore[var-annotated]
    for _ in range(30):
        steps = {i: int(draw.integers(0, 5)) for i in draw.choice(5, 3, replace=False).tolist()}
        total, old = x, x
        for i, k in steps.items():
            history[i].append(k)
            change = w.objectives[i].steps(X[i], 0.1, k) - X[i]
            divisor = np.mean(history[i]) if alpha == "deterministic" else k * np.mean(np.array(history[i]) > 0)
            total = total + X[i] + (change / (divisor if alpha else 1) if k else 0)
            X[i] = X[i] + change
        x = total / 4
        X = [(x if alpha else (old + 3 * X[i]) / 4) if i in steps else X[i] for i in range(5)]
        w.poll(steps)
        close(w.server.x, x)


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("algorithm", [QuAFL(step_size=0.1), Favas(step_size=0.1)], ids=["quafl", "favas"])
def test_a_lost_member_is_left_out(algorithm: Algorithm, after: int) -> None:
    """s counts those that answer, whenever the member is lost; from x_0 with one step both average x and the Y_i."""
    w = world(algorithm, 4)
    w.poll({0: 1, 2: 1, 3: 1}, lost=2, after=after)
    x0 = np.ones(3)
    close(w.server.x, (x0 + sum(w.objectives[i].steps(x0, 0.1) for i in (0, 3))) / 3)


# -- polls -------------------------------------------------------------------------------------------------------------
def test_steps_pause_while_a_client_is_off() -> None:
    """On in 1..2 and from 5: by 6 s two seconds have counted."""
    spans = [(1.0, 2.0), (5.0, 1e9)]
    line = Timeline(lambda i, time: next(span for span in spans if span[1] > time), 1)
    taken = StepsSoFar(lambda i, round: 4.0, None, line)  # 1 s a step
    assert [taken(0, 0, 0.0, t, 4) for t in (1.0, 2.0, 5.0, 6.0, 7.5, 9.0)] == [0, 1, 1, 2, 3, 4]


SPEED = {"name": "speed", "compute": 0.1, "exchange": 0.3, "spread": 3, "noise": "exponential"}


@pytest.mark.parametrize(
    ("name", "delay"), [("quafl", SPEED), ("favas", SPEED), ("quafl", {"name": "exponential", "rate": 0.5})], ids=str
)
def test_steps_of_a_run_follow_from_its_times(name: str, delay: dict[str, Any], tmp_path: Path) -> None:
    """Members answer polls at multiples of the period, the first after the answers before, at once where the delay
    model has no separate time of exchanging; E_i by the recorded times and the delay model's draws. A poll that finds
    no step taken is answered as well."""
    model = {"name": "quadratic", "dim": 3, "sigma": 0.1}
    algorithm, n = {"name": name, "cohort": 3, "period": 0.7, "local_steps": 6}, 7
    with finished(tmp_path, algorithm, delay, problem={"clients": n, "model": model}, stop={"updates": 150}) as run:
        rows, made = run.updates, run.aggregations.time.to_numpy()
    split = Speed(compute=0.1, exchange=0.3, spread=3, noise="exponential").split_times(n, 3)
    whole = Exponential(rate=0.5).contact_times(n, 3)
    since, contacts, polls = [0.0] * n, [0] * n, []
    for round, members in rows.groupby("version"):
        end = made[round - 1] if round else 0.0
        poll = next(k * 0.7 for k in range(floor(end / 0.7), floor(end / 0.7) + 3) if k * 0.7 > end)
        polls.append(poll)
        assert len(members) == 3 and members.client.is_unique
        for row in members.itertuples():
            i, k = row.client, contacts[row.client]
            compute, exchange = split(i, k, 1) if delay is SPEED else (whole(i, k) / 6, 0.0)
            assert row.local_steps == min(6, floor((poll - since[i]) / compute + 1e-9))
            assert row.time == pytest.approx(poll + exchange) and (row.compute == 0.0) == (delay is SPEED)
            since[i], contacts[i] = row.time, k + 1
    assert set(rows.local_steps) == set(range(7))
    assert (np.diff(polls).max() > 0.71) == (delay is SPEED), "a round that outlasts its period puts the next poll off"


def test_polls_by_a_period_whose_multiples_round_down(tmp_path: Path) -> None:
    """k T/T can be below k: no poll comes twice at one time. Without any delay every poll finds all steps taken."""
    with finished(tmp_path, {"name": "favas", "period": 0.0017}, "none", stop={"time": 17.0}) as run:
        times = run.updates.time.to_numpy()[::2]
        assert (run.updates.local_steps == 4).all()
    assert len(times) == 10000 and (np.diff(times) > 0.0016).all() and (np.diff(times) < 0.0018).all()


@pytest.mark.parametrize("name", ["quafl", "favas"])
@pytest.mark.parametrize("cohort_from", [long("all"), "available"])
def test_a_real_run_is_replayed(name: str, cohort_from: str, tmp_path: Path) -> None:
    """E_i follows from recorded times, so a replay has the same bits, by whatever the wall clock went."""
    on_and_off = {"name": "renewal", "on": 0.05, "off": 0.03, "cohort_from": cohort_from}
    clock = {"mode": "real", "delay": {"name": "exponential", "rate": 40}, "availability": on_and_off}
    problem = {"clients": 6, "model": {"name": "quadratic", "dim": 4, "sigma": 0.2}}
    algorithm = {"name": name, "cohort": 3, "period": 0.01, "local_steps": 5}
    stop = {"updates": 90, "time": 60}
    with finished(tmp_path, algorithm, None, clock=clock, problem=problem, stop=stop) as run:
        assert len(run.updates) == 90 and run.updates.local_steps.nunique() > 2
    mpifl.replay(tmp_path / "run.h5", f"output={tmp_path / 'again.h5'}").close()
    assert not differing(tmp_path / "run.h5", tmp_path / "again.h5", but=("events",))


class Fragile(QuAFL):
    """Client 1 raises in every contact, client 2 in its third: rounds of one member lose all they have."""

    broken = True

    def init_client(self, x0: Any, i: int) -> Any:
        client = super().init_client(x0, i)
        client.number = i
        return client

    def train(self, client: Any, message: Any, objective: Any) -> Update:
        if self.broken and (client.number == 1 or (client.number, message.round) == (2, 2)):
            raise OSError("no disk")
        return super().train(client, message, objective)


def test_a_round_that_loses_all_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next poll is a period later, of other clients; a replay has the same bits."""
    algorithm = {"name": f"{__name__}:Fragile", "cohort": 1, "period": 0.5, "local_steps": 3}
    problem = {"clients": 4, "model": {"name": "quadratic", "dim": 3, "sigma": 0.1}}
    more = {"problem": problem, "faults": {"lost": "freeze"}, "stop": {"updates": 40}}
    with finished(tmp_path, algorithm, {"name": "speed", "compute": 0.1, "exchange": 0.02}, **more) as run:
        assert sorted(run.events[run.events.kind == "lost"].client) == [1, 2]
        close(run.updates.time.to_numpy()[-1], 42 * 0.5 + 0.02, 1e-9)
        assert len(run.updates) == 40
    monkeypatch.setattr(Fragile, "broken", False)
    mpifl.replay(tmp_path / "run.h5", f"output={tmp_path / 'again.h5'}", trust=True).close()
    assert not differing(tmp_path / "run.h5", tmp_path / "again.h5", but=("events",))
